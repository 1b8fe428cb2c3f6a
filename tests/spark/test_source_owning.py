"""A query in a real Spark that owns slots through a real ZooKeeper, beside plain workers; killed, stopped, started."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from rmq import Coordinator, Delivery, PriorityMessage, RmqClient, Topic, TopicType
from tests.spark.sessions import stream_of
from tests.spark.test_source_kill import Killed
from tests.support.waiting import wait_until
from tests.support.zookeeper import ZooKeeperEnsemble

pytestmark = pytest.mark.slow

LIMIT_S = 150
NUMBER = 400
LONG_S = 600  # a session that no test waits for
numbers = count(1)


class Turns:
    """Who had which slot, and when; and which contents."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self.all: list[tuple[str, int, float, float]] = []
        self.contents: list[str] = []

    def note(self, who: str, contents: list[str], began_s: float) -> None:
        ended_s = time.monotonic()
        self.contents += contents
        slots = {self._topic.slot_of(content.encode()) for content in contents}
        self.all += [(who, slot, began_s, ended_s) for slot in slots]

    def slots_of(self, who: str) -> set[int]:
        return {slot for name, slot, _, _ in self.all if name == who}

    def overlaps(self) -> int:
        return sum(
            one[1] == other[1] and one[0] != other[0] and one[2] < other[3] and other[2] < one[3]
            for number, one in enumerate(self.all)
            for other in self.all[:number]
        )


class Place:
    """A chroot of a test's own, and a plain worker there."""

    def __init__(self, client: RmqClient, servers: ZooKeeperEnsemble, topic: Topic, session_s: int) -> None:
        self._client, self._servers, self.topic, self._session_s = client, servers, topic, session_s
        self.chroot = f"/spark-{os.getpid()}-{random.randrange(10**9)}"
        self.turns = Turns(topic)

    @property
    def options(self) -> dict[str, Any]:
        own = {"zookeeper": self._servers.hosts, "zookeeperChroot": self.chroot}
        return {**own, "zookeeperSessionSeconds": self._session_s}

    @contextmanager
    def worker(self) -> Iterator[None]:
        coordinator = Coordinator(self._servers.hosts, chroot=self.chroot, session_timeout_s=self._session_s)
        with RmqClient(self._client.url, zookeeper=coordinator) as client:

            @client.listener(self.topic, batch=20)
            def handle(deliveries: list[Delivery]) -> None:
                began_s = time.monotonic()
                time.sleep(0.01)
                self.turns.note("worker", [each.text for each in deliveries], began_s)

            client.start()
            yield

    def drained(self) -> bool:
        stats = self._client.inspect(self.topic).stats()
        return stats.backlog + stats.in_flight + stats.waiting == 0


def send(client: RmqClient, topic: Topic, name: str) -> list[str]:
    contents = [f"{name}{n}" for n in range(NUMBER)]
    client.producer(topic).send_many(PriorityMessage(content, 1_000) for content in contents)
    return contents


def test_a_query_shares_slots_with_a_worker_that_joins_and_leaves_and_gives_them_back_at_its_end(
    spark: SparkSession, spark_client: RmqClient, zookeeper: ZooKeeperEnsemble, tmp_path: Path
) -> None:
    topic = Topic(f"owning-{os.getpid()}", TopicType.PRIORITY, slots=4, lease=timedelta(seconds=5))
    place = Place(spark_client, zookeeper, topic, LONG_S)
    sent = send(spark_client, topic, "alone")

    def write(frame: DataFrame, number: int) -> None:
        began_s = time.monotonic()
        place.turns.note("spark", [bytes(row.content).decode() for row in frame.collect()], began_s)

    stream = stream_of(spark, spark_client.url, topic.name, maxMessagesPerTrigger=100, minPartitions=8, **place.options)
    query = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path)).start()
    try:
        wait_until(lambda: place.drained() or not query.isActive, LIMIT_S)
        assert query.exception() is None
        assert place.turns.slots_of("spark") == {0, 1, 2, 3}
        with place.worker():
            for name in ("b", "c", "d"):
                sent += send(spark_client, topic, name)
                wait_until(place.drained, LIMIT_S)
            assert len(place.turns.slots_of("worker")) == 2, "a fair share"
        place.turns.all.clear()
        sent += send(spark_client, topic, "e")
        wait_until(place.drained, LIMIT_S)
        assert place.turns.slots_of("spark") == {0, 1, 2, 3}, "all slots again"
        with place.worker():
            query.stop()
            place.turns.all.clear()
            sent += send(spark_client, topic, "f")
            wait_until(place.drained, LIMIT_S)
            assert place.turns.slots_of("worker") == {0, 1, 2, 3}, "at once, and not when the session ends"
    finally:
        query.stop()
    assert place.turns.overlaps() == 0
    assert Counter(place.turns.contents) == Counter(sent), "nothing lost, nothing twice"
    stats = spark_client.inspect(topic).stats()
    assert (stats.dead, stats.unaccounted, stats.total("expired")) == (0, 0, 0)


@pytest.fixture
def killed(spark_client: RmqClient, tmp_path: Path) -> Killed:
    return Killed(spark_client, tmp_path, lease=timedelta(seconds=5))


def test_after_a_kill_the_restart_reads_the_same_rows(
    spark_client: RmqClient, zookeeper: ZooKeeperEnsemble, killed: Killed
) -> None:
    place = Place(spark_client, zookeeper, killed.topic, 2)
    options = {"maxMessagesPerTrigger": 1_000, **place.options}
    killed.kill_at("written 0", stall="written", options=options)
    before = Counter(killed.written(0))
    assert before.total() == 1_000
    killed.finish(options=options)
    assert Counter(killed.written(0)) == before
    assert Counter(killed.written()) == Counter(killed.sent), "nothing lost, no duplicates"
    killed.check_empty()


def test_after_a_kill_a_worker_has_the_slots_and_the_restart_leaves_them_to_it(
    spark_client: RmqClient, zookeeper: ZooKeeperEnsemble, killed: Killed
) -> None:
    place = Place(spark_client, zookeeper, killed.topic, 2)
    options = {"maxMessagesPerTrigger": 1_000, **place.options}
    killed.kill_at("written 0", stall="written", options=options)
    with place.worker():
        wait_until(place.drained, LIMIT_S)
        assert Counter(place.turns.contents) == Counter(killed.sent), "each once, after the leases"
        more = send(spark_client, killed.topic, "more")
        killed.finish(options=options)
        wait_until(place.drained, LIMIT_S)
    assert killed.written(0) == [], "its rows are the worker's"
    assert Counter(place.turns.contents + killed.written()) == Counter([*killed.sent, *more])
    killed.check_empty()
