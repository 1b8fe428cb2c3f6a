"""Everything that a client does, once: for each topology the same."""

from __future__ import annotations

import threading
import time

from rmq import (
    ControlResult,
    Delivery,
    FixedTimeMessage,
    ImmediateRetry,
    PriorityMessage,
    RangeMergeMessage,
    RmqClient,
    Topic,
    TopicType,
)
from tests.support.clients import drain, stats_of
from tests.support.waiting import LIMIT_S, wait_until


def exercise(client: RmqClient, name: str, slots: int = 16) -> None:
    """Send, consume, fail, redrive, steer and listen on topics of this name."""
    _send_and_consume(client, Topic(f"{name}-merge", TopicType.RANGE_MERGE, slots=slots))
    frail = Topic(f"{name}-dead", TopicType.PRIORITY, slots=slots, max_retries=1, retry=ImmediateRetry())
    _die_and_redrive(client, frail)
    _steer(client, Topic(f"{name}-steer", TopicType.FIXED_TIME, slots=slots))
    _listen(client, Topic(f"{name}-listen", TopicType.PRIORITY, slots=slots))


def _send_and_consume(client: RmqClient, topic: Topic) -> None:
    producer = client.producer(topic)
    with client.consumer(topic) as consumer:
        result = producer.send_many(RangeMergeMessage(f"m{i}", time_range_ms=1, body=f"b{i}") for i in range(3_000))
        assert (result.new, result.merged) == (3_000, 0)
        assert producer.send(RangeMergeMessage("m7", time_range_ms=60_000)).merged == 1
        assert sorted(drain(consumer)) == sorted(f"m{i}" for i in range(3_000))
    assert stats_of(client, topic).total("acked") == 3_000


def _die_and_redrive(client: RmqClient, topic: Topic) -> None:
    client.producer(topic).send_many(PriorityMessage(f"m{i}", 100) for i in range(50))
    with client.consumer(topic) as consumer:
        while deliveries := consumer.poll(100, 0.3):
            for delivery in deliveries:
                assert delivery.nack(error=ValueError("no"))
        dead = client.dead(topic)
        assert {(each.text, each.error_type) for each in dead.list()} == {(f"m{i}", "ValueError") for i in range(50)}
        assert dead.purge(limit=10) == 10
        assert dead.redrive().redriven == 40
        assert len(drain(consumer)) == 40
    stats_of(client, topic)


def _steer(client: RmqClient, topic: Topic) -> None:
    far_ms = int(time.time() * 1000) + 3_600_000
    client.producer(topic).send_many(FixedTimeMessage(f"m{i}", fixed_time_ms=far_ms) for i in range(20))
    assert client.control(topic).cancel("m3") is ControlResult.DONE
    assert client.control(topic).cancel("m3") is ControlResult.ABSENT
    assert client.control(topic).reschedule("m4", due_in="0s") is ControlResult.DONE
    with client.consumer(topic) as consumer:
        assert drain(consumer) == ["m4"]
    assert stats_of(client, topic).backlog == 18


def _listen(client: RmqClient, topic: Topic) -> None:
    seen: list[str] = []
    lock = threading.Lock()

    @client.listener(topic, threads=2)
    def handle(delivery: Delivery) -> None:
        with lock:
            seen.append(delivery.text)

    client.start()
    try:
        client.producer(topic).send_many(PriorityMessage(f"m{i}", 100) for i in range(500))
        wait_until(lambda: len(seen) == 500, message="500 handled")
    finally:
        assert client.stop(10) == []
    assert sorted(seen) == sorted(f"m{i}" for i in range(500))
    assert stats_of(client, topic).total("acked") == 500


def wake(client: RmqClient, name: str, slots: int = 64) -> None:
    """Have an idle consumer that does not look by itself get messages in different slots: only hints tell of them."""
    topic = Topic(name, TopicType.PRIORITY, slots=slots)
    producer = client.producer(topic)
    with client.consumer(topic) as consumer:
        assert consumer.poll(timeout=1.5) == []
        for i in range(10):
            timer = threading.Timer(0.05, lambda i=i: producer.send(PriorityMessage(f"m{i}", 100)))
            timer.start()
            [delivery] = consumer.poll(timeout=LIMIT_S)
            assert delivery.ack()
            timer.join()
