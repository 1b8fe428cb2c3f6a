"""Step 3: the customers who spend most come first."""

from collections import Counter

from rmq import PriorityMessage, RmqClient, Topic, TopicType
from rmq.demo.orders import read_orders

LETTERS = Topic("letters", TopicType.PRIORITY)

pounds: Counter[str] = Counter()
for line in read_orders():
    if line.is_order and line.customer:
        pounds[line.customer] += round(line.price * line.quantity)

with RmqClient("embedded://") as client:
    producer, consumer = client.producer(LETTERS), client.consumer(LETTERS)
    producer.send_many(PriorityMessage(f"customer:{customer}", max(1, spent)) for customer, spent in pounds.items())

    producer.send(PriorityMessage("customer:12748", 1_000_000))  # has complained: goes first
    for delivery in consumer.poll(max_messages=4, timeout=5):
        print(f"write to {delivery.text}, priority {delivery.priority}")
        delivery.ack()
