"""The sinks on a real Redis, without Spark: each task's rows come as record batches, as Spark hands them over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet as parquet  # pyright: ignore[reportMissingTypeStubs]
import pytest
import redis
from pyspark.sql.types import LongType, StringType, StructField, StructType

from rmq import RmqClient, Topic, TopicType
from rmq.errors import (
    DurabilityError,
    FixedTimePassedError,
    InvalidMessageError,
    UnknownTopicError,
)
from rmq.spark.options import parse_options
from rmq.spark.sink.writer import BatchWriter, StreamWriter, Written
from tests.conftest import MakeTopic
from tests.support.core import sent_key
from tests.support.spark_task import QUERY, Task

TYPES = {"content": StringType(), "topic": StringType(), "body": StringType(), "slot_basis": StringType()}


class Sinks:
    """Writes rows as a sink does: a list of rows for each task."""

    def __init__(self, url: str, task: Task) -> None:
        self._url, self._task = url, task

    def write(
        self, *tasks: list[dict[str, Any]], stream: int | None = None, commits: bool = True, **options: object
    ) -> list[Written]:
        names = list(tasks[0][0])
        schema = StructType([StructField(name, TYPES.get(name.lower(), LongType())) for name in names])
        given = parse_options({"url": self._url} | {name: str(value) for name, value in options.items()})
        writer = BatchWriter(schema, given) if stream is None else StreamWriter(schema, given)
        written: list[Written] = []
        for number, rows in enumerate(tasks):
            self._task.partition, self._task.batch = number, stream or 0
            columns = {name: [row[name] for row in rows] for name in names}
            form = pa.schema([(name, pa.string() if name.lower() in TYPES else pa.int64()) for name in names])
            answer = writer.write(iter([pa.RecordBatch.from_pydict(columns, schema=form)]))
            assert isinstance(answer, Written)
            written.append(answer)
        if commits:
            writer.commit(list(written))
        return written


@pytest.fixture
def sinks(redis_url: str, task: Task) -> Sinks:
    return Sinks(redis_url, task)


def rows(*contents: str, **more: object) -> list[dict[str, Any]]:
    return [{"content": content, **more} for content in contents]


def entries(client: RmqClient, topic: Topic) -> list[str]:
    return sorted(entry.content.decode() for entry in client.stream(topic).range())


@pytest.fixture
def log_topic(make_topic: MakeTopic, sender: RmqClient, redis_client: redis.Redis) -> Iterator[Topic]:
    """A STREAM topic, whose entries never merge: what is sent twice is there twice."""
    topic = make_topic(TopicType.STREAM, slots=2, checked=False)
    sender.producer(topic)
    yield topic
    for key in redis_client.scan_iter(f"sent:*{{{topic.name}_*"):
        redis_client.delete(key)


def test_a_version_is_written_once(sinks: Sinks, sender: RmqClient, log_topic: Topic) -> None:
    options: dict[str, Any] = {"topic": log_topic.name, "txnAppId": "fan-out"}
    first, second = rows("a", "b", "c"), rows("d", "e")
    sinks.write(first, second, txnVersion=4, **options)
    assert entries(sender, log_topic) == ["a", "b", "c", "d", "e"]
    (again, _) = sinks.write(list(reversed(second)), first, txnVersion=4, **options)
    assert (again.counts.new, again.counts.skipped) == (0, 2), "other partitions, too: the version is complete"
    sinks.write(rows("old"), txnVersion=3, **options)
    assert entries(sender, log_topic) == ["a", "b", "c", "d", "e"]
    sinks.write(rows("f"), txnVersion=5, **options)
    sinks.write(rows("g"), txnVersion=0, topic=log_topic.name, txnAppId="another")
    assert entries(sender, log_topic) == ["a", "b", "c", "d", "e", "f", "g"]


def test_a_version_that_another_has_written_is_as_safe_as_this_one_asks(sinks: Sinks, log_topic: Topic) -> None:
    options: dict[str, Any] = {"topic": log_topic.name, "txnAppId": "fan-out", "txnVersion": 4}
    sinks.write(rows("a"), **options)
    with pytest.raises(DurabilityError, match="0 of 1 replicas confirmed"):  # there is none
        sinks.write(rows("a"), durability="replicated", **options)


def test_a_version_that_broke_off_goes_on(sinks: Sinks, sender: RmqClient, log_topic: Topic) -> None:
    options: dict[str, Any] = {"topic": log_topic.name, "txnAppId": "fan-out", "txnVersion": 4}
    first, second = rows("a", "b", "c"), rows("d", "e")
    sinks.write(first, commits=False, **options)
    written = sinks.write(first, second, **options)
    assert [each.counts.skipped for each in written] == [3, 0]
    assert entries(sender, log_topic) == ["a", "b", "c", "d", "e"]


def test_a_late_commit_of_an_earlier_version_does_not_open_a_later_one(
    sinks: Sinks, sender: RmqClient, log_topic: Topic, redis_client: redis.Redis
) -> None:
    options: dict[str, Any] = {"topic": log_topic.name, "txnAppId": "fan-out"}
    schema = StructType([StructField("content", StringType())])
    given = parse_options({"url": sinks._url, "txnVersion": "4"} | {n: str(v) for n, v in options.items()})
    early = BatchWriter(schema, given)
    (written,) = sinks.write(rows("a"), txnVersion=5, **options)
    early.commit([written])
    key = sent_key(log_topic.name, 0, early._name)
    assert redis_client.hget(key, "done") == b"5"
    assert 0 < redis_client.ttl(key) <= 7 * 86_400


def test_rows_go_to_the_topics_that_they_name(
    sinks: Sinks, sender: RmqClient, make_topic: MakeTopic, log_topic: Topic
) -> None:
    urgent, pictures = make_topic(TopicType.PRIORITY, slots=2), make_topic(TopicType.RANGE_MERGE, slots=4)
    for topic in (urgent, pictures):
        sender.producer(topic)
    values = {"priority": 5_000, "time_range": 60_000}
    mixed = [
        *rows("a", "b", topic=urgent.name, **values),
        *rows("c", topic=pictures.name, **values),
        *rows("d", "e", topic=log_topic.name, **values),
        *rows("f", topic=urgent.name, **values),
    ]
    (written,) = sinks.write(mixed)
    assert (written.counts.rows, written.counts.new) == (6, 6)
    backlogs = [{message.content for message in sender.inspect(topic).peek()} for topic in (urgent, pictures)]
    assert backlogs == [{b"a", b"b", b"f"}, {b"c"}]
    assert entries(sender, log_topic) == ["d", "e"]
    sinks.write(rows("g", topic=urgent.name), topic=log_topic.name)
    assert entries(sender, log_topic) == ["d", "e", "g"], "the option beats the column"


def test_a_fan_out_that_broke_off_goes_on_in_each_topic(
    sinks: Sinks, sender: RmqClient, make_topic: MakeTopic, log_topic: Topic
) -> None:
    other = make_topic(TopicType.STREAM, slots=2, checked=False)
    sender.producer(other)
    first = rows("a", topic=log_topic.name) + rows("b", topic=other.name)
    second = rows("c", topic=other.name)
    for commits in (False, True, True):
        tasks = [first, second] if commits else [first]
        sinks.write(*tasks, commits=commits, txnAppId="fan-out", txnVersion=1)
    assert (entries(sender, log_topic), entries(sender, other)) == (["a"], ["b", "c"])


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (None, InvalidMessageError, "column topic is null"),
        ("a b", InvalidMessageError, "it must be 1 to 128 characters of"),
        ("nobody-knows", UnknownTopicError, "nobody-knows"),
    ],
)
def test_a_row_that_names_no_topic_ends_the_job(
    name: str | None, error: type[Exception], message: str, sinks: Sinks
) -> None:
    with pytest.raises(error, match=message):
        sinks.write(rows("a", topic=name))


def test_columns_may_have_any_case(sinks: Sinks, sender: RmqClient, log_topic: Topic) -> None:
    sinks.write([{"CONTENT": "a", "Slot_Basis": "k"}], topic=log_topic.name)
    assert entries(sender, log_topic) == ["a"]


def now_ms() -> int:
    return int(time.time() * 1_000)


@pytest.fixture
def timed(make_topic: MakeTopic, sender: RmqClient) -> Topic:
    topic = make_topic(TopicType.FIXED_TIME, slots=1)
    sender.producer(topic)
    return topic


def late_rows(early_ms: int) -> list[dict[str, Any]]:
    return rows("late", fixed_time=early_ms) + rows("ahead", fixed_time=early_ms + 10**7)


def scores(client: RmqClient, topic: Topic) -> dict[str, int]:
    return {message.content.decode(): message.score for message in client.inspect(topic).peek()}


@pytest.mark.parametrize("options", [{"stream": 3}, {"whenPassed": "now"}, {"stream": 3, "idempotent": "true"}])
def test_a_time_that_has_passed_is_now(
    options: dict[str, Any], sinks: Sinks, sender: RmqClient, timed: Topic, redis_client: redis.Redis
) -> None:
    early_ms = now_ms() - 60_000
    for _ in range(2):
        sinks.write(late_rows(early_ms), topic=timed.name, **options)
        found = scores(sender, timed)
        assert found["ahead"] == early_ms + 10**7
        assert early_ms + 60_000 < found["late"] < now_ms() + 60_000
    new = sender.inspect(timed).stats().total("accepted")
    assert new == (2 if "idempotent" in options else 4), "a batch that is run again is known by the times it gave"
    redis_client.delete(sent_key(timed.name, 0, QUERY))


def test_a_time_that_has_passed_ends_a_write(sinks: Sinks, timed: Topic, sender: RmqClient) -> None:
    for options in ({}, {"stream": 1, "whenPassed": "fail"}):
        with pytest.raises(FixedTimePassedError):
            sinks.write(late_rows(now_ms() - 60_000), topic=timed.name, **options)
    assert scores(sender, timed) == {}


@pytest.mark.parametrize("options", [{}, {"stream": 3, "whenPassed": "collect"}])
def test_a_time_that_has_passed_is_put_aside(
    options: dict[str, Any], sinks: Sinks, sender: RmqClient, timed: Topic, tmp_path: Path
) -> None:
    early_ms, folder = now_ms() - 60_000, tmp_path / "bad"
    sinks.write(late_rows(early_ms), topic=timed.name, badRows="collect", badRowsPath=folder, **options)
    assert scores(sender, timed) == {"ahead": early_ms + 10**7}
    (file,) = folder.glob("*.parquet")
    assert parquet.read_table(file)["content"].to_pylist() == ["late"]
