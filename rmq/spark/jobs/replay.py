"""Replay: sends the messages of one day again, at a rate, from a topic's dead messages or an archive of a drain.

Dead messages move back through the sink with `redrive`: if a run is killed, another one moves the rest. An archive is
sent hour by hour. The script that sends a chunk also sets a mark in Redis; a later run skips the marked chunks.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from rmq import Topic
from rmq.errors import InvalidValueError, UnknownTopicError
from rmq.spark.failures import plain_errors
from rmq.spark.jobs import Say, nothing
from rmq.spark.jobs.archive import Archive, check_values, open_archive
from rmq.spark.jobs.redrive import (
    Again,
    Redriver,
    connect,
    dead_of,
    dead_topic,
    in_utc,
    limit_for,
    reporting,
)
from rmq.spark.marks import Mark
from rmq.spark.options import Options, parse_options
from rmq.spark.sink.pacing import Limit
from rmq.spark.sink.sender import Counts, Sending, Target
from rmq.spark.sink.writer import BatchWriter, takes_marks, task_context, write_counted
from rmq.spi.scripts import Connections, Registry

CHUNK = 10
"""Messages in a call. The same at any rate, so that a later run finds the marks of an earlier one."""

KEEP_S = 7 * 86_400
"""Lifetime of the marks of an archive's replay after its last send, seconds."""

MOST_TASKS = 64


@dataclass(frozen=True)
class ReplaySettings:
    """Settings of the job.

    Attributes:
        topic: Name of the topic to which the messages are sent.
        day: Day of the messages in UTC.
        url: URL of Redis for driver and executors.
        again: Settings of the sends; `rate` is required.
        archive: Path or URI of the Parquet files for Spark's processes; `None` for the topic's dead messages, by time
            of death.
        time_column: Column of the archive with the time, a timestamp or epoch ms; by default its only timestamp column.
        from_topic: Topic whose messages are sent, for an archive with a column `topic`; by default `topic`.
        fixed_time_ms: Time when an archive's messages become due on a FIXED_TIME topic, epoch ms.
        run: Name of the replay; with another name, messages sent by an earlier replay are sent again.
        dry_run: Only count the messages.
    """

    topic: str
    day: date
    url: str
    again: Again
    archive: str | None = None
    time_column: str | None = None
    from_topic: str | None = None
    fixed_time_ms: int | None = None
    run: str = ""
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.again.rate is None:
            raise InvalidValueError("rate is missing; a replay needs it, in messages per second")
        if not 1970 <= self.day.year < 3000:
            raise InvalidValueError(f"day is {self.day}; its year must be from 1970 to 2999")
        if self.archive is None:
            for name in ("time_column", "from_topic", "fixed_time_ms", "run"):
                if getattr(self, name) not in (None, ""):
                    raise InvalidValueError(
                        f"{name} can be used with an archive only; dead messages are selected by their time of death"
                    )

    @property
    def begin(self) -> datetime:
        """The start of the day in UTC."""
        return datetime(self.day.year, self.day.month, self.day.day, tzinfo=UTC)

    def name_for(self, found: int, fingerprint: int) -> str:
        """Return the name of a replay of an archive. A later replay with the same name skips the chunks already sent.

        Args:
            found: Number of messages of the day.
            fingerprint: Hash of these messages. If they differ, the old marks must not apply: a chunk of an hour that
                was added later would be taken for one already sent.
        """
        again = self.again
        parts = (self.topic, self.day, self.archive, self.time_column, self.from_topic, self.fixed_time_ms, self.run)
        text = repr((*parts, again.priority, again.due_in_ms, found, fingerprint))
        return "replay" + hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True)
class ReplayReport:
    """Results of a replay.

    Attributes:
        found: Number of messages of the day.
        sent: Number of messages that this run sent: `new` and `merged`.
        new: Messages that were added as new entries.
        merged: Messages that merged with one in the backlog.
        skipped: Messages sent by an earlier run, or no longer dead.
        seconds: Duration of the sends, seconds.
        resumable: Whether a later run skips the messages that this one has sent.
    """

    found: int
    new: int = 0
    merged: int = 0
    skipped: int = 0
    seconds: float = 0.0
    resumable: bool = True

    @property
    def sent(self) -> int:
        """Number of messages that this run sent, both new and merged."""
        return self.new + self.merged

    @property
    def per_second(self) -> float:
        """Messages that this run sent per second."""
        return self.sent / self.seconds if self.seconds else 0.0


def check(settings: ReplaySettings) -> None:
    """Run the checks of `run` that need no Spark.

    Raises:
        InvalidValueError: The topic does not fit the settings.
        UnknownTopicError: The topic is not registered.
    """
    with closing(connect(settings.url)) as connections:
        if settings.archive is None:
            dead_topic(connections, settings.topic)
        else:
            check_values(Registry(connections).get(settings.topic), settings.again, settings.fixed_time_ms)


def run(spark: SparkSession, settings: ReplaySettings, say: Say = nothing) -> ReplayReport:
    """Send the messages of a day again.

    Args:
        spark: A session with `format("rmq")` registered.
        settings: Settings of the job.
        say: Called with a line of text when a step begins, and with the progress every few seconds.

    Raises:
        InvalidValueError: A setting, the archive or one of its messages is invalid; nothing was sent.
        UnknownTopicError: The topic is not registered.
        RmqError: The job failed. Another run continues with the rest.

    Guarantee: dead messages are either dead or in the backlog at any time. Messages of an archive are sent once,
        however many runs it takes, if all runs have the same settings, except for the rate, and find the same messages
        of the day. Otherwise another run sends all of them again, as it does on topics that block or drop sends when
        full, or are PRIORITY with a `ttl` (see `resumable`).
    """
    with closing(connect(settings.url)) as connections, in_utc(spark):
        if settings.archive is None:
            return _replay_dead(spark, connections, settings, say)
        topic = Registry(connections).get(settings.topic)
        return _ArchiveReplay(spark, connections, topic, settings, say).run()


def _replay_dead(spark: SparkSession, connections: Connections, settings: ReplaySettings, say: Say) -> ReplayReport:
    topic = dead_topic(connections, settings.topic)
    redriver = Redriver(connections, settings.url, topic, settings.again, limit_for(settings.again, CHUNK))
    dead = dead_of(spark, settings.url, topic.name)
    redriver.check(dead)
    day = dead.where(_within(F.col("died"), settings.begin, timedelta(days=1))).persist()
    try:
        with plain_errors():
            say("reading the dead messages")
            found = day.count()
        if settings.dry_run or not found:
            return ReplayReport(found)
        began_s = time.monotonic()
        counts = redriver.move(day, found, f"Spark: replay of messages that died on {settings.day}", say)
        return ReplayReport(found, counts.new, counts.merged, counts.skipped, time.monotonic() - began_s)
    finally:
        day.unpersist()


class _ArchiveReplay:
    """One run of the replay of an archive."""

    def __init__(
        self, spark: SparkSession, connections: Connections, topic: Topic, settings: ReplaySettings, say: Say
    ) -> None:
        self._spark, self._connections, self._topic = spark, connections, topic
        self._settings, self._say = settings, say
        self._limit = limit_for(settings.again, CHUNK)
        self._resumable = takes_marks(topic)
        self._name: str | None = None

    def run(self) -> ReplayReport:
        settings = self._settings
        archive = open_archive(self._spark, settings.archive or "", settings.time_column)
        self._check_slots(archive)
        rows = archive.messages(self._topic, settings.again, settings.fixed_time_ms, settings.from_topic)
        rows = rows.where(_within(F.col("_time"), settings.begin, timedelta(days=1)))
        self._writer(rows.drop("_time").schema, 0)  # finds out what does not fit
        with plain_errors():
            self._say("reading the archive")
            hours, fingerprint = self._look(archive, rows)
        found = sum(hours.values())
        if self._resumable:
            self._name = settings.name_for(found, fingerprint)
        if settings.dry_run or not found:
            return ReplayReport(found, resumable=self._resumable)
        began_s, sent = time.monotonic(), list[Counts]()
        with reporting(self._connections, self._topic, self._limit, found, self._say), plain_errors():
            for hour in sorted(hours):
                self._say(f"hour {hour:02d}: {hours[hour]:,} messages")
                sent.append(self._send(rows, hour))
        total, seconds = Counts.total(sent), time.monotonic() - began_s
        return ReplayReport(found, total.new, total.merged, total.skipped, seconds, self._resumable)

    def _check_slots(self, archive: Archive) -> None:
        """Raise an error for slots computed for another number of slots: equal contents would be in different slots."""
        name = self._settings.from_topic
        if name is None or "slot" not in archive.frame.columns:
            return
        try:
            slots = Registry(self._connections).get(name).slots
        except UnknownTopicError:  # of another Redis, or gone
            return
        if slots != self._topic.slots:
            raise InvalidValueError(
                f"archive {self._settings.archive!r}: its column slot was computed for topic {name} with "
                f"{slots} slots, but topic {self._topic.name} has {self._topic.slots}. Drop the column; if the "
                "slots were not computed from content, rename the column from which they were computed to slot_basis"
            )

    def _look(self, archive: Archive, rows: DataFrame) -> tuple[dict[int, int], int]:
        """Return the number of messages of each hour, and a hash of all messages that does not depend on their order.

        Raises:
            InvalidValueError: A message breaks a rule of the topic.
        """
        hours, fingerprint = dict[int, int](), 0
        begin_s = int(self._settings.begin.timestamp())
        hour = F.floor((F.unix_seconds("_time") - begin_s) / 3_600).cast("int").alias("hour")
        problem = archive.problem(self._topic).alias("problem")
        prints = F.sum(F.xxhash64(*rows.columns).cast("decimal(20,0)")).alias("prints")
        counted = rows.groupBy(hour, problem).agg(F.count("*").alias("number"), prints)
        for row in counted.collect():
            if row.problem is not None:
                raise InvalidValueError(
                    f"archive {self._settings.archive!r}: messages of hour {row.hour} cannot be sent to topic "
                    f"{self._topic.name} ({row.number:,} in all): {row.problem}; nothing was sent"
                )
            hours[row.hour] = hours.get(row.hour, 0) + row.number
            fingerprint += int(row.prints)
        return hours, fingerprint

    def _send(self, rows: DataFrame, hour: int) -> Counts:
        begin = self._settings.begin + timedelta(hours=hour)
        part = rows.where(_within(F.col("_time"), begin, timedelta(hours=1)))
        # the same rows, in the same order, in the task of the same number: in every run
        part = part.repartition(min(self._topic.slots, MOST_TASKS), "slot").sortWithinPartitions(*part.columns)
        part = part.drop("_time")
        return write_counted(part, self._writer(part.schema, hour))

    def _writer(self, schema: StructType, hour: int) -> _ReplayWriter:
        options = {"url": self._settings.url, "topic": self._topic.name, "merge": "none", "trustSlot": "true"}
        return _ReplayWriter(schema, parse_options(options), self._limit, self._name, hour)


class _ReplayWriter(BatchWriter):
    """The batch sink, with marks for chunks as those of a streaming query; the batch number is the hour."""

    def __init__(
        self, schema: StructType, options: Options, limit: Limit | None, query: str | None, batch: int
    ) -> None:
        super().__init__(schema, options)
        target = cast("Target", self._target)
        sending = Sending(False, options.merge_rows, min(CHUNK, target.sending.chunk), 1)
        self._target = replace(target, sending=sending, limit=limit)
        self._query, self._batch = query, batch

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Send the rows of one task, and return its counts."""
        return self._write(iterator, f"hour-{self._batch:02d}-part-{task_context().partitionId():05d}")

    def _marks(self, topic: Topic) -> bool:
        return self._query is not None

    def _mark(self, topic: Topic) -> Mark:
        return Mark(self._query or "", self._batch, task_context().partitionId(), KEEP_S)


def _within(column: Any, begin: datetime, span: timedelta) -> Any:
    """Return the condition that a timestamp is in a period, in epoch seconds, which do not depend on the time zone."""
    first, end = (int(moment.timestamp()) for moment in (begin, begin + span))
    return (column >= F.timestamp_seconds(F.lit(first))) & (column < F.timestamp_seconds(F.lit(end)))
