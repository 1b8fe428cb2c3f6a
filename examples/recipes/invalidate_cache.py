"""Invalidate a cache: at once after the first change, then once for all changes of the following second."""

from rmq import Leading, Merge, RangeMergeMessage, RmqClient, Topic, TopicType

AT_ONCE = Leading("1s", trailing=True)
CHANGES = Topic("changed-pages", TopicType.RANGE_MERGE, slots=8, merge=Merge(window=AT_ONCE))

with RmqClient("embedded://") as client:
    producer, consumer = client.producer(CHANGES), client.consumer(CHANGES)
    for edits in (1, 3):  # three more within the window of the first one
        producer.send_many(RangeMergeMessage("page:home") for _ in range(edits))
        for delivery in consumer.poll(timeout=10):
            print(f"invalidate {delivery.text}: changes={delivery.merged}")
            delivery.ack()
