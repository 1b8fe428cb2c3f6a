"""The smallest complete example: two new prices of one item become one picture. Starts its own Redis, and exits."""

from rmq import RangeMergeMessage, RmqClient, Topic, TopicType

price = Topic("price-image", TopicType.RANGE_MERGE, slots=8)

with RmqClient("embedded://") as client:
    producer = client.producer(price)
    for item in ("mug", "mug", "cup"):
        result = producer.send(RangeMergeMessage(f"item:{item}", "500ms"))
        print(f"sent {item}: {'merged' if result.merged else 'new'}")

    consumer, drawn = client.consumer(price), 0
    while drawn < 2:
        for delivery in consumer.poll(max_messages=100, timeout=1.0):
            print(f"draw {delivery.text}")
            delivery.ack()
            drawn += 1
