"""The batch reader in a real Spark, against what the core client counts and finds."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from rmq import FixedTimeMessage, PriorityMessage, RmqClient, StreamMessage, Topic, TopicType
from rmq.spark.batch_reader import RmqReader
from rmq.spark.options import Options
from rmq.spark.schema import QUEUE
from tests.support.core import EncodedMessage, QueueBroker, wrap
from tests.support.servers import RedisServer

numbers = count(1)
SETTING = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def topic(spark_client: RmqClient) -> Topic:
    """2,000 in the backlog, 20 in flight, 5 waiting, 7 dead."""
    topic = Topic(f"read-{next(numbers)}", TopicType.PRIORITY, slots=8)
    producer = spark_client.producer(topic)
    producer.send_many(PriorityMessage(f"m{i}", 1_000 + i, body=f"b{i}" if i % 2 else None) for i in range(2_032))
    with spark_client.consumer(topic) as consumer:
        held = [each for _ in range(4) for each in consumer.poll(max_messages=8, timeout=5)]
        for delivery in held[:7]:
            delivery.bury(ValueError("bad price"))
        for delivery in held[7:12]:
            delivery.nack(delay="1h")
    return topic


def frame_of(spark: SparkSession, client: RmqClient, topic: Topic, **options: object) -> DataFrame:
    reader: DataFrameReader = spark.read.format("rmq").option("url", client.url).option("topic", topic.name)
    for name, value in options.items():
        reader = reader.option(name, str(value).lower())
    return reader.load()


@pytest.mark.slow
@pytest.mark.parametrize("snapshot", ["scan", "atomic"])
def test_counts_are_those_of_redis_and_rows_those_that_were_sent(
    spark: SparkSession, spark_client: RmqClient, topic: Topic, snapshot: str
) -> None:
    stats = spark_client.inspect(topic).stats()
    frames = {
        queue: frame_of(spark, spark_client, topic, queue=queue, snapshot=snapshot)
        for queue in ("backlog", "inflight", "waiting", "dead")
    }
    rows = {queue: frame.collect() for queue, frame in frames.items()}
    sizes = {queue: len(found) for queue, found in rows.items()}
    assert sizes == {"backlog": stats.backlog, "inflight": 20, "waiting": 5, "dead": 7}
    assert stats.backlog == 2_000
    assert frames["backlog"].rdd.getNumPartitions() == topic.slots
    for row in rows["backlog"]:
        number = int(row.content[1:])
        assert (row.topic, row.slot) == (topic.name, topic.slot_of(bytes(row.content)))
        assert (row.priority, row.score >> 33, row.due, row.retries_left) == (1_000 + number,) * 2 + (None, None)
        assert row.body == (b"b%d" % number if number % 2 else None)
    assert {row.retries_left for row in rows["inflight"]} == {16}
    assert all(row.due is not None and row.priority is None for row in rows["inflight"] + rows["waiting"])
    assert {(row.error_type, row.error_message, row.attempts) for row in rows["dead"]} == {
        ("ValueError", "bad price", 1)
    }
    assert all(row.first_failed == row.died for row in rows["dead"])
    everything = [bytes(row.content) for found in rows.values() for row in found]
    assert sorted(everything) == sorted(b"m%d" % i for i in range(2_032))


def test_due_times_and_traced_bodies(spark: SparkSession, spark_client: RmqClient) -> None:
    topic = Topic(f"read-{next(numbers)}", TopicType.FIXED_TIME)
    due = datetime(2099, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    spark_client.producer(topic).send(FixedTimeMessage("a", due))
    traced = EncodedMessage(0, b"b", int(due.timestamp() * 1_000), wrap(b"body", "00-1-2-01"))
    QueueBroker(spark_client._connections, topic).send(0, [traced])
    rows = frame_of(spark, spark_client, topic).selectExpr("unix_millis(due) due", "body").collect()
    assert {(row.due, None if row.body is None else bytes(row.body)) for row in rows} == {
        (int(due.timestamp() * 1_000), None),
        (int(due.timestamp() * 1_000), b"body"),
    }


def test_slots_are_left_out_when_filters_are_pushed(spark: SparkSession, spark_client: RmqClient, topic: Topic) -> None:
    spark.conf.set(SETTING, "true")
    try:
        frame = frame_of(spark, spark_client, topic, pushdown=True)
        sizes = {
            row.slot: row["count"] for row in frame_of(spark, spark_client, topic).groupBy("slot").count().collect()
        }
        for condition, slots in (("slot = 3", {3}), ("slot in (1, 5)", {1, 5}), ("slot > 5 and slot <= 6", {6})):
            found = frame.where(condition)
            assert found.rdd.getNumPartitions() == len(slots)
            assert found.count() == sum(sizes[slot] for slot in slots)
        assert frame.where("slot = 99").count() == 0
        low = "priority < 1500"
        assert frame.where(low).count() == frame_of(spark, spark_client, topic).where(low).count() > 0
    finally:
        spark.conf.unset(SETTING)


def test_pushdown_without_sparks_setting_says_which(spark: SparkSession, spark_client: RmqClient, topic: Topic) -> None:
    with pytest.raises(Exception, match=SETTING.replace(".", r"\.")):
        frame_of(spark, spark_client, topic, pushdown=True).where("slot = 3").count()


@pytest.mark.slow
def test_what_was_read_can_be_written(spark: SparkSession, spark_client: RmqClient, topic: Topic) -> None:
    other = Topic(f"read-{next(numbers)}", TopicType.PRIORITY, slots=8)
    writer = frame_of(spark, spark_client, topic, queue="dead").write.format("rmq").mode("append")
    options: dict[str, Any] = {"topic": other.name, "type": "PRIORITY", "slots": 8, "priority": 50}
    writer.option("url", spark_client.url).options(**options).save()
    assert spark_client.inspect(other).stats().backlog == 7


def test_what_cannot_be_read_is_refused(spark: SparkSession, spark_client: RmqClient, topic: Topic) -> None:
    """Each mistake by itself, without a Spark: tests/integration/spark/test_spark_typing_errors.py."""
    with pytest.raises(Exception, match="atomicLimit, 10"):
        frame_of(spark, spark_client, topic, snapshot="atomic", atomicLimit=10).count()


def test_slots_share_partitions(spark_client: RmqClient, topic: Topic) -> None:
    reader = RmqReader(QUEUE, Options(spark_client.url, topic=topic.name, max_partitions=3))
    assert sorted(len(getattr(part, "slots")) for part in reader.partitions()) == [2, 3, 3]  # noqa: B009


@pytest.mark.slow
def test_a_stream_is_read_with_what_a_group_has_done(spark: SparkSession, spark_client: RmqClient) -> None:
    log = Topic(f"read-{next(numbers)}", TopicType.STREAM, slots=2)
    spark_client.producer(log).send_many(StreamMessage(f"e{n}", body=b"b") for n in range(100))
    with spark_client.consumer(log, group="mail", start="all") as consumer:
        for delivery in consumer.poll(max_messages=10, timeout=5):
            delivery.ack()
        held = consumer.poll(max_messages=5, timeout=5)
        frame = frame_of(spark, spark_client, log, statesOf="mail")
        states = {row["state"]: row["count"] for row in frame.groupBy("state").count().collect()}
        assert states == {"acked": 10, "in_flight": len(held), "unread": 90 - len(held)}
    plain = frame_of(spark, spark_client, log)
    assert plain.where("cast(fields['body'] as string) = 'b' and sent > '2020-01-01'").count() == 100
    copy = Topic(f"read-{next(numbers)}", TopicType.STREAM, slots=2)
    writer = plain.select("topic", "slot", "id", "sent", "only_group", "content", "body").write.format("rmq")
    writer.mode("append").options(url=spark_client.url, topic=copy.name, type="STREAM", slots=2).save()
    assert frame_of(spark, spark_client, copy).count() == 100


def test_large_bodies_are_read_although_one_page_holds_the_slot(spark_client: RmqClient) -> None:
    topic = Topic(f"read-{next(numbers)}", TopicType.PRIORITY, slots=1)
    spark_client.producer(topic).send_many(PriorityMessage(f"m{i}", 1_000, body=bytes(1 << 20)) for i in range(6))
    reader = RmqReader(QUEUE, Options(spark_client.url, topic=topic.name))
    found = [name for page in reader.read(reader.partitions()[0]) for name in page["content"].to_pylist()]
    assert sorted(found) == [b"m%d" % i for i in range(6)]


def test_a_scan_that_goes_on_after_a_restart_of_redis_misses_nothing() -> None:
    # each server has an order of its own: the cursor of another one means nothing to it
    with RedisServer(("appendonly yes", "appendfsync always")) as server, RmqClient(server.url) as client:
        topic = Topic("restarted", TopicType.PRIORITY)
        client.producer(topic).send_many(PriorityMessage(f"m{i}", 1_000) for i in range(3_000))
        reader = RmqReader(QUEUE, Options(server.url, topic=topic.name, chunk_size=100))
        pages = reader.read(reader.partitions()[0])
        found = [name for _ in range(15) for name in next(pages)["content"].to_pylist()]
        server.restart()
        found += [name for page in pages for name in page["content"].to_pylist()]
    assert sorted(found) == sorted(b"m%d" % i for i in range(3_000))
