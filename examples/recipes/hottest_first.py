"""Do the hottest item first: each request adds one to the priority, so the most requested item goes first."""

from rmq import Merge, PriorityMessage, RmqClient, Topic, TopicType

THUMBNAILS = Topic("thumbnails", TopicType.PRIORITY, merge=Merge(priority="sum"))

with RmqClient("embedded://") as client:
    producer, consumer = client.producer(THUMBNAILS), client.consumer(THUMBNAILS)
    for photo in ("cat", "dog", "cat", "owl", "dog", "cat"):
        producer.send(PriorityMessage(f"photo:{photo}", priority=1))
    for delivery in consumer.poll(timeout=10):
        print(f"{delivery.text}: priority={delivery.priority} requests={delivery.merged}")
        delivery.ack()
