"""What one poll takes is bounded in bytes, whatever these are bytes of, and in the number of its claims."""

from __future__ import annotations

from collections.abc import Callable, Sized

import pytest
import redis

from rmq import (
    Collect,
    Fixed,
    Merge,
    PriorityMessage,
    RangeMergeMessage,
    RmqClient,
    StreamMessage,
    Topic,
    TopicType,
    poll_all,
)
from tests.conftest import MakeTopic
from tests.support.clients import stats_of
from tests.support.core import EMPTY_ROUNDS, POLL_BYTES, slot_keys

MIB = 1 << 20
NUMBER = 24
BIG = b"x" * (MIB - 4)

Poll = Callable[[RmqClient, Topic], Sized]


def _poll(client: RmqClient, topic: Topic) -> Sized:
    with client.consumer(topic) as consumer:
        return consumer.poll(1_000, timeout=20)


def _poll_columns(client: RmqClient, topic: Topic) -> Sized:
    with client.consumer(topic) as consumer:
        return consumer.poll_columns(1_000, timeout=20)


def _poll_all(client: RmqClient, topic: Topic) -> Sized:
    with client.consumer(topic) as consumer:
        return poll_all([consumer], 1_000, timeout=20)


@pytest.mark.parametrize("poll", [_poll, _poll_columns, _poll_all])
def test_a_poll_counts_the_bytes_of_items(poll: Poll, client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, merge=Merge(Collect(max_bytes=MIB), window=Fixed("1ms")))
    client.producer(topic).send_many(RangeMergeMessage(f"c{number}", body=BIG) for number in range(NUMBER))
    assert len(poll(client, topic)) == POLL_BYTES // MIB


def test_a_poll_counts_the_bytes_of_fields(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.STREAM, checked=False)
    with client.consumer(topic, group="g", start="all") as consumer:
        for _ in range(NUMBER):
            client.producer(topic).send(StreamMessage({"field": BIG[:-100]}))
        assert POLL_BYTES // MIB <= len(consumer.poll(1_000, timeout=20)) < NUMBER


@pytest.mark.parametrize("ended", ["release", "nack", "close"])
def test_flights_that_cost_more_than_a_call_may_fold_back_all_the_same(
    ended: str, client: RmqClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, merge=Merge(Collect(max_bytes=MIB), window=Fixed("1ms")))
    producer = client.producer(topic)
    for _ in range(2):
        producer.send_many(RangeMergeMessage(f"c{number}", body=BIG[: MIB // 2]) for number in range(12))
    consumer = client.consumer(topic)
    held = consumer.poll(1_000, timeout=20)
    producer.send_many(RangeMergeMessage(f"c{number}", body=b"fresh") for number in range(12))
    if ended == "release":
        assert consumer.release(held) == []
    else:
        for delivery in held:
            delivery.nack(delay="0s")
    found = stats_of(client, topic)
    assert (found.in_flight, found.backlog) == (0, 12)
    consumer.close()


def test_a_poll_without_waiting_makes_a_bounded_number_of_claims(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    topic = make_topic(TopicType.PRIORITY, ttl="1m")
    names = [f"old{number:05}" for number in range(5_000)]
    producer = client.producer(topic)
    producer.send_many(PriorityMessage(name, 100) for name in names)
    redis_client.zadd(slot_keys(topic.name, 0).born, dict.fromkeys(names, 1))  # they were sent long ago
    with client.consumer(topic) as consumer:
        for most in (1, 10):
            before = stats_of(client, topic).dead
            assert consumer.poll(most, timeout=0) == []
            assert 0 < stats_of(client, topic).dead - before <= 96 * (EMPTY_ROUNDS + 1)
        assert poll_all([consumer], timeout=0) == []
        producer.send(PriorityMessage("fresh", 50))
        assert [delivery.text for delivery in consumer.poll(1, timeout=0)] == ["fresh"]
        assert stats_of(client, topic).dead < len(names)
        [delivery.ack() for delivery in consumer.poll(1, timeout=0)]
