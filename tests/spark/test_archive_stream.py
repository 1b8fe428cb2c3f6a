"""The archive of a STREAM topic in a real Spark: each entry once, by day, and trimmed only once it is safely there."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rmq import Retention, RmqClient, StreamMessage, Topic, TopicType
from rmq.errors import DriverReplacedError, InvalidValueError, RmqError
from rmq.spark.jobs import archive_stream
from rmq.spark.jobs.archive_stream import ArchiveReport, ArchiveSettings, Turn, whole_stream
from rmq.spark.options import parse_options
from rmq.spark.source.log_driver import LogDriver
from tests.support.cli import Cli

pytestmark = pytest.mark.slow

numbers = count(1)
DAY_MS = 86_400_000
FIRST_MS = int(datetime(2026, 3, 28, 12, tzinfo=UTC).timestamp() * 1_000)
OLD = 60
NEW = 10
KEEP_ALL = Retention(max_length=None)


@pytest.fixture
def log(spark_client: RmqClient) -> Topic:
    """A topic with 60 entries of three days, 36 hours in all, and 10 of now."""
    topic = Topic(f"history-{next(numbers)}", TopicType.STREAM, slots=4, retention=KEEP_ALL)
    producer = spark_client.producer(topic)
    step_ms = 36 * 3_600_000 // OLD
    old = (StreamMessage(f"old{n}", body=b"b", id=f"{FIRST_MS + n * step_ms}-0") for n in range(OLD))
    producer.send_many(old)
    producer.send_many(StreamMessage(f"new{n}") for n in range(NEW))
    return topic


ALL = Counter([*(f"old{n}" for n in range(OLD)), *(f"new{n}" for n in range(NEW))])
Archive = Callable[..., ArchiveReport]


@pytest.fixture
def archive(spark: SparkSession, spark_client: RmqClient, log: Topic, tmp_path: Path) -> Archive:
    def run(say: Callable[[str], None] = archive_stream.nothing, **more: Any) -> ArchiveReport:
        given = {"out": str(tmp_path / "archive"), "older_than_ms": 3_600_000, "batch": 25, **more}
        return archive_stream.run(spark, ArchiveSettings(log.name, url=spark_client.url, **given), say)

    return run


@pytest.fixture
def table(spark: SparkSession, spark_client: RmqClient, log: Topic, tmp_path: Path) -> Callable[[], Counter[str]]:
    def contents() -> Counter[str]:
        frame = whole_stream(spark, spark_client.url, log.name, str(tmp_path / "archive"))
        return Counter(row.text for row in frame.selectExpr("cast(content as string) text").collect())

    return contents


def test_old_entries_move_by_day_and_both_are_one_table(
    spark: SparkSession, spark_client: RmqClient, log: Topic, archive: Archive, table: Any, tmp_path: Path
) -> None:
    assert table() == ALL, "before there is an archive"
    before = {entry.id: entry for entry in spark_client.stream(log).range()}
    report = archive()
    assert (report.archived, report.batches, report.trimmed, report.held_slots) == (OLD, 3, OLD, 0)
    assert spark_client.stream(log).stats().length == NEW
    assert table() == ALL
    rows = spark.read.parquet(str(tmp_path / "archive" / "entries")).collect()
    assert {row.day for row in rows} == {date(2026, 3, 28), date(2026, 3, 29)}
    for row in rows:
        entry = before[row.id]
        assert (row.topic, row.slot, bytes(row.content), bytes(row.body)) == (log.name, entry.slot, entry.content, b"b")
        assert row.day == datetime.fromtimestamp(entry.time_ms / 1_000, UTC).date()
        assert {name: bytes(value) for name, value in row.fields.items()} == entry.fields
    again = archive()
    assert (again.archived, again.trimmed) == (0, 0)
    assert table() == ALL
    both = whole_stream(spark, spark_client.url, log.name, str(tmp_path / "archive"))
    assert both.where("day = '2026-03-29'").count() == sum(row.day == date(2026, 3, 29) for row in rows)


def test_what_groups_have_not_settled_stays(spark_client: RmqClient, log: Topic, archive: Archive, table: Any) -> None:
    stream = spark_client.stream(log)
    with spark_client.consumer(log, group="slow", start="all") as consumer:
        first = consumer.poll(max_messages=1, timeout=5)
        report = archive()
        assert (report.archived, report.trimmed, report.held_slots) == (OLD, 0, 4)
        assert stream.stats().length == OLD + NEW
        assert table() == ALL, "what is in both is shown once"
        for delivery in first:
            delivery.ack()
        while deliveries := consumer.poll(max_messages=100, timeout=0.5):
            for delivery in deliveries:
                delivery.ack()
    report = archive()
    assert (report.archived, report.trimmed, report.held_slots) == (0, OLD, 0)
    assert table() == ALL


def test_clean_ups_leave_what_is_not_archived(spark_client: RmqClient, log: Topic, archive: Archive) -> None:
    archive(trim=False)
    spark_client.producer(log).send_many(StreamMessage(f"later{n}") for n in range(5))
    spark_client.change_topic(log.changed(retention=Retention(max_length=0, approximate=False)))
    with RmqClient(spark_client.url) as client:  # knows the new definition
        client.stream(log.name).trim()
        assert client.stream(log.name).stats().length == NEW + 5, "the archive is safe, and the rest not archived"


def test_entries_stay_for_a_while_where_that_is_asked_for(
    spark_client: RmqClient, log: Topic, archive: Archive, table: Any
) -> None:
    assert archive(trim_after_ms=3_600_000).trimmed == 0
    assert spark_client.stream(log).stats().length == OLD + NEW
    assert table() == ALL
    assert archive().trimmed == OLD
    assert table() == ALL


def test_a_table_that_was_overtaken_by_the_trimming_says_so(
    spark: SparkSession, spark_client: RmqClient, log: Topic, archive: Archive, tmp_path: Path
) -> None:
    frame = whole_stream(spark, spark_client.url, log.name, str(tmp_path / "archive"))
    archive()
    with pytest.raises(Exception, match="were trimmed or deleted"):
        frame.count()


def test_a_run_that_was_replaced_trims_nothing(spark_client: RmqClient, log: Topic, archive: Archive) -> None:
    options = parse_options({"url": spark_client.url, "topic": log.name, "group": "archive", "start": "all"})
    other = LogDriver(options, log)

    def replace(step: str) -> None:
        if step.startswith("trimming"):
            other.freeze()

    with pytest.raises(DriverReplacedError, match="another driver"):
        archive(replace)
    other.close()
    assert spark_client.stream(log).stats().length == OLD + NEW
    assert archive().trimmed == OLD


def test_a_group_that_was_removed_is_told_of(spark_client: RmqClient, log: Topic, archive: Archive, table: Any) -> None:
    archive()
    spark_client.stream(log).remove_group("archive")
    with pytest.raises(RmqError, match="group archive, whose checkpoint is at batch"):
        archive()
    assert archive(accept_loss=True).archived == 0
    assert table() == ALL


def test_folders_that_do_not_fit_are_refused(
    spark: SparkSession, spark_client: RmqClient, log: Topic, archive: Archive, tmp_path: Path
) -> None:
    archive()
    other = Topic(f"history-{next(numbers)}", TopicType.STREAM, slots=4)
    spark_client.producer(other)
    settings = ArchiveSettings(other.name, str(tmp_path / "archive"), spark_client.url, 0)
    with pytest.raises(InvalidValueError, match=f"is the archive of topic {log.name} by group archive"):
        archive_stream.run(spark, settings)
    with pytest.raises(InvalidValueError, match=f"is the archive of topic {log.name}"):
        whole_stream(spark, spark_client.url, other.name, str(tmp_path / "archive"))
    with pytest.raises(InvalidValueError, match="by group archive; use another folder"):
        archive(group="other")
    shutil.rmtree(tmp_path / "archive" / "checkpoint")
    with pytest.raises(InvalidValueError, match="has entries but no checkpoint"):
        archive()


def test_as_it_is_typed(spark: SparkSession, spark_client: RmqClient, log: Topic, tmp_path: Path) -> None:
    rmq = Cli(spark_client.url)
    typed = ("spark", "archive-stream", log.name, "--out", str(tmp_path / "archive"), "--older-than", "1h")
    first = rmq(*typed).out
    assert f"60 entries of topic {log.name} from before " in first
    assert "60 entries trimmed" in first
    found = rmq(*typed, "--json").json
    assert (found["archived"], found["batches"], found["trimmed"], found["held_slots"]) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("{topic}", "--older-than", "1h"), 2, "--out is required"),
        (("{topic}", "--out", "{out}"), 2, "--older-than is required"),
        (("{topic}", "--out", "{out}", "--older-than", "soon"), 2, "--older-than is 'soon'"),
        (("{topic}", "--out", "", "--older-than", "1h"), 2, "out is empty"),
        (("{topic}", "--out", "{out}", "--older-than", "1h", "--batch", "0"), 2, "batch is 0"),
        (("{topic}", "--out", "{out}", "--older-than", "1h", "--group", "a:b"), 2, "group is 'a:b'; it must be"),
        (("{topic}", "--out", "{out}", "--older-than", "1h", "--no-trim", "--trim-after", "1h"), 2, "--no-trim"),
        (("{topic}", "--out", "/dev/null/x", "--older-than", "1h"), 1, "/dev/null"),
        (("{topic}", "--out", "nowhere://x", "--older-than", "1h"), 2, "nowhere"),
        (("nobody-knows", "--out", "{out}", "--older-than", "1h"), 1, "nobody-knows"),
        (("{queue}", "--out", "{out}", "--older-than", "1h"), 2, "only STREAM topics can be archived"),
        (("{unacked}", "--out", "{out}", "--older-than", "1h"), 2, "entries that groups have not acked (unacked)"),
    ],
)
def test_what_is_typed_wrongly(
    spark: SparkSession,
    spark_client: RmqClient,
    log: Topic,
    tmp_path: Path,
    words: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    queue = Topic("history-queue", TopicType.PRIORITY)
    unacked = Topic("history-unacked", TopicType.STREAM, retention=Retention(unacked=True))
    for topic in (queue, unacked):
        spark_client.producer(topic)
    names = {"topic": log.name, "queue": queue.name, "unacked": unacked.name, "out": str(tmp_path / "archive")}
    ran = Cli(spark_client.url)("spark", "archive-stream", *(word.format(**names) for word in words), code=code)
    last = ran.err.strip().splitlines()[-1]
    assert last.startswith("rmq: ")
    assert message in last
    assert spark_client.stream(log).stats().length == OLD + NEW


def test_a_second_run_is_told_that_one_is_at_work(spark_client: RmqClient, log: Topic, archive: Archive) -> None:
    turn = Turn(spark_client._connections, log, "archive")
    with turn.held(archive_stream.nothing):
        with pytest.raises(DriverReplacedError, match="archive group archive: another run"):
            archive()
        turn.check()
    assert archive().archived == OLD
    with pytest.raises(DriverReplacedError, match="this run no longer has the lock: another run was started"):
        turn.check()
