"""Step 1: send a message, and handle it."""

from rmq import PriorityMessage, RmqClient, Topic, TopicType
from rmq.demo.orders import read_orders

ORDERS = Topic("orders", TopicType.PRIORITY)

line = read_orders()[0]

with RmqClient("embedded://") as client:
    message = PriorityMessage(f"order:{line.invoice}", priority=1, body=f"{line.quantity} of item {line.item}")
    client.producer(ORDERS).send(message)

    for delivery in client.consumer(ORDERS).poll(timeout=5):
        print(f"pack {delivery.text}: {delivery.value.decode()}")
        delivery.ack()

    print(f"left: {client.inspect(ORDERS).stats().backlog}")
