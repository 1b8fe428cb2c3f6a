"""Step 5: failed messages are retried, then they are dead, and can be sent again."""

from rmq import Consumer, ImmediateRetry, PriorityMessage, RmqClient, Topic, TopicType
from rmq.demo.orders import read_orders

PICTURES = Topic("pictures", TopicType.PRIORITY, max_retries=2, retry=ImmediateRetry())

photos = {line.item for line in read_orders()} - {"23084"}  # one item has no photo yet


def draw_all(consumer: Consumer) -> None:
    """Draw until no message arrives for a second."""
    while deliveries := consumer.poll(timeout=1):
        for delivery in deliveries:
            item = delivery.text.removeprefix("item:")
            if item in photos:
                print(f"draw item:{item}, attempt {delivery.attempt}")
                delivery.ack()
            else:
                delivery.nack(error=f"no photo of {item}, attempt {delivery.attempt}")


with RmqClient("embedded://") as client:
    consumer = client.consumer(PICTURES)
    client.producer(PICTURES).send_many(PriorityMessage(f"item:{item}", 1) for item in ("23084", "22086"))
    draw_all(consumer)

    dead = client.dead(PICTURES)
    for message in dead.list():
        print(f"dead: {message.text}: {message.error_message}")

    photos.add("23084")  # the photo arrives
    print(f"sent again: {dead.redrive().redriven}")
    draw_all(consumer)
