"""Spark beside workers that own slots through a real ZooKeeper: it refuses their topics, at once or when they come."""

from __future__ import annotations

import os
import threading
from collections import Counter
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from rmq import Coordinator, Delivery, PriorityMessage, RmqClient, Topic, TopicType
from tests.conftest import Coordinate
from tests.spark.sessions import stream_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

LIMIT_S = 150
NUMBER = 100
REFUSED = "has workers that own its slots, but this query has no option owners or zookeeper"
numbers = count(1)


class Worker:
    """A worker that owns the slots of one topic, and acks all it gets."""

    def __init__(self, client: RmqClient, coordinator: Coordinator, topic: Topic) -> None:
        self._client = RmqClient(client.url, zookeeper=coordinator)
        self.handled: list[str] = []
        self._client.listener(topic)(self._handle)

    def _handle(self, delivery: Delivery) -> None:
        self.handled.append(delivery.text)

    def __enter__(self) -> Worker:
        self._client.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()


@pytest.fixture
def topic(spark_client: RmqClient) -> Topic:
    topic = Topic(f"owned-{os.getpid()}-{next(numbers)}", TopicType.PRIORITY, slots=2, lease=timedelta(seconds=3))
    spark_client.producer(topic)
    return topic


def fill(client: RmqClient, topic: Topic, first: int = 0) -> list[str]:
    contents = [f"m{i}" for i in range(first, first + NUMBER)]
    client.producer(topic).send_many(PriorityMessage(content, 1_000) for content in contents)
    return contents


def test_a_query_refuses_a_topic_that_has_an_owner_and_looking_does_not(
    spark: SparkSession, spark_client: RmqClient, coordinate: Coordinate, topic: Topic, tmp_path: Path
) -> None:
    sent = fill(spark_client, topic)
    with Worker(spark_client, coordinate(), topic) as worker:
        wait_until(lambda: len(worker.handled) == NUMBER, LIMIT_S)
        stream = stream_of(spark, spark_client.url, topic.name).writeStream.foreachBatch(never)
        query = stream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        with pytest.raises(StreamingQueryException, match=REFUSED):
            query.awaitTermination(LIMIT_S)
        assert Counter(worker.handled) == Counter(sent)
    later = fill(spark_client, topic, NUMBER)
    reader = spark.read.format("rmq").option("url", spark_client.url).option("topic", topic.name)
    assert {bytes(row.content).decode() for row in reader.load().collect()} == set(later)


def test_an_owner_that_comes_later_ends_the_query_and_waits_for_its_leases(
    spark: SparkSession, spark_client: RmqClient, coordinate: Coordinate, topic: Topic, tmp_path: Path
) -> None:
    sent = fill(spark_client, topic)
    claimed, owned = threading.Event(), threading.Event()

    def write(frame: DataFrame, number: int) -> None:
        assert frame.count() == NUMBER
        claimed.set()
        assert owned.wait(LIMIT_S)

    stream = stream_of(spark, spark_client.url, topic.name).writeStream.foreachBatch(write)
    query = stream.option("checkpointLocation", str(tmp_path)).start()
    try:
        wait_until(lambda: claimed.is_set() or not query.isActive, LIMIT_S)
        assert query.exception() is None
        more = fill(spark_client, topic, NUMBER)
        with Worker(spark_client, coordinate(), topic) as worker:
            wait_until(lambda: set(more) <= set(worker.handled), LIMIT_S)
            owned.set()
            with pytest.raises(StreamingQueryException, match=REFUSED):
                query.awaitTermination(LIMIT_S)
            wait_until(lambda: len(worker.handled) >= 2 * NUMBER, LIMIT_S)
            assert Counter(worker.handled) == Counter(sent + more), "Spark's ack was refused: nothing is lost"
    finally:
        owned.set()
        query.stop()
    stats = spark_client.inspect(topic).stats()
    assert (stats.backlog, stats.in_flight, stats.dead, stats.unaccounted) == (0, 0, 0, 0)
    assert stats.total("acked") == 2 * NUMBER
    assert stats.total("expired") == NUMBER, "the owner waited for the leases of what Spark held"


def never(frame: DataFrame, number: int) -> None:
    pytest.fail("a batch of a topic that has owners")
