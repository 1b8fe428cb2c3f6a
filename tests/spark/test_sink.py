"""The sinks in a real Spark: what the core client then finds."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from zlib import crc32

import pytest
from pyspark.sql import DataFrame, SparkSession

from rmq import RmqClient, Topic, TopicType
from rmq.spark import merged, with_slot
from tests.spark.frames import sink_of, stored
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

LIMIT_S = 120
numbers = count(1)


def topic_of(kind: TopicType = TopicType.PRIORITY, slots: int = 8, **settings: object) -> Topic:
    return Topic(f"sink-{next(numbers)}", kind, slots=slots, **settings)  # pyright: ignore[reportArgumentType]


def messages(spark: SparkSession, number: int, *more: str) -> DataFrame:
    return spark.range(number).selectExpr("concat('m', id) content", *more)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


@pytest.mark.parametrize("computed", [False, True])
def test_every_row_arrives_in_its_slot_byte_for_byte(
    spark: SparkSession, spark_client: RmqClient, computed: bool
) -> None:
    topic = topic_of(ties="any")
    binary = "concat(unhex(lpad(hex(id), 16, '0')), unhex('00ff'), cast(cast(id as string) as binary)) content"
    frame = spark.range(3_000).selectExpr(binary, "id + 100 priority", "if(id % 3 = 0, null, concat('ü', id)) body")
    sink_of(with_slot(frame, topic.slots) if computed else frame, spark_client.url, topic).save()
    expected: dict[bytes, tuple[int, int, bytes | None]] = {}
    for i in range(3_000):
        content = i.to_bytes(8) + b"\x00\xff" + str(i).encode()
        expected[content] = (crc32(content) % 8, i + 100, None if i % 3 == 0 else f"ü{i}".encode())
    assert stored(spark_client, topic) == expected


def test_times_come_as_intervals_timestamps_numbers_or_from_an_option(
    spark: SparkSession, spark_client: RmqClient
) -> None:
    url, now_ms = spark_client.url, int(time.time() * 1_000)
    for value, options in (("INTERVAL '1:30:00' HOUR TO SECOND time_range", {}), (None, {"time_range": "90m"})):
        topic = topic_of(TopicType.RANGE_MERGE)
        sink_of(messages(spark, 3, *([value] if value else [])), url, topic, **options).save()
        scores = [score for _, score, _ in stored(spark_client, topic).values()]
        assert len(scores) == 3
        assert all(0 <= score - 5_400_000 - now_ms < 600_000 for score in scores)
    due_ms = now_ms + 10**7
    for value in (f"{due_ms}L fixed_time", f"timestamp_micros({due_ms}000L - 999) fixed_time"):
        topic = topic_of(TopicType.FIXED_TIME)
        sink_of(messages(spark, 3, value), url, topic).save()
        assert {score for _, score, _ in stored(spark_client, topic).values()} == {due_ms}


def test_a_slot_basis_decides_the_slot_where_it_is_given(spark: SparkSession, spark_client: RmqClient) -> None:
    topic = topic_of()
    frame = messages(spark, 50, "100L priority", "if(id % 2 = 0, 'basis', null) slot_basis")
    sink_of(with_slot(frame, topic.slots), spark_client.url, topic).save()
    for content, (slot, _, _) in stored(spark_client, topic).items():
        basis = b"basis" if int(content[1:]) % 2 == 0 else content
        assert slot == crc32(basis) % topic.slots


def test_equal_contents_of_a_task_are_folded_before_they_are_sent(spark: SparkSession, spark_client: RmqClient) -> None:
    url, one = spark_client.url, spark.range(0, 3_000, 1, 1)
    last, first, none = topic_of(ties="any"), topic_of(TopicType.RANGE_MERGE), topic_of(ties="any")
    ranked = one.selectExpr("concat('m', id % 10) content", "id + 100 priority", "cast(id as string) body")
    sink_of(ranked, url, last, mergeRows=1_000).save()
    sink_of(ranked, url, none, merge="none").save()
    ranges = one.selectExpr("concat('m', id % 10) content", "10000000 - (id div 10) * 1000 time_range")
    now_ms = int(time.time() * 1_000)
    sink_of(ranges, url, first).save()
    assert stored(spark_client, last) == stored(spark_client, none)
    assert stored(spark_client, last)[b"m3"][1:] == (3_093, b"2993")
    accepted = [spark_client.inspect(topic).stats().total("accepted") for topic in (last, none, first)]
    assert accepted == [10, 3_000, 10]
    assert all(0 <= score - now_ms - 10_000_000 < 299_000 for _, score, _ in stored(spark_client, first).values())


def test_merged_folds_over_all_partitions(spark: SparkSession, spark_client: RmqClient) -> None:
    topic = topic_of(ties="any")
    frame = spark.range(0, 1_000, 1, 4).selectExpr("concat('m', id % 10) content", "2000 - id priority", "id")
    folded = merged(with_slot(frame, topic.slots), "PRIORITY", order_by="id").drop("id")
    sink_of(folded, spark_client.url, topic, merge="none").save()
    assert {content: score for content, (_, score, _) in stored(spark_client, topic).items()} == {
        b"m%d" % i: 2_000 - (990 + i) for i in range(10)
    }
    assert spark_client.inspect(topic).stats().total("accepted") == 10
    ranges = spark.createDataFrame(
        [("a", 50), ("a", 20), ("a", -1), ("b", None), ("b", 7)], "content string, time_range long"
    )
    assert {tuple(row) for row in merged(ranges, TopicType.RANGE_MERGE).collect()} == {("a", 20), ("b", 7)}
    ordered = ranges.selectExpr("*", "monotonically_increasing_id() id").where("time_range > 0")
    first = merged(ordered, TopicType.RANGE_MERGE, order_by="id").drop("id")
    assert {tuple(row) for row in first.collect()} == {("a", 50), ("b", 7)}


def test_entries_of_a_stream(spark: SparkSession, spark_client: RmqClient) -> None:
    url, plain, mapped = spark_client.url, topic_of(TopicType.STREAM), topic_of(TopicType.STREAM)
    one = spark.range(0, 30, 1, 1)
    sink_of(
        one.selectExpr("concat('m', id % 10) content", "cast(id as string) body", "'k' slot_basis"), url, plain
    ).save()
    slot = plain.slot_of(b"k")
    entries = list(spark_client.stream(plain).range(slots=[slot]))
    assert [(entry.content, entry.body) for entry in entries] == [(b"m%d" % (i % 10), b"%d" % i) for i in range(30)]
    sink_of(one.selectExpr("map('id', cast(id as string), 'x', 'y') fields"), url, mapped).save()
    found = list(spark_client.stream(mapped).range())
    assert sorted(int(entry.fields["id"]) for entry in found) == list(range(30))


def test_a_bad_row_ends_the_job_with_its_value_and_the_rule(spark: SparkSession, spark_client: RmqClient) -> None:
    topic = topic_of()
    frame = messages(spark, 10, "if(id = 7, 0L, 100L) priority")
    with pytest.raises(Exception, match=r"m7.*priority is 0; it must be a whole number from 1 to"):
        sink_of(frame, spark_client.url, topic).save()
    past = topic_of(TopicType.FIXED_TIME)
    with pytest.raises(Exception, match="fixed_time 5 is in the past: Redis' time"):
        sink_of(messages(spark, 1, "5L fixed_time"), spark_client.url, past).save()


def test_bad_rows_are_collected_with_their_reasons(
    spark: SparkSession, spark_client: RmqClient, tmp_path: Path
) -> None:
    url, folder = spark_client.url, str(tmp_path / "bad")
    topic = topic_of(max_content_bytes=10)
    spark_client.producer(topic)  # registers
    values = [("ok", 100), ("x" * 11, 100), ("", 100), (None, 100), ("low", 0), ("null", None)]
    frame = spark.createDataFrame(values, "content string, priority long")
    sink_of(frame, url, topic, badRows="collect", badRowsPath=folder).save()
    assert set(stored(spark_client, topic)) == {b"ok"}
    found = {row.content: row.reason for row in spark.read.parquet(folder).collect()}
    assert set(found) == {"x" * 11, "", None, "low", "null"}
    assert found["low"] == "priority is 0; it must be a whole number from 1 to 1048575"
    assert found["x" * 11] == "content has 11 bytes; it must have 1 to 10"

    timed, late = topic_of(TopicType.FIXED_TIME), str(tmp_path / "late")
    passed = spark.range(20).selectExpr("concat('m', id) content", "if(id < 5, 7L, 4000000000000L) fixed_time")
    sink_of(passed, url, timed, badRows="collect", badRowsPath=late).save()
    assert len(stored(spark_client, timed)) == 15
    rows = spark.read.parquet(late).collect()
    assert {(row.content, row.fixed_time) for row in rows} == {(f"m{i}", 7) for i in range(5)}
    assert all("is in the past" in row.reason for row in rows)


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ("'a' content", "column priority is missing"),
        ("'a' content, 100L priority, 1 slot", "slot is 1, but RMQ computes 3"),
    ],
    ids=["on the driver", "in a task"],
)
def test_what_does_not_fit_is_refused(spark: SparkSession, spark_client: RmqClient, columns: str, error: str) -> None:
    """Each mistake by itself, without a Spark: tests/integration/spark/test_spark_typing_errors_of_sinks.py."""
    topic = Topic("sink-refused", TopicType.PRIORITY, slots=8)
    spark_client.producer(topic)
    with pytest.raises(Exception, match=error):
        sink_of(spark.sql(f"select {columns}"), spark_client.url, topic).save()
    assert stored(spark_client, topic) == {}


def test_overwriting_a_live_queue_is_refused(spark: SparkSession, spark_client: RmqClient) -> None:
    with pytest.raises(Exception, match="would delete the messages of a live queue"):
        sink_of(messages(spark, 1, "100L priority"), spark_client.url, topic_of()).mode("overwrite").save()


def test_a_replayed_batch_adds_no_entries_to_a_stream(
    spark: SparkSession, spark_client: RmqClient, tmp_path: Path, checkpoint: str
) -> None:
    topic, source = topic_of(TopicType.STREAM), str(tmp_path / "source")
    spark_client.producer(topic)

    def drain(**options: object) -> None:
        rows = spark.readStream.schema("content string").json(source)
        writer = rows.writeStream.format("rmq").option("url", spark_client.url).option("topic", topic.name)
        for name, value in options.items():
            writer = writer.option(name, str(value).lower())
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(LIMIT_S)

    def entries() -> Counter[bytes]:
        return Counter(entry.content for entry in spark_client.stream(topic).range())

    def forget_commit(batch: int) -> None:
        for name in (f"{batch}", f".{batch}.crc"):
            (Path(checkpoint) / "commits" / name).unlink(missing_ok=True)

    messages(spark, 1_000).write.json(source)
    drain(idempotent=True)
    once = Counter({b"m%d" % i: 1 for i in range(1_000)})
    assert entries() == once
    forget_commit(0)
    drain(idempotent=True)
    assert entries() == once
    forget_commit(0)
    drain(idempotent=False)
    assert entries() == once + once, "at least once is all that is promised without"


class Restart:
    """Kills a Redis that writes everything to disk once it holds some messages, and starts it again."""

    def __init__(self, server: RedisServer, number: Callable[[], int]) -> None:
        self._server, self._number = server, number
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.came_at: list[int] = []

    def _run(self) -> None:
        wait_until(lambda: self._number() > 1_000, LIMIT_S)
        self._server.kill()
        self._server.start()
        self.came_at.append(self._number())
        self._over.wait(LIMIT_S)  # the server ends with the thread that started it

    def __enter__(self) -> Restart:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(LIMIT_S)


def test_a_restart_of_redis_in_the_middle_loses_nothing(spark: SparkSession) -> None:
    topic = topic_of()
    with RedisServer(("appendonly yes", "appendfsync always")) as server, RmqClient(server.url) as client:
        frame = spark.range(0, 60_000, 1, 2).selectExpr("concat('m', id) content", "id + 100 priority")
        client.producer(topic)
        with Restart(server, lambda: client.inspect(topic).stats().backlog) as restart:
            sink_of(frame, server.url, topic, mergeRows=500, chunkSize=100, pipelineDepth=1).save()
            assert restart.came_at[0] < 60_000, "it came in the middle"
            assert set(stored(client, topic)) == {b"m%d" % i for i in range(60_000)}


def test_a_restart_of_redis_under_a_stream_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    topic, source = topic_of(TopicType.STREAM), str(tmp_path / "source")
    spark.range(0, 40_000, 1, 4).selectExpr("concat('m', id) content").write.json(source)
    with RedisServer(("appendonly yes", "appendfsync always")) as server, RmqClient(server.url) as client:
        client.producer(topic)
        rows = spark.readStream.schema("content string").option("maxFilesPerTrigger", 2).json(source)
        writer = rows.writeStream.format("rmq").option("url", server.url).option("topic", topic.name)
        writer = writer.option("idempotent", "true").option("mergeRows", 500).option("chunkSize", 100)
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        with Restart(server, lambda: client.stream(topic).stats().length) as restart:
            assert writer.start().awaitTermination(LIMIT_S)
            assert restart.came_at[0] < 40_000, "it came in the middle"
            entries = Counter(entry.content for entry in client.stream(topic).range())
    assert entries == {b"m%d" % i: 1 for i in range(40_000)}
