"""Dead letters for tests, and what became of them."""

from __future__ import annotations

from rmq import PriorityMessage, RangeMergeMessage, RmqClient, Topic, TopicType


def kill(client: RmqClient, topic: Topic, names: list[str], error: Exception, basis: str | None = None) -> None:
    """Send messages, each with a body that names it, and bury them."""
    producer, consumer = client.producer(topic), client.consumer(topic)
    if topic.type is TopicType.PRIORITY:
        producer.send_many(PriorityMessage(name, 100, slot_basis=basis, body=f"body of {name}") for name in names)
    else:
        producer.send_many(
            RangeMergeMessage(name, time_range_ms=1, slot_basis=basis, body=f"body of {name}") for name in names
        )
    left = len(names)
    while left:
        for delivery in consumer.poll(max_messages=100, timeout=10):
            delivery.bury(error)
            left -= 1
    consumer.close()


def accounts(client: RmqClient, topic: Topic) -> tuple[int, int]:
    """Return what is somewhere or done, and what was accepted and not merged: they are equal."""
    stats = client.inspect(topic).stats()
    gone = sum(stats.total(name) for name in ("acked", "cancelled", "purged", "trimmed", "dropped"))
    there = stats.backlog + stats.in_flight + stats.waiting + stats.dead
    return there + gone, stats.total("accepted") - stats.total("merged")
