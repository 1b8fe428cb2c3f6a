"""Moves dead messages through the sink at a limited rate and reports progress, for the jobs that resend messages."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession

from rmq import Topic
from rmq.errors import InvalidValueError
from rmq.spark.jobs import Say, plain_errors
from rmq.spark.option_kinds import MAX_RATE
from rmq.spark.options import parse_options
from rmq.spark.session import watching
from rmq.spark.sink.redrive_writer import RedriveWriter
from rmq.spark.sink.sender import Counts, Limit, sent_so_far
from rmq.spark.sink.writer import write_counted
from rmq.spark.slots import queue_topic
from rmq.spi.scripts import Audit, Connections, parse_url

PROGRESS_LOOK_S = 2.0
DEADLINE_S = 60.0
_ZONE = "spark.sql.session.timeZone"


@dataclass(frozen=True)
class Again:
    """Settings for resending messages.

    Attributes:
        priority: New priority on a PRIORITY topic; by default the priority in an archive, otherwise the lowest.
        due_in_ms: Delay after the send until they are due, ms; `None` for at once. Not for PRIORITY topics.
        rate: Messages per second of all tasks together; `None` for no limit.
        actor: Name in the audit log; by default `user@host`.
    """

    priority: int | None = None
    due_in_ms: int | None = None
    rate: float | None = None
    actor: str | None = None

    def __post_init__(self) -> None:
        if self.rate is not None and not 0.001 <= self.rate <= MAX_RATE:
            raise InvalidValueError(f"rate is {self.rate:g} messages per second; it must be from 0.001 to {MAX_RATE:,}")
        if self.due_in_ms is not None and self.due_in_ms < 1:
            raise InvalidValueError(f"due_in_ms is {self.due_in_ms}; it must be 1 or more")


class Redriver:
    """Moves dead messages of one topic back into its backlog, through the sink.

    Args:
        connections: Connections to Redis, for the audit log.
        url: URL of Redis for Spark's processes.
        topic: The registered definition.
        again: Settings of the redrive.
        limit: Rate limit; by default that of `again`.

    Raises:
        InvalidValueError: `again` does not fit the topic; nothing was moved.

    Guarantee: as for `RedriveWriter`. Another run moves the messages that a failed one left.
    """

    def __init__(
        self, connections: Connections, url: str, topic: Topic, again: Again, limit: Limit | None = None
    ) -> None:
        self._connections, self._topic = connections, topic
        due_in = None if again.due_in_ms is None else f"{again.due_in_ms}ms"
        given = {"priority": again.priority, "time_range": due_in}
        options = {name: str(value) for name, value in given.items() if value is not None}
        self._options = parse_options({"url": url, "topic": topic.name, "redrive": "true", **options})
        self._audit = Audit(connections, topic, again.actor)
        self._limit = limit or limit_for(again)

    def move(self, dead: DataFrame, total: int, meaning: str, say: Say) -> Counts:
        """Move dead messages, given as rows of a read with `queue=dead`, and return the counts."""
        rows, writer = self.check(dead)
        with (
            self._audit.step("redrive", meaning) as note,
            reporting(self._connections, self._topic, self._limit, total, say),
            plain_errors(),
        ):
            counts = write_counted(rows, writer)
            note(f"{counts.new} redriven, {counts.merged} merged, {counts.skipped} absent")
        return counts

    def check(self, dead: DataFrame) -> tuple[DataFrame, RedriveWriter]:
        """Return the columns that the sink needs, and the sink. Raises errors before any message is moved.

        Raises:
            InvalidValueError: The columns or settings do not fit the topic.
        """
        rows = dead.select("topic", "slot", "content", "died")
        return rows, RedriveWriter(rows.schema, self._options, self._limit)


def limit_for(again: Again, chunk: int = 10) -> Limit | None:
    """Return the rate limit of a job, `None` for none; its chunks are small, so that sends are even at a low rate."""
    return None if again.rate is None else Limit(again.rate, chunk)


@contextmanager
def reporting(connections: Connections, topic: Topic, limit: Limit | None, total: int, say: Say) -> Generator[None]:
    """Report the number of messages done every few seconds, if it changed; without a limit they are not counted."""
    if limit is None:
        yield
        return
    reported = 0

    def look() -> None:
        nonlocal reported
        done = sent_so_far(connections, topic, limit)
        if done != reported:
            reported = done
            say(f"topic {topic.name}: {done:,} of {total:,} messages done")

    with watching(look, PROGRESS_LOOK_S):
        yield


def connect(url: str) -> Connections:
    """Return connections for the driver, which the caller must close."""
    return Connections(parse_url(url), deadline_s=DEADLINE_S)


def dead_topic(connections: Connections, name: str) -> Topic:
    """Return a registered topic; raise an error for a STREAM topic, whose dead entries belong to groups."""
    return queue_topic(connections, name, "its dead entries belong to groups; see rmq dead list --group")


def dead_of(spark: SparkSession, url: str, topic: str) -> DataFrame:
    """Return the dead messages of a topic as a frame."""
    reader = spark.read.format("rmq").option("url", url).option("topic", topic).option("queue", "dead")
    with plain_errors():
        return reader.load()


@contextmanager
def in_utc(spark: SparkSession) -> Generator[None]:
    """Set the session's time zone to UTC while a job runs."""
    before = spark.conf.get(_ZONE)
    spark.conf.set(_ZONE, "UTC")
    try:
        yield
    finally:
        with suppress(Exception):  # a session that is gone has no zone
            spark.conf.set(_ZONE, before or "UTC")


def utc(time_ms: int) -> datetime:
    """Return epoch ms as a time in UTC; Spark's own timestamps arrive in local time, without a zone."""
    return datetime.fromtimestamp(time_ms / 1_000, UTC)
