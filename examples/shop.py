"""A service with a handler: `rmq worker shop:client` runs it, and `python shop.py` sends forty price changes."""

from rmq import Delivery, RangeMergeMessage, RmqClient, Topic, TopicType

PICTURES = Topic("pictures", TopicType.RANGE_MERGE, slots=8)

client = RmqClient()  # connects to the URL in RMQ_URL


@client.listener(PICTURES, threads=4)
def draw(delivery: Delivery) -> None:
    """Returning acks the delivery. Raising nacks it: it is retried later."""
    print(f"draw {delivery.text}")


if __name__ == "__main__":
    changes = (RangeMergeMessage("item:mug", "2s") for _ in range(40))
    sent = client.producer(PICTURES).send_many(changes)
    print(f"{sent.new} new, {sent.merged} merged")
