"""Replay: sends the messages of one day again, at a rate, from a topic's dead messages or an archive of a drain.

Dead messages move back through the sink with `redrive`: if a run is killed, another one moves the rest. An archive is
sent hour by hour. The script that sends a chunk also sets a mark in Redis; a later run skips the marked chunks.

An `Archive` is Parquet files with messages that a drain took from a topic, and the time of each. Messages of a topic
with `merge=` have the columns of their records, whose values are checked before anything is sent.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from rmq import Collect, Merge, Topic, TopicType
from rmq.errors import InvalidValueError, UnknownTopicError
from rmq.spark.folding import with_slot
from rmq.spark.jobs import SPARK_ERRORS, Say, nothing, one_line, plain_errors
from rmq.spark.jobs.redrive import Again, Redriver, connect, dead_of, dead_topic, in_utc, limit_for, reporting
from rmq.spark.marks import Mark
from rmq.spark.options import Options, parse_options
from rmq.spark.schema import lowered
from rmq.spark.sink.sender import Counts, Limit, Sending, Target
from rmq.spark.sink.writer import BatchWriter, takes_marks, task_context, write_counted
from rmq.spi.scripts import BODIES, MAX_COUNT, MAX_WHOLE, NUMBERS, Connections, Registry

_PAYLOAD = ("string", "binary")
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_COLUMNS = {
    "content": _PAYLOAD, "body": _PAYLOAD, "slot_basis": _PAYLOAD, "slot": _WHOLE, "priority": _WHOLE,
    "topic": ("string",), "value": (*_WHOLE, "float", "double"), "items": ("array<binary>", "array<string>"),
    "wanted": _WHOLE, "version": _WHOLE, "merged": _WHOLE,
}  # fmt: skip
"""The columns of an archive that are read, with the allowed types of each."""


@dataclass(frozen=True)
class Archive:
    """Messages in Parquet files.

    Attributes:
        frame: All rows and columns of the files.
        time: Name of the column with the time of each message.
    """

    frame: DataFrame
    time: str

    def messages(
        self, topic: Topic, again: Again, fixed_time_ms: int | None, from_topic: str | None = None
    ) -> DataFrame:
        """Return the messages with the columns of a sink for a topic, and their time as `_time`.

        Args:
            topic: The topic to which they are sent.
            again: Settings of the sends.
            fixed_time_ms: Time when they become due on a FIXED_TIME topic, epoch ms.
            from_topic: Topic whose messages are sent, if the archive has a column `topic`; by default `topic`.

        Raises:
            InvalidValueError: A setting does not fit the topic, or the archive.
        """
        frame, names = self.frame, self.frame.columns
        if from_topic is not None and "topic" not in names:
            raise InvalidValueError(f"from_topic is {from_topic}, but the archive has no column topic to filter on")
        if "topic" in names:
            frame = frame.where(F.col("topic") == (from_topic or topic.name))
        time = F.col(self.time)
        if dict(frame.dtypes)[self.time] == "bigint":
            time = F.timestamp_millis(time)
        if "slot" not in names:
            frame = with_slot(frame, topic.slots)
        columns = [time.alias("_time"), F.col("slot").cast("bigint").alias("slot")]
        payloads = ("content", "body") if _has_body(topic) else ("content",)
        columns += [F.col(name).cast("binary").alias(name) for name in payloads if name in names]
        if topic.merge is not None:
            columns += [_recorded(name) for name in record_columns(topic.merge) if name in names]
        return frame.select(*columns, *_value(topic, again, fixed_time_ms, names))

    def problem(self, topic: Topic) -> Column:
        """Return the error in a row of `messages` as text; null for a valid row."""
        length = F.length("content")
        longest = topic.max_content_bytes
        found = (
            F.when(F.col("content").isNull(), F.lit("content is null"))
            .when(~length.between(1, longest), F.lit(f"content must be 1 to {longest} bytes long"))
            .when(F.col("slot").isNull(), F.lit("slot is null"))
            .when(~F.col("slot").between(0, topic.slots - 1), F.lit(f"slot must be 0 to {topic.slots - 1}"))
        )
        if "body" in self.frame.columns and _has_body(topic):
            too_long = F.length("body") > topic.max_body_bytes
            found = found.when(too_long, F.lit(f"body must be at most {topic.max_body_bytes} bytes long"))
        if topic.merge is not None:
            found = record_problem(topic, topic.merge, self.frame.columns, found)
        if topic.type is TopicType.PRIORITY:
            lowest, highest = topic.priorities
            fits = F.col("priority").between(lowest, highest)
            found = found.when(~fits, F.lit(f"priority must be from {lowest} to {highest}"))
        return found


def open_archive(spark: SparkSession, path: str, time_column: str | None = None) -> Archive:
    """Open the archive at a path, and check its columns.

    Args:
        spark: The session.
        path: Path or URI of the Parquet files for Spark's processes.
        time_column: Column with the time, a timestamp or epoch ms; by default the only timestamp column.

    Raises:
        InvalidValueError: The path cannot be read, or a column is missing or has another type.
    """
    try:
        frame = spark.read.parquet(path)
        frame = frame.toDF(*lowered(frame.schema).names)  # capital letters make no difference, as in the sinks
        types = dict(frame.dtypes)
    except SPARK_ERRORS as error:
        raise InvalidValueError(f"archive {path!r} cannot be read: {one_line(error)}") from None
    if "content" not in types:
        raise InvalidValueError(f"archive {path!r} has no column content; its columns are {', '.join(types)}")
    for name, kinds in _COLUMNS.items():
        if name in types and types[name] not in kinds:
            raise InvalidValueError(
                f"archive {path!r}: column {name} is {types[name]}; it must be {' or '.join(kinds)}"
            )
    times = [name for name, kind in types.items() if kind == "timestamp"]
    if time_column is None:
        if len(times) != 1:
            there = ", ".join(times) or "none"
            raise InvalidValueError(
                f"archive {path!r}: set time_column to the column with the time; the timestamp columns are: {there}"
            )
        time_column = times[0]
    elif types.get(time_column := time_column.lower()) not in ("timestamp", "bigint"):
        kind = types.get(time_column, "missing")
        raise InvalidValueError(
            f"archive {path!r}: column {time_column} is {kind}; it must be a timestamp, or a bigint with epoch ms"
        )
    return Archive(frame, time_column)


def _has_body(topic: Topic) -> bool:
    return topic.merge is None or topic.merge.kind in BODIES


def _recorded(name: str) -> Column:
    return F.col(name).cast("array<binary>").alias(name) if name == "items" else F.col(name)


def check_values(topic: Topic, again: Again, fixed_time_ms: int | None) -> None:
    """Check that priority and times are settings of this type of topic.

    Raises:
        InvalidValueError: A setting is for topics of another type, or `fixed_time_ms` is missing.
    """
    if again.priority is not None and topic.type is not TopicType.PRIORITY:
        raise InvalidValueError(f"topic {topic.name} is {topic.type.name}; priority is for PRIORITY topics")
    if again.due_in_ms is not None and topic.type is not TopicType.RANGE_MERGE:
        raise InvalidValueError(f"due_in_ms is for RANGE_MERGE topics; topic {topic.name} is {topic.type.name}")
    if (fixed_time_ms is not None) != (topic.type is TopicType.FIXED_TIME):
        raise InvalidValueError(
            f"topic {topic.name} is {topic.type.name}: {'set' if fixed_time_ms is None else 'remove'} fixed_time_ms, "
            "the time when all messages of an archive become due on a FIXED_TIME topic"
        )


def _value(topic: Topic, again: Again, fixed_time_ms: int | None, names: list[str]) -> list[Column]:
    """Return the column with the time range, fixed time or priority of the messages; none for a STREAM topic."""
    check_values(topic, again, fixed_time_ms)
    match topic.type:
        case TopicType.RANGE_MERGE:
            return [F.lit(again.due_in_ms or 1).cast("bigint").alias("time_range")]
        case TopicType.FIXED_TIME:
            return [F.lit(fixed_time_ms).cast("bigint").alias("fixed_time")]
        case TopicType.PRIORITY:
            lowest = F.lit(topic.priorities[0])
            known = F.coalesce(F.col("priority"), lowest) if "priority" in names else lowest
            chosen = known if again.priority is None else F.lit(again.priority)
            return [chosen.cast("bigint").alias("priority")]
        case TopicType.STREAM:
            return []


def record_columns(merge: Merge) -> tuple[str, ...]:
    """Return the columns of a read from which a record is created, without `body`."""
    if merge.kind in BODIES:
        return ("merged", "version") if merge.kind == "N" else ("merged",)
    if merge.kind in NUMBERS:
        return "merged", "value"
    return ("merged", "items", "wanted") if merge.joins else ("merged", "items")


def record_problem(topic: Topic, merge: Merge, names: Sequence[str], found: Column) -> Column:
    """Return the error in a row as text: one found earlier, or an invalid record."""
    if "merged" in names:
        found = found.when(~_holds("merged", 1, MAX_COUNT), F.lit(f"merged must be from 1 to {MAX_COUNT}"))
    if merge.kind == "N" and "version" in names:
        found = found.when(~_holds("version", 0, MAX_WHOLE), F.lit("version must be from 0 to 2^53 - 1"))
    if merge.kind in NUMBERS and "value" in names:
        most = float(MAX_WHOLE) if merge.kind == "S" else 1.7976931348623157e308
        found = found.when(
            ~_holds("value", -most, most), F.lit("value must be a finite number within the topic's bounds")
        )
    if isinstance(merge.reduce, Collect) and "items" in names:
        number = F.size("items")
        size = F.aggregate("items", F.lit(0), lambda total, item: total + F.length(item) + 4)
        fits = number.between(1, merge.reduce.max_items) & (size <= merge.reduce.max_bytes)
        rule = (
            f"items must have 1 to {merge.reduce.max_items} entries, and at most "
            f"{merge.reduce.max_bytes} bytes in total, with 4 bytes added to the size of each"
        )
        found = found.when(~F.coalesce(fits, F.lit(False)), F.lit(rule))
        longest = F.aggregate("items", F.lit(0), lambda most, item: F.greatest(most, F.length(item)))
        found = found.when(
            longest > topic.max_body_bytes, F.lit(f"an item must be at most {topic.max_body_bytes} bytes long")
        )
    return found


def _holds(name: str, low: float, high: float) -> Column:
    return F.coalesce(F.col(name).between(low, high), F.lit(False))


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
