"""Sum stock changes: one update for all changes of an item; an order that arrives twice counts once."""

from rmq import Fixed, Merge, RangeMergeMessage, RmqClient, Sum, Topic, TopicType

STOCK = Topic("stock", TopicType.RANGE_MERGE, slots=8, merge=Merge(Sum(), window=Fixed("1s")))

with RmqClient("embedded://") as client:
    producer, consumer = client.producer(STOCK), client.consumer(STOCK)
    producer.send(RangeMergeMessage("item:mug", body=100), once="delivery-note:77")
    for _ in range(2):  # the customer's browser sends the order again
        lines = [RangeMergeMessage("item:mug", body=-3), RangeMergeMessage("item:cup", body=-2)]
        producer.send_many(lines, once="order:1001")
    while deliveries := consumer.poll(timeout=2):
        for delivery in deliveries:
            print(f"{delivery.text}: {delivery.value:+} changes={delivery.merged}")
            delivery.ack()
