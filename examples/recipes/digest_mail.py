"""Collect a digest mail: one mail a day with all the news for a reader, or at once when there are three."""

import json

from rmq import Collect, Fixed, Merge, RangeMergeMessage, RmqClient, Topic, TopicType

DAILY = Merge(Collect(max_items=500, max_bytes=65_536), window=Fixed("1d"), max_count=3)
NEWS = Topic("news", TopicType.RANGE_MERGE, slots=8, merge=DAILY)

with RmqClient("embedded://") as client:
    producer, consumer = client.producer(NEWS), client.consumer(NEWS)
    for writer, words in (("ben", "likes your photo"), ("cyd", "follows you"), ("dan", "wrote: hi")):
        producer.send(RangeMergeMessage("reader:ann", body=json.dumps({"from": writer, "words": words})))
    for delivery in consumer.poll(timeout=10):
        print(f"mail to {delivery.text}, {len(delivery.items)} news:")
        for item in map(json.loads, delivery.items):
            print(f"  {item['from']} {item['words']}")
        delivery.ack()
