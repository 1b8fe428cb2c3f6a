"""Stream topics on a Redis Cluster: slots on several nodes, each script on one of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta

import pytest

from rmq import DelayedQueue, ImmediateRetry, Retention, RmqClient, StreamMessage, Topic, TopicType
from tests.support.streams import drain_entries
from tests.support.topologies import RedisClusterServers


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisClusterServers]:
    with RedisClusterServers(3) as cluster:
        yield cluster


def test_groups_the_dead_trimming_and_reading_on_a_cluster(cluster: RedisClusterServers) -> None:
    topic = Topic(
        f"streams{os.getpid()}",
        TopicType.STREAM,
        slots=16,
        lease=timedelta(seconds=1),
        max_retries=0,
        retry=ImmediateRetry(),
        retention=Retention(max_length=0, approximate=False),
    )
    with RmqClient(cluster.url) as client:
        client.producer(topic).send_many(StreamMessage(f"m{number}") for number in range(2_000))
        view = client.stream(topic)
        for group in ("a", "b"):
            with client.consumer(topic, group=group, start="all") as consumer:
                first = consumer.poll(1, 5.0)
                first[0].nack(error="dead at once")
                found = drain_entries(consumer, 1.0)
                assert len(set(found)) == len(found) == 1_999
                assert view.dead(group).redrive().redriven == 1
                assert drain_entries(consumer, 2.0) == [first[0].text]
            assert (view.group(group).lag, view.group(group).pending, view.group(group).unaccounted) == (0, 0, 0)
        assert len(list(view.range())) == 2_000
        assert sum(slot.dropped for slot in view.trim()) == 2_000
        assert view.stats().unaccounted == 0


def test_a_delayed_queue_on_a_cluster(cluster: RedisClusterServers) -> None:
    with RmqClient(cluster.url) as client, DelayedQueue(client, f"delayed{os.getpid()}", slots=4) as queue:
        for number in range(20):
            queue.offer(str(number), 10 * number)
        assert sorted(queue.take(5.0) for _ in range(20)) == sorted(str(number).encode() for number in range(20))
