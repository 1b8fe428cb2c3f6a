"""Let the newest price win, regardless of the order of arrival: each price has the version of its database row."""

from rmq import Fixed, Merge, Newest, RangeMergeMessage, RmqClient, Topic, TopicType

PRICES = Topic("prices", TopicType.RANGE_MERGE, slots=8, merge=Merge(Newest(), window=Fixed("1s")))

with RmqClient("embedded://") as client:
    producer, consumer = client.producer(PRICES), client.consumer(PRICES)
    arrived = ((7, "4.99"), (9, "5.49"), (8, "5.19"))  # as the network brings them
    producer.send_many(RangeMergeMessage("item:mug", body=price, version=version) for version, price in arrived)
    for delivery in consumer.poll(timeout=10):
        print(f"{delivery.text} costs {delivery.value.decode()}, prices={delivery.merged}")
        delivery.ack()
