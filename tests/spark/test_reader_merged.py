"""The reader, the source and the jobs on topics that merge: every value, and how many sends it stands for, once."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from rmq import (
    PER_MESSAGE,
    Collect,
    JoinMessage,
    Keep,
    Max,
    Merge,
    Newest,
    PriorityMessage,
    RangeMergeMessage,
    RmqClient,
    Sliding,
    Sum,
    Topic,
    TopicType,
)
from rmq.spark.jobs import dead_audit
from rmq.spark.jobs.dead_audit import DeadAuditSettings
from rmq.spark.jobs.redrive import Again
from rmq.spark.jobs.replay import ReplaySettings
from rmq.spark.jobs.replay import run as replay
from rmq.spark.schema import DEAD, QUEUE
from tests.spark.merging import Value, read_of, stored
from tests.spark.sessions import stream_of
from tests.support.core import Reducer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

LIMIT_S = 120
numbers = count(1)


def topic_of(reducer: Reducer | None, kind: TopicType = TopicType.PRIORITY, **settings: Any) -> Topic:
    merge = {name: settings.pop(name) for name in ("window", "max_count") if name in settings}
    merging = None if reducer is None else Merge(reducer, **merge)
    return Topic(f"readm-{next(numbers)}", kind, **{"slots": 2, "merge": merging, **settings})


def send(client: RmqClient, topic: Topic, bodies: dict[str, list[Any]], **more: Any) -> None:
    producer = client.producer(topic)
    for content, values in bodies.items():
        for value in values:
            producer.send(PriorityMessage(content, 5_000, body=value, **more))


def told(row: Row, *names: str) -> tuple[Any, ...]:
    return tuple(bytes(row[name]) if isinstance(row[name], bytearray) else row[name] for name in names)


def test_each_place_shows_its_own_values(spark: SparkSession, spark_client: RmqClient) -> None:
    topic, url = topic_of(Sum(), slots=1, max_retries=3), spark_client.url
    began = datetime.now(UTC) - timedelta(seconds=5)
    with spark_client.consumer(topic) as consumer:

        def taken(content: str, value: int) -> Any:
            send(spark_client, topic, {content: [value, 1]})
            [delivery] = consumer.poll(max_messages=1, timeout=10)
            return delivery

        taken("waits", 10).nack(delay="600ms")
        taken("dies", 20).bury(ValueError("no"))
        held = taken("held", 30)
        send(spark_client, topic, {"held": [7], "fresh": [40, 2.5]})
        names = ("content", "value", "merged", "body")
        frames = {queue: read_of(spark, url, topic, queue) for queue in ("backlog", "inflight", "waiting", "dead")}
        found = {queue: {told(row, *names) for row in frame.collect()} for queue, frame in frames.items()}
        assert found == {
            "backlog": {(b"held", 7.0, 1, b"7"), (b"fresh", 42.5, 2, b"42.5")},
            "inflight": {(b"held", 31.0, 2, b"31")},
            "waiting": {(b"waits", 11.0, 2, b"11")},
            "dead": {(b"dies", 21.0, 2, b"21")},
        }
        for frame in frames.values():
            for row in frame.select(F.unix_millis("first_sent"), F.unix_millis("last_sent")).collect():
                assert began.timestamp() * 1_000 <= row[0] <= row[1] <= (time.time() + 5) * 1_000
        held.ack()


def test_each_reducer_has_its_columns(spark: SparkSession, spark_client: RmqClient) -> None:
    url, more = spark_client.url, ["merged", "first_sent", "last_sent"]
    for reducer, columns in (
        (None, []),
        (Keep(), more),
        (Newest(), [*more, "version"]),
        (Max(), [*more, "value"]),
        (Collect(), [*more, "items"]),
    ):
        topic = topic_of(reducer)
        spark_client.producer(topic)
        assert read_of(spark, url, topic).schema.names == [*QUEUE.names, *columns]
        assert read_of(spark, url, topic, "dead").schema.names == [*DEAD.names, *columns]
        assert stream_of(spark, url, topic.name).schema.names == [*QUEUE.names, *columns]
        assert read_of(spark, url, topic).count() == 0
    lists, newest = topic_of(Collect()), topic_of(Newest())
    send(spark_client, lists, {"a": ["x", ("y", "z")]})
    send(spark_client, newest, {"a": ["new"]}, version=7)
    send(spark_client, newest, {"a": ["old"]}, version=3)
    [row] = read_of(spark, url, lists).collect()
    assert (row["body"], [bytes(item) for item in row["items"]], row["merged"]) == (None, [b"x", b"y", b"z"], 2)
    [row] = read_of(spark, url, newest).collect()
    assert told(row, "body", "version", "merged") == (b"new", 7, 2)
    window: dict[str, Any] = {"window": Sliding(max_wait="1h"), "max_count": PER_MESSAGE}
    joins = topic_of(Collect(unique=True), TopicType.RANGE_MERGE, **window)
    spark_client.producer(joins).send(JoinMessage("order", "invoice", 3))
    [row] = read_of(spark, url, joins).collect()
    assert ([bytes(item) for item in row["items"]], row["wanted"]) == ([b"invoice"], 3)
    with pytest.raises(AnalysisException, match="nobody-sends-here is not registered"):
        read_of(spark, url, Topic("nobody-sends-here", TopicType.PRIORITY))


class Drain:
    """A query whose sink remembers what each batch had: a batch that is run again overwrites it."""

    def __init__(self, spark: SparkSession, url: str, topic: Topic, folder: Path) -> None:
        self._spark, self._url, self._topic, self._folder = spark, url, topic, folder
        self.batches: dict[int, dict[bytes, tuple[float, int, tuple[bytes, ...]]]] = {}

    def run(self, also: Callable[[int], None] = lambda number: None, **options: object) -> None:
        def write(frame: DataFrame, number: int) -> None:
            rows = frame.collect()
            assert frame.collect() == rows
            self.batches[number] = {
                bytes(row["content"]): (
                    row["value"] if "value" in row else 0,
                    row["merged"],
                    tuple(map(bytes, row["items"])) if "items" in row else (),
                )
                for row in rows
            }
            also(number)

        stream = stream_of(self._spark, self._url, self._topic.name, **options)
        writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(self._folder))
        assert writer.trigger(availableNow=True).start().awaitTermination(LIMIT_S)

    def total(self) -> tuple[float, int]:
        rows = [row for batch in self.batches.values() for row in batch.values()]
        return sum(value for value, _, _ in rows), sum(merged for _, merged, _ in rows)

    def items(self) -> list[bytes]:
        return [item for batch in self.batches.values() for _, _, items in batch.values() for item in items]


@pytest.fixture
def drain(spark: SparkSession, spark_client: RmqClient, tmp_path: Path) -> Callable[[Topic], Drain]:
    return lambda topic: Drain(spark, spark_client.url, topic, tmp_path / "checkpoint")


@pytest.mark.parametrize("reducer", [Sum(), Collect()], ids=repr)
def test_a_query_that_fails_and_restarts_sees_each_send_once(
    spark_client: RmqClient, drain: Callable[[Topic], Drain], reducer: Reducer
) -> None:
    topic = topic_of(reducer)
    producer, query, sent = spark_client.producer(topic), drain(topic), count()

    def more(number: int) -> None:
        messages = [next(sent) for _ in range(number)]
        body = str if isinstance(reducer, Collect) else int
        producer.send_many(PriorityMessage(f"c{i % 40}", 5_000, body=body(i)) for i in messages)

    fails = {0, 2}

    def write(number: int) -> None:
        more(60)  # beside what the batch holds
        if number in fails:
            fails.remove(number)
            raise ValueError("can't digest this")

    more(400)
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="digest"):
            query.run(write, maxMessagesPerTrigger=15)
    assert not fails
    query.run()
    number = next(sent)
    if isinstance(reducer, Sum):
        assert query.total() == (sum(range(number)), number)
    else:
        assert sorted(map(int, query.items())) == list(range(number))
        assert query.total()[1] == number
    stats = spark_client.inspect(topic).stats()
    assert (stats.backlog, stats.in_flight, stats.waiting, stats.dead, stats.unaccounted) == (0, 0, 0, 0, 0)


def test_of_a_batch_that_fails_too_often_the_last_message_dies_with_its_value(
    spark: SparkSession, spark_client: RmqClient, drain: Callable[[Topic], Drain]
) -> None:
    topic = topic_of(Sum(), slots=1)
    send(spark_client, topic, {f"c{i}": [i, 100] for i in range(6)})
    query = drain(topic)

    def fail(number: int) -> None:
        if b"c0" in query.batches[number]:
            send(spark_client, topic, {"c0": [1_000]})
            del query.batches[number]
            raise ValueError("can't digest this")

    failed = 0
    while spark_client.inspect(topic).stats().dead == 0:
        try:
            query.run(fail, maxReplays=1)
        except StreamingQueryException:
            failed += 1
        assert failed < 10
    [dead] = read_of(spark, spark_client.url, topic, "dead").collect()
    value, merged = dead["value"], dead["merged"]
    assert bytes(dead["content"]) == b"c0"
    assert value == 100 + 1_000 * (merged - 2)
    query.run()
    assert query.total()[0] + value == sum(range(6)) + 600 + 1_000 * failed
    assert spark_client.inspect(topic).stats().unaccounted == 0


def bury(client: RmqClient, topic: Topic, number: int) -> None:
    with client.consumer(topic) as consumer:
        left = number
        while left:
            for delivery in consumer.poll(max_messages=100, timeout=10):
                delivery.bury(ValueError("no"))
                left -= 1


def test_the_dead_keep_value_count_and_times_when_they_are_redriven(
    spark: SparkSession, spark_client: RmqClient, tmp_path: Path
) -> None:
    sums, lists, plain = topic_of(Sum()), topic_of(Collect()), topic_of(None)
    send(spark_client, sums, {f"c{i}": [i, 100] for i in range(6)})
    send(spark_client, lists, {f"c{i}": [f"{i}", f"{i}b"] for i in range(3)})
    send(spark_client, plain, {"c0": ["body"]})
    for topic, number in ((sums, 6), (lists, 3), (plain, 1)):
        bury(spark_client, topic, number)
    times = stamps(spark, spark_client, sums, "dead")
    send(spark_client, sums, {"c1": [1_000]})
    names, rows = (sums.name, lists.name, plain.name), str(tmp_path / "rows")
    settings = DeadAuditSettings(
        names, spark_client.url, where="value > 100 or topic <> '" + sums.name + "'", rows=rows
    )
    assert dead_audit.run(spark, settings).chosen == 9
    kept = {(row["topic"], bytes(row["content"])): row for row in spark.read.parquet(rows).collect()}
    assert (kept[sums.name, b"c5"]["value"], kept[sums.name, b"c5"]["merged"]) == (105.0, 2)
    assert [bytes(item) for item in kept[lists.name, b"c2"]["items"]] == [b"2", b"2b"]
    again = DeadAuditSettings(names[:2], spark_client.url, where="true", redrive=True, again=Again())
    assert {name: counts.new + counts.merged for name, counts in dead_audit.run(spark, again).redriven.items()} == {
        sums.name: 6,
        lists.name: 3,
    }
    expected = {b"c%d" % i: Value(2, i + 100, None, ()) for i in range(6)} | {b"c1": Value(3, 1_101, None, ())}
    assert stored(spark_client, sums) == expected
    assert stored(spark_client, lists)[b"c2"].items == (b"2", b"2b")
    now = stamps(spark, spark_client, sums, "backlog")
    assert {name: stamp for name, stamp in now.items() if name != b"c1"} == {
        name: stamp for name, stamp in times.items() if name != b"c1"
    }


def stamps(spark: SparkSession, client: RmqClient, topic: Topic, queue: str) -> dict[bytes, tuple[int, int]]:
    frame = read_of(spark, client.url, topic, queue)
    rows = frame.select("content", F.unix_micros("first_sent"), F.unix_micros("last_sent")).collect()
    return {bytes(row[0]): (row[1], row[2]) for row in rows}


@pytest.mark.parametrize(
    "reducer",
    [
        *(Sum(), Newest(), Collect()),
        # these have the columns of others: test_each_reducer_has_its_columns, tests/spark/test_sink_folds.py
        *(pytest.param(each, marks=pytest.mark.long) for each in (Max(), Keep(), Collect(unique=True))),
    ],
    ids=repr,
)
def test_an_archive_is_replayed_with_values_and_counts(
    spark: SparkSession, spark_client: RmqClient, tmp_path: Path, reducer: Reducer
) -> None:
    topic, again, archive = topic_of(reducer), topic_of(reducer), str(tmp_path / "archive")
    spark_client.producer(again)
    version = {"version": 3} if isinstance(reducer, Newest) else {}
    number = isinstance(reducer, Sum | Max)
    send(spark_client, topic, {f"c{i}": [i, 100] if number else [f"{i}", f"{i}b"] for i in range(30)}, **version)
    before = stored(spark_client, topic)
    read_of(spark, spark_client.url, topic).withColumn("drained", F.current_timestamp()).write.parquet(archive)
    more: dict[str, Any] = {"archive": archive, "time_column": "drained", "from_topic": topic.name}
    today = spark.read.parquet(archive).select(F.to_date("drained")).first()
    assert today is not None
    settings = ReplaySettings(again.name, date.fromisoformat(str(today[0])), spark_client.url, Again(rate=1e6), **more)
    for sent, skipped in ((30, 0), (0, 30)):
        report = replay(spark, settings)
        assert (report.sent, report.skipped, report.resumable) == (sent, skipped, True)
        assert stored(spark_client, again) == before


def test_a_message_that_is_due_waits_for_no_spark(spark_client: RmqClient, drain: Callable[[Topic], Drain]) -> None:
    topic = topic_of(Sum(), TopicType.RANGE_MERGE, window=Sliding("200ms", max_wait="1s"))
    spark_client.producer(topic).send_many(RangeMergeMessage(f"c{i % 3}", body=1) for i in range(30))
    wait_until(lambda: spark_client.inspect(topic).stats().due_now == 3, LIMIT_S)
    query = drain(topic)
    query.run()
    assert query.batches == {0: {b"c%d" % i: (10.0, 10, ()) for i in range(3)}}
