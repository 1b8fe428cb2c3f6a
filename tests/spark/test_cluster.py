"""Sinks, batch reader and streaming source on a Redis Cluster, one of whose masters dies in the middle of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from zlib import crc32

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.streaming.query import StreamingQuery

from rmq import PriorityMessage, RmqClient, Topic, TopicType
from rmq.spark.jobs.dead_audit import DeadAuditSettings
from rmq.spark.jobs.dead_audit import run as run_audit
from rmq.spark.jobs.redrive import Again
from rmq.spark.options import Options
from rmq.spark.schema import QUEUE
from rmq.spark.sink.sender import Counts
from rmq.spark.source.reader import RmqStreamReader
from tests.spark.dead_letters import accounts, kill
from tests.spark.frames import sink_of, stored
from tests.spark.sessions import stream_of
from tests.support.core import slot_keys
from tests.support.servers import RedisServer
from tests.support.topologies import RedisClusterServers
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

LIMIT_S = 150
NUMBER = 3_000
numbers = count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisClusterServers]:
    """Three masters, each with a replica; what they have confirmed they still have after a kill."""
    with RedisClusterServers(3, 1, config=("appendfsync always",)) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: RedisClusterServers) -> Iterator[RmqClient]:
    cluster.wait_whole(60)
    with RmqClient(cluster.url, deadline_s=60.0) as client:
        yield client


def topic_of(name: str) -> Topic:
    return Topic(f"cluster-{name}-{next(numbers)}", TopicType.PRIORITY, slots=16, lease=timedelta(seconds=10))


def test_a_batch_is_written_to_and_read_from_all_nodes(
    spark: SparkSession, cluster: RedisClusterServers, client: RmqClient
) -> None:
    topic = topic_of("batch")
    frame = spark.range(NUMBER).selectExpr("concat('m', id) content", "id + 100 priority")
    sink_of(frame, client.url, topic).save()
    assert stored(client, topic) == {b"m%d" % i: (crc32(b"m%d" % i) % 16, i + 100, None) for i in range(NUMBER)}
    assert len({cluster.owner(slot_keys(topic.name, slot).store).port for slot in range(topic.slots)}) == 3
    reader = spark.read.format("rmq").option("url", client.url).option("topic", topic.name)
    sizes = {row.slot: row["count"] for row in reader.load().groupBy("slot").count().collect()}
    keys = {slot: slot_keys(topic.name, slot).store for slot in range(topic.slots)}
    assert sizes == {slot: cluster.ask(cluster.owner(key), "ZCARD", key) for slot, key in keys.items()}


def test_the_dead_of_all_nodes_are_counted_and_redriven_at_a_rate(spark: SparkSession, client: RmqClient) -> None:
    topic = topic_of("dead")
    kill(client, topic, [f"m{i}" for i in range(200)], TimeoutError("late"))
    kill(client, topic, ["based"], ValueError("wrong"), basis="customer 7")
    again = Again(priority=900, rate=1_000.0)
    settings = DeadAuditSettings((topic.name,), client.url, "text <> 'm7'", redrive=True, again=again)
    report = run_audit(spark, settings)
    assert (report.found, report.chosen) == (201, 200)
    assert report.redriven == {topic.name: Counts(rows=200, new=200)}
    assert stored(client, topic) == {
        name: (crc32(basis) % 16, 900, b"body of " + name)
        for name, basis in [*((b"m%d" % i, b"m%d" % i) for i in range(200) if i != 7), (b"based", b"customer 7")]
    }
    assert accounts(client, topic) == (201, 201)


def test_a_node_that_hangs_does_not_keep_the_leases_on_the_others_from_being_renewed(
    cluster: RedisClusterServers, client: RmqClient
) -> None:
    topic = Topic(f"cluster-hang-{next(numbers)}", TopicType.PRIORITY, slots=128, lease=timedelta(seconds=6))
    client.producer(topic).send_many(PriorityMessage(f"m{i}", 1_000) for i in range(NUMBER))
    reader = RmqStreamReader(QUEUE, Options(client.url, topic=topic.name))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert sum(found.num_rows for part in reader.partitions(start, end) for found in reader.read(part)) == NUMBER
    server = busiest(cluster, topic)
    prepares = [slot_keys(topic.name, slot).prepare for slot in range(topic.slots)]
    owners = {cluster.owner(key): key for key in prepares}
    replicas = [each for each in cluster.servers if each not in owners]
    del owners[server]

    def oldest_claim_s() -> float:
        scores: list[float] = []
        for owner, key in owners.items():
            with owner.connect() as one:
                scores.append(float(one.zrange(key, 0, 0, withscores=True)[0][1]))
        return min(scores) / 1_000

    began_s = oldest_claim_s()
    for each in (server, *replicas):  # with a replica to take over, it would only hang for a moment
        each.pause()
    try:
        wait_until(lambda: oldest_claim_s() > began_s + 15, LIMIT_S)
    finally:
        for each in (server, *replicas):
            each.resume()
        reader.stop()


class Job:
    """A query that drains one topic of a cluster into another, in batches of a tenth."""

    def __init__(self, spark: SparkSession, client: RmqClient, folder: Path) -> None:
        self.client, self.source, self.target = client, topic_of("from"), topic_of("to")
        self.sent = {b"m%d" % i for i in range(NUMBER)}
        messages = (PriorityMessage(content, 1_000) for content in sorted(self.sent))
        client.producer(self.source).send_many(messages)
        client.producer(self.target)
        stream = stream_of(spark, client.url, self.source.name, maxMessagesPerTrigger=NUMBER // 10, deadlineSeconds=60)
        writer = stream.writeStream.format("rmq").option("url", client.url).option("topic", self.target.name)
        writer = writer.option("idempotent", "true").option("checkpointLocation", str(folder / "checkpoint"))
        self.query: StreamingQuery = writer.start()

    def acked(self) -> int:
        return self.client.inspect(self.source).stats().total("acked")

    def arrived(self) -> int:
        return self.client.inspect(self.target).stats().backlog

    def wait_for(self, condition: Callable[[], bool]) -> None:
        wait_until(lambda: condition() or not self.query.isActive, LIMIT_S)
        assert self.query.exception() is None

    def finish(self) -> None:
        """Wait until all has arrived, and nothing is left."""
        view = self.client.inspect(self.source)
        self.wait_for(lambda: (stats := view.stats()).backlog + stats.in_flight + stats.waiting == 0)
        self.query.stop()
        assert set(stored(self.client, self.target)) == self.sent
        stats = view.stats()
        assert (stats.dead, stats.unaccounted) == (0, 0)


def busiest(cluster: RedisClusterServers, topic: Topic) -> RedisServer:
    """The master of a topic's slot 0."""
    return cluster.owner(slot_keys(topic.name, 0).store)


def test_a_master_is_killed_and_comes_back(
    spark: SparkSession, cluster: RedisClusterServers, client: RmqClient, tmp_path: Path
) -> None:
    job = Job(spark, client, tmp_path)
    job.wait_for(lambda: job.acked() >= NUMBER // 10)
    server = busiest(cluster, job.source)
    server.kill()
    server.start()
    assert job.acked() < NUMBER, "it came in the middle"
    job.finish()
    assert job.acked() == NUMBER


def test_a_master_is_killed_and_its_replica_takes_over(
    spark: SparkSession, cluster: RedisClusterServers, client: RmqClient, tmp_path: Path
) -> None:
    job = Job(spark, client, tmp_path)
    job.wait_for(lambda: job.acked() >= NUMBER // 10)
    server = busiest(cluster, job.source)
    try:
        cluster.kill_and_replace(server)
        wait_until(lambda: cluster.find_owner(slot_keys(job.source.name, 0).store) not in (None, server), LIMIT_S)
        job.finish()
    finally:
        server.start()
