"""The handlers of this app: `manage.py rmq_worker` finds the module by its name."""

import rmq
from rmq import Delivery, Topic, TopicType
from shop.models import Item

PRICE = Topic("price-image", TopicType.RANGE_MERGE, slots=8)


@rmq.listener(PRICE, threads=4)
def draw(delivery: Delivery) -> None:
    """Draw the picture of an item."""
    item = Item.objects.get(name=delivery.text)  # the newest price: it was committed before the send
    item.drawn_price = item.price
    item.save(update_fields=["drawn_price"])
