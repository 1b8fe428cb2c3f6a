"""Step 4: an order closes after a while, unless it is paid before."""

from rmq import FixedTimeMessage, RmqClient, Topic, TopicType
from rmq.demo.orders import read_orders

CLOSING = Topic("closing", TopicType.FIXED_TIME)
PATIENCE = "3s"  # a shop would wait for half an hour

lines = [line for line in read_orders() if line.is_order]
orders = {line.invoice for line in lines}
paid = {line.invoice for line in lines if line.customer}  # guests forget to pay

with RmqClient("embedded://") as client:
    client.producer(CLOSING).send_many(FixedTimeMessage(f"order:{order}", delay=PATIENCE) for order in orders)
    for order in paid:
        client.control(CLOSING).cancel(f"order:{order}")
    print(f"{len(orders)} orders, {len(paid)} paid")

    consumer = client.consumer(CLOSING)
    print(f"due now: {len(consumer.poll())}")
    for delivery in sorted(consumer.poll(timeout=10), key=lambda delivery: delivery.text):
        print(f"close {delivery.text}")
        delivery.ack()
