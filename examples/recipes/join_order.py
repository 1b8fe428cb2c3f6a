"""Wait for all parts of an order: deliver it when they have arrived, or after two seconds with those that have."""

from rmq import PER_MESSAGE, Collect, JoinMessage, Merge, RmqClient, Sliding, Topic, TopicType

PARTS = Merge(Collect(unique=True), window=Sliding(max_wait="2s"), max_count=PER_MESSAGE)
ORDERS = Topic("orders", TopicType.RANGE_MERGE, slots=8, merge=PARTS)

with RmqClient("embedded://") as client:
    producer, consumer = client.producer(ORDERS), client.consumer(ORDERS)
    done = [(7, "invoice"), (8, "invoice"), (7, "label"), (7, "label"), (7, "packed")]  # by services of their own
    producer.send_many(JoinMessage(f"order:{order}", part, of=3) for order, part in done)
    while deliveries := consumer.poll(timeout=3):
        for delivery in deliveries:
            verb = "ship" if delivery.complete else "look after"
            parts = [item.decode() for item in delivery.items]
            print(f"{verb} {delivery.text}: {', '.join(parts)}; wanted={delivery.wanted}")
            delivery.ack()
