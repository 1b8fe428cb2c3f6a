"""Tasks of keyed frames on a real Redis, without Spark: cut into any record batches, they send the same calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any
from zlib import crc32

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pytest
import redis
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from rmq import Collect, Keep, Merge, RmqClient, Sum, Topic, TopicType
from rmq.errors import BatchChangedError, InvalidMessageError, InvalidValueError, TopicMismatchError
from rmq.spark import RmqDataSource
from rmq.spark.options import parse_options
from rmq.spark.session import _source_for
from rmq.spark.sink import sender as senders
from rmq.spark.sink import writer as writers
from rmq.spark.sink.sender import TaskWrite
from rmq.spark.sink.writer import BatchWriter, StreamWriter
from tests.conftest import MakeTopic
from tests.support.spark_task import Task

PARTITIONS = 3
Row = dict[str, Any]
TOPICS = [
    pytest.param(Merge(Sum()), id="sum"),
    pytest.param(Merge(Collect(max_items=7, when_full="drop_oldest")), id="collect"),
    pytest.param(Merge(Keep(), priority="sum"), id="priorities"),
]
NAMES = [
    pytest.param({"once": "n"}, id="once"),
    pytest.param({"txnAppId": "n", "txnVersion": "3"}, id="txnAppId"),
    pytest.param(None, id="stream"),
]


def schema_of(names: dict[str, Any], partitions: int, *, sorts: bool = True) -> StructType:
    kinds = {"content": StringType(), "topic": StringType(), "body": StringType(), "partition": IntegerType()}
    told = {"partition": {"rmq.partitions": partitions, "rmq.sorted": sorts}}
    return StructType([StructField(name, kinds.get(name, LongType()), True, told.get(name, {})) for name in names])


def batches(rows: list[Row], size: int) -> Iterator[Any]:
    """Yield rows as Spark hands them over, so many at a time."""
    kinds = {"content": pa.string(), "topic": pa.string(), "body": pa.string(), "partition": pa.int32()}
    form = pa.schema([(name, kinds.get(name, pa.int64())) for name in rows[0]])
    for first in range(0, len(rows), size):
        yield pa.RecordBatch.from_pylist(rows[first : first + size], schema=form)


Write = Callable[..., Any]


@pytest.fixture
def write(redis_url: str, redis_client: redis.Redis, task: Task) -> Iterator[Write]:
    """Send the rows of some tasks, as `(partition, rows)`; without `options` of a name as a stream."""

    def run(
        parts: dict[int, list[Row]], names: dict[str, str] | None, size: int, partitions: int = PARTITIONS, **more: str
    ) -> None:
        given = parse_options({"url": redis_url, **(names or {}), **more})
        schema = schema_of(next(rows[0] for rows in parts.values() if rows), partitions, sorts=names is not None)
        sink = StreamWriter(schema, given) if names is None else BatchWriter(schema, given)
        for number, rows in parts.items():
            task.partition = number
            sink.write(batches(rows, size))

    yield run
    for key in redis_client.scan_iter("sent:*"):
        redis_client.delete(key)


def rows_of(topic: Topic, partitions: int = PARTITIONS, *, shuffled: Random | None = None) -> dict[int, list[Row]]:
    """Return 600 rows of 60 contents, parted as a hash may part them, sorted or shuffled."""
    summed = topic.merge is not None and topic.merge.kind == "S"
    value: Callable[[int], Row] = (lambda n: {"value": n}) if summed else (lambda n: {"body": f"{n:03}"})
    parts: dict[int, list[Row]] = {number: [] for number in range(partitions)}
    for n in range(600):
        content = f"c{n % 60:02}"
        number = crc32(content.encode()) % partitions
        parts[number].append({"content": content, **value(n), "priority": 50 + n % 7, "partition": number})
    for rows in parts.values():
        rows.sort(key=lambda row: (row["content"], row.get("value", row.get("body"))))
        if shuffled is not None:
            shuffled.shuffle(rows)
    return parts


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("merge", TOPICS)
def test_a_batch_that_goes_on_elsewhere_counts_each_row_once(
    merge: Merge, names: dict[str, str] | None, make_topic: MakeTopic, sender: RmqClient, write: Write
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, merge=merge)
    sender.producer(topic)
    options = {"topic": topic.name, "mergeRows": "5", "chunkSize": "4"}

    def accepted() -> int:
        return sender.inspect(topic).stats().total("accepted")

    def parts(seed: int) -> dict[int, list[Row]]:
        return rows_of(topic, shuffled=Random(seed) if names is None else None)

    first = {1: parts(1)[1]}
    write(first, names, 7, **options)
    begun = accepted()
    assert begun == len(first[1])
    for partitions, more, words in (
        (2, {}, "and is now run with 2 partitions, mergeRows=5 and chunkSize=4"),
        (3, {"mergeRows": "6"}, "was started with 3 partitions, mergeRows=5 and chunkSize=4"),
        (3, {"chunkSize": "5"}, r"write rmq.spark.keyed\(frame, partitions=3\) with the options of the first attempt"),
    ):
        with pytest.raises(BatchChangedError, match=words):
            write(rows_of(topic, partitions), names, 10, partitions, **{**options, **more})
        assert accepted() == begun, "refused before the first send"
    for size in (1_000, 1, 13):
        write(parts(size), names, size, **options)
        assert accepted() == 600
    stats = sender.inspect(topic).stats()
    assert (stats.backlog, stats.unaccounted) == (60, 0)


def test_rows_of_other_tasks_and_out_of_order_are_refused(
    make_topic: MakeTopic, sender: RmqClient, write: Write
) -> None:
    topic = make_topic(TopicType.PRIORITY, merge=Merge(Sum()))
    sender.producer(topic)
    options, names = {"topic": topic.name}, {"once": "n"}
    parts = rows_of(topic)
    with pytest.raises(InvalidValueError, match=r"belongs to partition 1 of 3, but is in partition 0: rows were moved"):
        write({0: [*parts[0], *parts[1]]}, names, 50, **options)
    unsorted = [*parts[0][10:], *parts[0][:10]]
    for size in (10, 1_000):
        with pytest.raises(InvalidValueError, match="the rows of partition 0 are no longer sorted by content"):
            write({0: unsorted}, names, size, **options)
    assert sender.inspect(topic).stats().total("accepted") == 0
    without = [{**row, "content": None} for row in parts[0][:1]]
    with pytest.raises(InvalidMessageError, match="content is null"):
        write({0: [*without, *parts[0]]}, names, 50, **options)


def test_rows_that_name_topics_come_topic_by_topic(make_topic: MakeTopic, sender: RmqClient, write: Write) -> None:
    topics = sorted((make_topic(TopicType.PRIORITY, merge=Merge(Sum())) for _ in range(3)), key=lambda each: each.name)
    for topic in topics:
        sender.producer(topic)
    rows = [{"topic": topic.name, **row} for topic in topics for row in rows_of(topic)[1]]
    number = len(rows) // 3
    for size in (50, 7, 1_000):
        write({1: rows}, {"once": "n"}, size, mergeRows="6")
        assert [sender.inspect(topic).stats().total("accepted") for topic in topics] == [number] * 3
    with pytest.raises(InvalidValueError, match="no longer sorted"):
        write({1: rows[::-1]}, {"once": "other"}, 1_000)


def test_a_task_holds_so_much_of_all_topics_together(
    make_topic: MakeTopic,
    sender: RmqClient,
    redis_url: str,
    task: Task,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del task
    bound, most, held = 20_000, 60, list[tuple[int, int]]()
    monkeypatch.setattr(senders, "HELD_BYTES", bound)
    monkeypatch.setattr(writers, "HELD_BYTES", bound)
    writes: list[Noting] = []

    class Noting(TaskWrite):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            writes.append(self)

        def take(self, batch: Any) -> None:
            held.append((sum(each.held.size_bytes for each in writes), sum(each.held.number for each in writes)))
            super().take(batch)

    monkeypatch.setattr(writers, "TaskWrite", Noting)
    topics = [make_topic(TopicType.PRIORITY) for _ in range(10)]
    for topic in topics:
        sender.producer(topic)
    for body, number in (("b" * 1_000, 200), ("b", 500)):
        held.clear()
        writes.clear()
        rows = [
            {"topic": topics[n % 10].name, "content": f"{len(body)}c{n}", "body": body, "priority": 100}
            for n in range(number)
        ]
        given = parse_options({"url": redis_url, "mergeRows": str(most)})
        schema = StructType([StructField(name, LongType() if name == "priority" else StringType()) for name in rows[0]])
        BatchWriter(schema, given).write(batches(rows, 20))
        assert max(size for size, _ in held) <= bound
        assert max(number for _, number in held) <= most
    assert sum(sender.inspect(topic).stats().backlog for topic in topics) == 700


def test_each_slot_that_spark_has_computed_is_checked(
    make_topic: MakeTopic, sender: RmqClient, redis_url: str, task: Task
) -> None:
    del task
    topic = make_topic(TopicType.PRIORITY, slots=4)
    sender.producer(topic)
    rows = [{"content": f"c{n}", "priority": 100, "slot": crc32(b"c%d" % n) & 3} for n in range(30)]
    rows[25]["slot"] ^= 1
    schema = StructType([StructField(name, StringType() if name == "content" else LongType()) for name in rows[0]])
    given = parse_options({"url": redis_url, "topic": topic.name})
    with pytest.raises(InvalidValueError, match=r"but RMQ computes [0-3] from b'c25'"):
        BatchWriter(schema, given).write(batches(rows, 10))


def test_a_sink_registers_its_topic_again_and_refuses_another_one(
    make_topic: MakeTopic, sender: RmqClient, redis_client: redis.Redis, redis_url: str, task: Task
) -> None:
    del task
    topic = make_topic(TopicType.PRIORITY, slots=2)
    sender.producer(topic)
    rows = [{"content": "a", "priority": 100}]
    schema = StructType([StructField("content", StringType()), StructField("priority", LongType())])
    writer = StreamWriter(schema, parse_options({"url": redis_url, "topic": topic.name}))
    kept = redis_client.hget("rmq:topics", topic.name)
    redis_client.hdel("rmq:topics", topic.name)
    writer.write(batches(rows, 10))
    assert redis_client.hget("rmq:topics", topic.name) is not None
    redis_client.hdel("rmq:topics", topic.name)
    with RmqClient(redis_url) as other:
        other.producer(Topic(topic.name, TopicType.PRIORITY, slots=8))
        with pytest.raises(TopicMismatchError, match="is registered as PRIORITY with 8 slots, not as PRIORITY with 2"):
            writer.write(batches(rows, 10))
    redis_client.hset("rmq:topics", topic.name, kept or b"")


def test_the_format_that_is_registered_knows_the_url_of_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RMQ_URL", raising=False)
    assert _source_for(None) is RmqDataSource
    source = _source_for("redis://:secret@then:1")
    assert source.name() == "rmq"
    assert source({"topic": "t"})._parsed.url == "redis://:secret@then:1"
    parsed = source({"topic": "t", "URL": "redis://:secret@now:2"})._parsed
    assert parsed.url == "redis://:secret@now:2"
    assert "secret" not in repr(parsed)
    with pytest.raises(InvalidValueError, match="options topic and Topic are the same option: set it once"):
        source({"topic": "t", "Topic": "u"})
    with pytest.raises(InvalidValueError, match="badRowsPath contains a password, and Spark shows options") as found:
        source({"topic": "t", "badRows": "collect", "badRowsPath": "s3://key:hidden@bucket/rows"})
    assert "hidden" not in str(found.value)
