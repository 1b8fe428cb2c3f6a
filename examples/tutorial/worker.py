"""Step 6: a handler in worker processes. `python worker.py` sends the day's price changes."""

from rmq import Delivery, RangeMergeMessage, RmqClient, Topic, TopicType
from rmq.demo.orders import price_changes, read_orders

PICTURES = Topic("price-pictures", TopicType.RANGE_MERGE, slots=8)

client = RmqClient()


@client.listener(PICTURES, threads=4)
def draw(delivery: Delivery) -> None:
    """Draw one picture. Returning acks the delivery, raising nacks it."""
    print(f"draw {delivery.text}", flush=True)


if __name__ == "__main__":
    items = [line.item for line, changed in price_changes(read_orders()) if changed]
    messages = (RangeMergeMessage(f"item:{item}", "2s") for item in items)
    print(f"{client.producer(PICTURES).send_many(messages).new} pictures to draw")
