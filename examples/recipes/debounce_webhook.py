"""Debounce a webhook: build when there was no push for a second, and after ten seconds at the latest."""

from rmq import Merge, RangeMergeMessage, Replace, RmqClient, Sliding, Topic, TopicType

CALM = Sliding(quiet="1s", max_wait="10s")
PUSHES = Topic("pushes", TopicType.RANGE_MERGE, slots=8, merge=Merge(Replace(), window=CALM))

with RmqClient("embedded://") as client:
    producer, consumer = client.producer(PUSHES), client.consumer(PUSHES)
    for commit in ("a1f", "b2e", "c3d"):  # each is a call of the webhook
        producer.send(RangeMergeMessage("repo:shop", body=commit))
    while deliveries := consumer.poll(timeout=2):
        for delivery in deliveries:
            print(f"build {delivery.text} at {delivery.value.decode()}: pushes={delivery.merged}")
            delivery.ack()
