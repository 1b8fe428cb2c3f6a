"""Replays in a real Spark: the right day, once, at a rate, and on where a broken run stopped."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, date, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rmq import RmqClient, Topic, TopicType
from rmq.errors import InvalidValueError, RmqError, UnknownTopicError
from rmq.spark.jobs.redrive import Again
from rmq.spark.jobs.replay import ReplaySettings, run
from tests.spark.dead_letters import accounts, kill
from tests.spark.frames import stored
from tests.support.core import slot_keys
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

numbers = count(1)
DAY = date(2026, 11, 20)
DAY_MS = int(datetime(2026, 11, 20, tzinfo=UTC).timestamp() * 1_000)
HOUR_MS = 3_600_000
FAST = Again(rate=1_000_000.0)
LIMIT_S = 120.0


def topic_of(kind: TopicType = TopicType.RANGE_MERGE, **more: Any) -> Topic:
    return Topic(f"replay-{next(numbers)}", kind, slots=4, **more)


def settings_of(client: RmqClient, topic: Topic, archive: Path | None = None, **more: Any) -> ReplaySettings:
    given: dict[str, Any] = {"again": FAST, "archive": None if archive is None else str(archive)} | more
    return ReplaySettings(topic.name, DAY, client.url, **given)


def write_archive(spark: SparkSession, folder: Path, *columns: str, rows: int = 200) -> Path:
    """Write messages of which every second is of the day, spread over three of its hours."""
    given = columns or ("cast(concat('m', id) as binary) content", "cast(concat('b', id) as binary) body")
    time = f"timestamp_millis({DAY_MS} + if(id % 2 = 0, id % 3 * {HOUR_MS}, -1 - id)) drained"
    spark.range(0, rows, 1, 2).selectExpr(*given, time).write.parquet(str(folder))
    return folder


def test_the_dead_of_one_day(spark: SparkSession, spark_client: RmqClient) -> None:
    topic = topic_of()
    kill(spark_client, topic, [f"m{i}" for i in range(40)], TimeoutError("late"))
    times = {0: DAY_MS, 1: DAY_MS - 1, 2: DAY_MS + 24 * HOUR_MS - 1, 3: DAY_MS + 24 * HOUR_MS}
    for message in spark_client.dead(topic).list():
        key = slot_keys(topic.name, message.slot).dead
        spark_client._connections.command("ZADD", key, times[int(message.text[1:]) % 4], message.content)
    meant = {b"m%d" % i for i in range(40) if i % 4 in (0, 2)}
    dry = run(spark, settings_of(spark_client, topic, dry_run=True))
    assert (dry.found, dry.sent, spark_client.inspect(topic).stats().dead) == (20, 0, 40)
    report = run(spark, settings_of(spark_client, topic))
    assert (report.found, report.new, report.merged, report.skipped) == (20, 20, 0, 0)
    assert {name: body for name, (_, _, body) in stored(spark_client, topic).items()} == {
        name: b"body of " + name for name in meant
    }
    assert spark_client.inspect(topic).stats().dead == 20
    assert accounts(spark_client, topic) == (40, 40)
    assert run(spark, settings_of(spark_client, topic)).found == 0


def test_an_archive_is_sent_once_whatever_the_rate(
    spark: SparkSession, spark_client: RmqClient, tmp_path: Path
) -> None:
    topic = topic_of()
    spark_client.producer(topic)
    archive = write_archive(
        spark, tmp_path / "a", "concat('m', id) content", "concat('b', id) body", "cast(id % 4 as int) slot"
    )
    report = run(spark, settings_of(spark_client, topic, archive))
    assert (report.found, report.new, report.merged, report.skipped) == (100, 100, 0, 0)
    assert {name: (slot, body) for name, (slot, _, body) in stored(spark_client, topic).items()} == {
        b"m%d" % i: (i % 4, b"b%d" % i) for i in range(0, 200, 2)
    }
    second = run(spark, settings_of(spark_client, topic, archive, again=Again(rate=50_000.0)))
    assert (second.found, second.sent, second.skipped) == (100, 0, 100)
    third = run(spark, settings_of(spark_client, topic, archive, run="once more"))
    assert (third.new, third.merged, third.skipped) == (0, 100, 0)
    assert spark_client.inspect(topic).stats().total("accepted") == 200


def test_a_run_that_breaks_in_an_hour_is_finished_by_the_next_and_sends_nothing_twice(
    spark: SparkSession, spark_client: RmqClient, tmp_path: Path
) -> None:
    topic = topic_of()
    spark_client.producer(topic)
    archive = write_archive(spark, tmp_path / "a", rows=2_000)

    def accepted() -> int:
        return spark_client.inspect(topic).stats().total("accepted")

    def break_it() -> None:
        wait_until(lambda: accepted() >= 400, LIMIT_S)
        spark.sparkContext.cancelAllJobs()

    trouble = threading.Thread(target=break_it)
    trouble.start()
    with pytest.raises(RmqError):
        run(spark, settings_of(spark_client, topic, archive, again=Again(rate=60.0)))
    trouble.join(LIMIT_S)
    wait_until(lambda: not spark.sparkContext.statusTracker().getActiveStageIds(), LIMIT_S)
    broken = accepted()
    assert 400 <= broken < 1_000, "it broke in the middle"
    report = run(spark, settings_of(spark_client, topic, archive))
    # a task that was cancelled may have ended a chunk later
    assert report.sent + report.skipped == 1_000
    assert report.sent <= 1_000 - broken
    assert accepted() == 1_000, "nothing was sent twice"
    assert set(stored(spark_client, topic)) == {b"m%d" % i for i in range(0, 2_000, 2)}


def test_what_came_to_an_archive_after_a_run_is_sent_by_the_next(
    spark: SparkSession, spark_client: RmqClient, tmp_path: Path
) -> None:
    topic = topic_of()
    spark_client.producer(topic)
    for names, hour in (("early", 2), ("late", 0)):  # the later hour was sent before the earlier one had a message
        rows = spark.range(0, 60, 1, 2).selectExpr(
            f"concat('{names}', id) content", f"timestamp_millis({DAY_MS} + {hour * HOUR_MS}) drained"
        )
        rows.write.mode("append").parquet(str(tmp_path / "a"))
        report = run(spark, settings_of(spark_client, topic, tmp_path / "a"))
    assert (report.found, report.new, report.merged, report.skipped) == (120, 60, 60, 0)
    assert set(stored(spark_client, topic)) == {
        b"%s%d" % (names, i) for names in (b"early", b"late") for i in range(60)
    }
    assert run(spark, settings_of(spark_client, topic, tmp_path / "a")).skipped == 120


def test_slots_of_a_topic_that_has_another_number_are_refused(
    spark: SparkSession, spark_client: RmqClient, tmp_path: Path
) -> None:
    topic, wider = topic_of(), Topic(f"replay-{next(numbers)}-wider", TopicType.RANGE_MERGE, slots=8)
    for each in (topic, wider):
        spark_client.producer(each)
    columns = ("concat('m', id) content", f"'{wider.name}' topic")
    archive = write_archive(spark, tmp_path / "a", *columns, "cast(id % 4 as int) slot", rows=20)
    with pytest.raises(InvalidValueError, match=f"for topic {wider.name} with 8 slots, but topic {topic.name} has 4"):
        run(spark, settings_of(spark_client, topic, archive, from_topic=wider.name))
    assert stored(spark_client, topic) == {}
    archive = write_archive(spark, tmp_path / "b", *columns, rows=20)
    assert run(spark, settings_of(spark_client, topic, archive, from_topic=wider.name)).new == 10
    assert all(slot == topic.slot_of(name) for name, (slot, _, _) in stored(spark_client, topic).items())


@pytest.mark.parametrize(
    ("kind", "columns", "more", "scores"),
    [
        (TopicType.PRIORITY, ("'a' content", "cast(if(id % 4 = 0, null, 70) as bigint) priority"), {}, {1, 70}),
        (TopicType.PRIORITY, ("'a' content",), {"again": Again(rate=1e6, priority=99)}, {99}),
        (TopicType.FIXED_TIME, ("'a' content",), {"fixed_time_ms": 2**41}, {2**41}),
    ],
)
def test_what_an_archive_says_and_what_is_asked_for(
    spark: SparkSession,
    spark_client: RmqClient,
    tmp_path: Path,
    kind: TopicType,
    columns: tuple[str, ...],
    more: dict[str, Any],
    scores: set[int],
) -> None:
    topic = topic_of(kind)
    spark_client.producer(topic)
    columns = (columns[0].replace("'a'", "concat('a', id)"), "if(id < 10, 'other', 'mine') topic", *columns[1:])
    archive = write_archive(spark, tmp_path / "a", *columns, rows=40)
    report = run(spark, settings_of(spark_client, topic, archive, from_topic="mine", **more))
    assert report.new == 15
    assert {score for _, score, _ in stored(spark_client, topic).values()} == scores
    assert run(spark, settings_of(spark_client, topic, archive, **more)).found == 0, "of this very topic it has none"


def test_a_topic_that_takes_no_marks_is_sent_again(
    spark: SparkSession, spark_client: RmqClient, tmp_path: Path
) -> None:
    topic = topic_of(TopicType.PRIORITY, ttl="1h")
    spark_client.producer(topic)
    archive = write_archive(spark, tmp_path / "a", rows=40)
    for new, merged in ((20, 0), (0, 20)):
        report = run(spark, settings_of(spark_client, topic, archive))
        assert (report.new, report.merged, report.resumable) == (new, merged, False)


@pytest.mark.parametrize(
    ("columns", "more", "message"),
    [
        (("id",), {}, "has no column content"),
        (
            ("'a' content", "now() sent"),
            {},
            "set time_column to the column with the time; the timestamp columns are: sent, drained",
        ),
        (("'a' content",), {"time_column": "content"}, "column content is string"),
        (("'a' content",), {"time_column": "when"}, "column when is missing"),
        (("id content",), {}, "column content is bigint; it must be string or binary"),
        (("if(id = 2, null, 'a') content",), {}, "messages of hour 2 cannot be sent .* .1 in all.: content is null"),
        (("'a' content", "4 slot"), {}, "slot must be 0 to 3"),
        (("'a' content",), {"from_topic": "b"}, "has no column topic"),
        (("'a' content",), {"fixed_time_ms": 2**41}, "RANGE_MERGE"),
        (("'a' content",), {"again": Again(rate=1.0, priority=99)}, "priority is for PRIORITY topics"),
    ],
)
def test_what_is_wrong_with_an_archive_is_said_before_anything_is_sent(
    spark: SparkSession,
    spark_client: RmqClient,
    tmp_path: Path,
    columns: tuple[str, ...],
    more: dict[str, Any],
    message: str,
) -> None:
    topic = topic_of()
    spark_client.producer(topic)
    archive = write_archive(spark, tmp_path / "a", *columns, rows=20)
    with pytest.raises(InvalidValueError, match=message):
        run(spark, settings_of(spark_client, topic, archive, **more))
    assert stored(spark_client, topic) == {}


@pytest.mark.parametrize("priority", [0, 2**20])
def test_a_priority_of_an_archive_that_breaks_its_rule_is_said_before_anything_is_sent(
    spark: SparkSession, spark_client: RmqClient, tmp_path: Path, priority: int
) -> None:
    topic = topic_of(TopicType.PRIORITY)
    spark_client.producer(topic)
    archive = write_archive(spark, tmp_path / "a", "concat('m', id) content", f"{priority}L priority", rows=20)
    with pytest.raises(InvalidValueError, match="priority must be from 1 to 1048575"):
        run(spark, settings_of(spark_client, topic, archive))
    assert stored(spark_client, topic) == {}


def test_what_is_wrong_with_the_settings(spark: SparkSession, spark_client: RmqClient, tmp_path: Path) -> None:
    topic = topic_of()
    good = settings_of(spark_client, topic)
    with pytest.raises(UnknownTopicError, match=topic.name):
        run(spark, good)
    spark_client.producer(topic)
    with pytest.raises(InvalidValueError, match="cannot be read"):
        run(spark, replace(good, archive=str(tmp_path / "nothing")))
    (tmp_path / "text").write_text("no parquet at all")
    with pytest.raises(InvalidValueError, match=r"archive '.*text' cannot be read: (?!An error occurred)"):
        run(spark, replace(good, archive=str(tmp_path / "text")))
    with pytest.raises(InvalidValueError, match="rate is missing"):
        replace(good, again=Again())
    with pytest.raises(InvalidValueError, match="rate is 0"):
        Again(rate=0.0)
    with pytest.raises(InvalidValueError, match="time_column can be used with an archive only"):
        replace(good, time_column="drained")
    with pytest.raises(InvalidValueError, match="day is 0001-01-01"):
        replace(good, day=date.min)
