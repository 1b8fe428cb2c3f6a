"""The audit of dead letters in a real Spark, against what the core client lists."""

from __future__ import annotations

import csv
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rmq import RmqClient, Topic, TopicType
from rmq.errors import InvalidValueError, RmqError, UnknownTopicError
from rmq.spark.jobs import dead_audit
from rmq.spark.jobs.dead_audit import DeadAuditSettings, DeadReport, run
from rmq.spark.jobs.dead_files import write_files
from rmq.spark.jobs.redrive import Again
from rmq.spark.sink.sender import Counts
from tests.spark.dead_letters import accounts, kill
from tests.spark.frames import stored

pytestmark = pytest.mark.slow

numbers = count(1)
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def topics(spark_client: RmqClient) -> tuple[Topic, Topic]:
    """Two topics: 30 and 12 dead of one reason, 5 of another, and 4 sent with a slot basis."""
    number = next(numbers)
    pictures = Topic(f"audit-{number}-pictures", TopicType.RANGE_MERGE, slots=4)
    mails = Topic(f"audit-{number}-mails", TopicType.PRIORITY, slots=2)
    kill(spark_client, pictures, [f"p{i}" for i in range(30)], TimeoutError("late"))
    kill(spark_client, pictures, [f"q{i}" for i in range(5)], ValueError("wrong $x$"))
    kill(spark_client, mails, [f"m{i}" for i in range(12)], TimeoutError("later"))
    kill(spark_client, mails, [f"b{i}" for i in range(4)], KeyError("=1+1"), basis="customer 7")
    return pictures, mails


def settings_of(client: RmqClient, *topics: Topic, **more: Any) -> DeadAuditSettings:
    return DeadAuditSettings(tuple(topic.name for topic in topics), client.url, **more)


def test_the_report_counts_what_is_dead_and_changes_nothing(
    spark: SparkSession, spark_client: RmqClient, topics: tuple[Topic, Topic], tmp_path: Path
) -> None:
    dead = [message for topic in topics for message in spark_client.dead(topic).list()]
    zone = spark.conf.get("spark.sql.session.timeZone")
    rows = str(tmp_path / "rows")
    report = run(spark, settings_of(spark_client, *topics, rows=rows))
    assert (report.found, report.chosen, report.examples, report.redriven) == (51, 51, (), {})
    assert {(row.topic, row.error_type): row.dead for row in report.reasons} == Counter(
        (message.topic, message.error_type) for message in dead
    )
    assert [row.dead for row in report.reasons] == [30, 12, 5, 4]
    first = report.reasons[0]
    assert (first.attempts, first.example) == (1.0, "late")
    died_ms = [message.died_ms for message in dead if message.text.startswith("p")]
    assert (first.first_died.timestamp() * 1_000, first.last_died.timestamp() * 1_000) == (min(died_ms), max(died_ms))
    assert {(row.topic, row.slot, row.error_type): row.dead for row in report.slots} == Counter(
        (message.topic, message.slot, message.error_type) for message in dead
    )
    hour_ms = 3_600_000
    assert {(row.topic, row.hour.timestamp() * 1_000, row.error_type): row.dead for row in report.hours} == Counter(
        (message.topic, message.died_ms // hour_ms * hour_ms, message.error_type) for message in dead
    )
    assert spark.read.parquet(rows).count() == 51
    assert spark.conf.get("spark.sql.session.timeZone") == zone
    assert sorted(m.content for topic in topics for m in spark_client.dead(topic).list()) == sorted(
        message.content for message in dead
    )
    check_files(report, tmp_path)


def check_files(report: DeadReport, folder: Path) -> None:
    """Check tables and pictures."""
    files = write_files(report, str(folder / "out"))
    assert {file.name for file in files} == {
        f"by_{name}.{end}" for name in ("reason", "hour", "slot") for end in ("csv", "png")
    }
    for file in files:
        if file.suffix == ".png":
            assert file.read_bytes().startswith(PNG)
            continue
        with file.open(encoding="utf-8", newline="") as text:
            assert sum(int(row["dead"]) for row in csv.DictReader(text)) == 51
    assert "KeyError" in (folder / "out/by_reason.csv").read_text(encoding="utf-8")
    write_files(report, str(folder / "out"), "parquet")
    import pyarrow.parquet as parquet

    for name in ("reason", "hour", "slot"):
        assert sum(parquet.read_table(folder / f"out/by_{name}.parquet")["dead"].to_pylist()) == 51
    assert len(write_files(DeadReport(0, 0, (), (), ()), str(folder / "none"))) == 3, "tables without rows"


def test_a_condition_picks_what_is_redriven_and_a_second_run_finds_nothing(
    spark: SparkSession, spark_client: RmqClient, topics: tuple[Topic, Topic]
) -> None:
    pictures, mails = topics
    where = "error_type IN ('TimeoutError', 'KeyError') AND text <> 'p7' AND hour(died) >= 0"
    dry = run(spark, settings_of(spark_client, *topics, where=where, redrive=True, dry_run=True))
    assert (dry.found, dry.chosen, dry.redriven, len(dry.examples)) == (51, 45, {}, 20)
    assert spark_client.inspect(pictures).stats().dead == 35, "a dry run moves nothing"
    seen: list[DeadReport] = []
    report = run(spark, settings_of(spark_client, *topics, where=where, redrive=True), found=seen.append)
    assert report.redriven == {pictures.name: Counts(rows=29, new=29), mails.name: Counts(rows=16, new=16)}
    assert (seen[0].chosen, len(seen)) == (45, 1)
    assert set(stored(spark_client, pictures)) == {b"p%d" % i for i in range(30) if i != 7}
    found = stored(spark_client, mails)
    assert {name: body for name, (_, _, body) in found.items()} == {
        name: b"body of " + name for name in [*(b"m%d" % i for i in range(12)), *(b"b%d" % i for i in range(4))]
    }
    assert {found[b"b%d" % i][0] for i in range(4)} == {mails.slot_of(b"customer 7")}
    assert [accounts(spark_client, topic) for topic in topics] == [(35, 35), (16, 16)]
    lines = spark_client.inspect(pictures).audit()
    assert [(line.action, line.outcome) for line in lines][:2] == [
        ("redrive", "29 redriven, 0 merged, 0 absent"), ("redrive", "begun")
    ]  # fmt: skip
    again = run(spark, settings_of(spark_client, *topics, where=where, redrive=True))
    assert (again.chosen, again.redriven) == (0, {})


def test_what_the_tables_leave_out_is_redriven_all_the_same(
    spark: SparkSession, spark_client: RmqClient, topics: tuple[Topic, Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures, mails = topics
    monkeypatch.setattr(dead_audit, "MOST_ROWS", 1)
    report = run(spark, settings_of(spark_client, *topics, where="true", redrive=True))
    assert ([row.topic for row in report.reasons], report.chosen) == ([pictures.name], 51)
    assert {name: counts.new for name, counts in report.redriven.items()} == {pictures.name: 35, mails.name: 16}


def test_with_a_priority_and_a_rate(spark: SparkSession, spark_client: RmqClient, topics: tuple[Topic, Topic]) -> None:
    _, mails = topics
    steps: list[str] = []
    again = Again(priority=900, rate=8.0)
    report = run(spark, settings_of(spark_client, mails, where="true", redrive=True, again=again), steps.append)
    assert report.redriven == {mails.name: Counts(rows=16, new=16)}
    assert {score for _, score, _ in stored(spark_client, mails).values()} == {900}
    assert f"redriving 16 messages of topic {mails.name}" in steps
    [bucket] = spark_client._connections.command("KEYS", f"rate:{mails.name}:*")
    assert spark_client._connections.command("HMGET", bucket, "rate", "sent") == [b"8.0", b"16"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"where": "error_typ = 'x'"}, "error_typ"),
        ({"where": "error_type ="}, "'error_type =' is not a valid condition"),
        ({"where": "attempts + 1"}, "'attempts \\+ 1' is not a valid condition"),
        ({"where": "count(*) > 1"}, "condition"),
        ({"where": "cast(error_message as int) = 1"}, "late"),
        ({}, "need a condition"),
        ({"where": "true", "again": Again(priority=900)}, "not priorities"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_moved(
    spark: SparkSession, spark_client: RmqClient, topics: tuple[Topic, Topic], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(RmqError, match=message):
        run(spark, settings_of(spark_client, topics[1], topics[0], redrive=True, **more))
    assert [spark_client.inspect(topic).stats().dead for topic in topics] == [35, 16]


def test_topics_that_have_no_dead_of_their_own(spark: SparkSession, spark_client: RmqClient) -> None:
    stream = Topic(f"audit-{next(numbers)}-stream", TopicType.STREAM)
    spark_client.producer(stream)
    with pytest.raises(InvalidValueError, match="is STREAM"):
        run(spark, settings_of(spark_client, stream))
    with pytest.raises(UnknownTopicError, match="nobody-knows"):
        run(spark, DeadAuditSettings(("nobody-knows",), spark_client.url))
    with pytest.raises(InvalidValueError, match="contains a topic twice"):
        DeadAuditSettings(("a", "a"), spark_client.url)


@pytest.mark.parametrize(("again", "message"), [({"rate": 0}, "rate is 0"), ({"due_in_ms": 0}, "due_in_ms is 0")])
def test_how_they_are_sent_again_is_checked(again: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        Again(**again)
