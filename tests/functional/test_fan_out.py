"""Groups of consumer processes that are killed with -9: each group gets every message, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from rmq import ImmediateRetry, RmqClient, StreamMessage, Topic, TopicType
from tests.conftest import MakeTopic
from tests.support.fan_out import FanOut, fan_out
from tests.support.streams import check_stream
from tests.support.topologies import RedisClusterServers
from tests.support.zookeeper import ZooKeeperEnsemble

MESSAGES, KILLS, CONSUMERS = 3_000, 3, 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisClusterServers]:
    with RedisClusterServers(3) as cluster:
        yield cluster


def check(played: FanOut) -> None:
    """Each group exactly all messages; what came again was counted, and comes from a lease that ran out."""
    for group, result in played.groups.items():
        assert (result.missing, result.uncounted, result.unaccounted) == (0, 0, 0), (group, result)
        assert result.redelivered <= result.expired, (group, result)
    assert played.killed == KILLS


def test_each_group_gets_exactly_all_under_kills(redis_url: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    topic = make_topic(TopicType.STREAM, checked=False, slots=8)
    check(fan_out(redis_url, topic.name, tmp_path, MESSAGES, consumers=CONSUMERS, kills=KILLS))


@pytest.mark.slow
def test_the_same_on_a_cluster(cluster: RedisClusterServers, tmp_path: Path) -> None:
    check(fan_out(cluster.url, f"fan-out{os.getpid()}", tmp_path, MESSAGES, consumers=CONSUMERS, kills=KILLS))


@pytest.mark.slow
def test_with_owners_the_order_is_kept_too(
    redis_url: str, make_topic: MakeTopic, zookeeper: ZooKeeperEnsemble, tmp_path: Path
) -> None:
    topic = make_topic(TopicType.STREAM, checked=False, slots=8)
    there = zookeeper.hosts, f"/{topic.name}"
    played = fan_out(redis_url, topic.name, tmp_path, MESSAGES, consumers=CONSUMERS, kills=KILLS, zookeeper=there)
    check(played)
    assert {group: result.swapped for group, result in played.groups.items()} == dict.fromkeys(played.groups, 0)


CRASHING = """
import os, signal, sys
from rmq import RmqClient
url, topic, ledger, step = sys.argv[1:]
file = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
with RmqClient(url) as client, client.consumer(client.topic(topic), group="g") as consumer:
    for place, delivery in enumerate(consumer.poll(50, 50)):
        if place == 20 and step == "read":
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(file, f"{delivery.text}\\n".encode())
        if place == 20 and step == "handled":
            os.kill(os.getpid(), signal.SIGKILL)
        delivery.ack()
        if place == 20 and step == "acked":
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_group_that_is_killed_at_every_step_loses_nothing(
    redis_url: str, client: RmqClient, make_topic: MakeTopic, redis_client: object, tmp_path: Path
) -> None:
    topic: Topic = make_topic(
        TopicType.STREAM, checked=False, slots=2, lease=timedelta(seconds=4), retry=ImmediateRetry()
    )
    client.producer(topic).send_many(StreamMessage(f"m{number}") for number in range(200))
    client.stream(topic).add_group("g", "all")
    ledger = tmp_path / "ledger"
    for step in ("read", "handled", "acked"):
        run = subprocess.run([sys.executable, "-c", CRASHING, redis_url, topic.name, str(ledger), step], check=False)
        assert run.returncode == -9, step
    handled = Counter(ledger.read_text().split())
    assert client.stream(topic).group("g").total("acked") == 20 + 20 + 21
    with client.consumer(topic, group="g") as consumer:
        while client.stream(topic).group("g").total("acked") < 200:
            for delivery in consumer.poll(100, 2.0):
                handled[delivery.text] += 1
                assert delivery.ack()
    assert set(handled) == {f"m{number}" for number in range(200)}
    assert sum(handled.values()) == 201, "only what was handled and not acked comes again"
    check_stream(client, redis_client, topic)
