"""Step 2: a day's price changes, and one picture for each item."""

from rmq import RangeMergeMessage, RmqClient, Topic, TopicType
from rmq.demo.orders import price_changes, read_orders

PICTURES = Topic("pictures", TopicType.RANGE_MERGE, slots=8)
WINDOW = "2s"

items = [line.item for line, changed in price_changes(read_orders()) if changed]

with RmqClient("embedded://") as client:
    sent = client.producer(PICTURES).send_many(RangeMergeMessage(f"item:{item}", WINDOW) for item in items)
    print(f"{len(items)} changes: {sent.new} new, {sent.merged} merged")

    consumer = client.consumer(PICTURES)
    drawn = 0
    while deliveries := consumer.poll(max_messages=500, timeout=4):
        drawn += len(deliveries)  # draw each with the current price
        consumer.ack(deliveries)
    print(f"{drawn} pictures")
