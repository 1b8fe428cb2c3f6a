"""Moves old entries of a STREAM topic to Parquet files by day, and reads archive and topic as one table.

A folder `out` belongs to one topic and one group: `entries/day=D/batch=N` (Parquet) and `checkpoint`. The job is a
streaming query that ends after the last entry that is old enough. The position of its group is the end of the archive,
so retention does not drop entries that are not archived yet. A batch overwrites its folders, so that repeating it adds
nothing. Only batches that Spark has committed are trimmed, and only these are read by `whole_stream`. A lock in Redis
(`Turn`) allows one run at a time: two runs that write a batch could delete each other's files.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, LongType, StructField, StructType

from rmq import Retention, StreamTopic, Topic, TopicType
from rmq.errors import DriverReplacedError, InvalidValueError, RmqError
from rmq.spark.calls import lock_run
from rmq.spark.jobs import SPARK_ERRORS, Say, nothing, one_line, plain_errors
from rmq.spark.jobs.redrive import connect, utc
from rmq.spark.option_kinds import MOST_MESSAGES
from rmq.spark.options import parse_options
from rmq.spark.schema import ENTRIES
from rmq.spark.session import watching
from rmq.spark.source.batches import LogBatch
from rmq.spark.source.log_driver import LogDriver
from rmq.spi.scripts import Connections, Lock, Registry, call_slots, checked_group, look_at_stream, read_stream

DAY_MS = 86_400_000

COLUMNS = StructType([*(field for field in ENTRIES if field.name != "only_group"), StructField("day", DateType())])
"""The columns of an archive."""

_STORED = StructType([*COLUMNS, StructField("batch", LongType())])


@dataclass(frozen=True)
class ArchiveSettings:
    """Settings of the job.

    Attributes:
        topic: Name of the STREAM topic.
        out: Folder of the archive, a path or URI for Spark's processes.
        url: URL of Redis for driver and executors.
        older_than_ms: Minimum age of archived entries, ms.
        group: Name of the archive's consumer group.
        batch: Maximum number of entries in a batch.
        trim_after_ms: Time for which entries stay in the topic after their batch was committed, ms.
        trim: Whether to trim the topic; if not, its retention does.
        accept_loss: Continue even if entries were deleted, or may have been trimmed, before they were archived.
    """

    topic: str
    out: str
    url: str
    older_than_ms: int
    group: str = "archive"
    batch: int = 100_000
    trim_after_ms: int = 0
    trim: bool = True
    accept_loss: bool = False

    def __post_init__(self) -> None:
        checked_group(self.group)
        if not self.out:
            raise InvalidValueError("out is empty; it must name a folder")
        if not 1 <= self.batch <= MOST_MESSAGES:
            raise InvalidValueError(f"batch is {self.batch}; it must be from 1 to {MOST_MESSAGES:,}")
        for name in ("older_than_ms", "trim_after_ms"):
            if getattr(self, name) < 0:
                raise InvalidValueError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        if self.trim_after_ms and not self.trim:
            raise InvalidValueError("trim_after_ms cannot be combined with trim=False")


@dataclass(frozen=True)
class ArchiveReport:
    """Results of a run.

    Attributes:
        before: Time before which all entries are archived, UTC.
        archived: Number of entries that this run wrote.
        batches: Number of batches that this run wrote.
        trimmed: Number of entries that this run trimmed.
        held_slots: Number of slots with archived entries that stay in the topic because a group still needs them.
    """

    before: datetime
    archived: int
    batches: int
    trimmed: int
    held_slots: int


class Commit(NamedTuple):
    """A batch that Spark has committed.

    Attributes:
        number: Number of the batch in the names of the folders.
        batch: The end offset of the batch.
    """

    number: int
    batch: LogBatch


def check(settings: ArchiveSettings) -> None:
    """Run the checks of `run` that need no Spark.

    Raises:
        InvalidValueError: The topic is not a STREAM, or its retention may drop entries before they are archived.
        UnknownTopicError: The topic is not registered.
    """
    with closing(connect(settings.url)) as connections:
        _kept_topic(connections, settings)


def run(spark: SparkSession, settings: ArchiveSettings, say: Say = nothing) -> ArchiveReport:
    """Archive the entries that are old enough, and trim those that Spark has committed.

    Args:
        spark: A session with `format("rmq")` registered.
        settings: Settings of the job.
        say: Called with a line of text when a step begins.

    Raises:
        InvalidValueError: A setting does not fit the topic or the folder; nothing was written.
        UnknownTopicError: The topic is not registered.
        DriverReplacedError: Another run is active, or started while this one was paused.
        RmqError: The job failed. Another run continues with the remaining entries.

    Guarantee: each entry is in the archive exactly once, even if runs are killed and repeated. Entries are trimmed only
        after Spark has committed their batch and all groups have settled them.
    """
    with closing(connect(settings.url)) as connections:
        topic = _kept_topic(connections, settings)
        return _Run(spark, connections, topic, settings, say).run()


def whole_stream(spark: SparkSession, url: str, topic: str, out: str) -> DataFrame:
    """Return the current archive and topic as one table with each entry once.

    Args:
        spark: A session with `format("rmq")` registered.
        url: URL of Redis for driver and executors.
        topic: Name of the topic.
        out: Folder of the archive; it may be missing.

    Returns:
        The columns of entries, without `only_group`, and `day` in UTC. Copies redriven into one group are omitted.

    Raises:
        InvalidValueError: The folder is not an archive of this topic.
        UnknownTopicError: The topic is not registered.

    Guarantee: the rows are those at the time of the call. If a run of the job has archived and trimmed entries since
        then, an action fails rather than returning wrong rows; call `whole_stream` again.
    """
    with closing(connect(url)) as connections:
        known = _stream_topic(connections, topic)
        while True:
            commit = last_commit(spark, out)
            _check_archive(commit, known, out)
            ranges = _ranges(connections, known, {} if commit is None else commit.batch.ends)
            # trimmed is only what is committed: so nothing was trimmed before the ranges were asked for
            if _newest(_commits(spark, out)) == (None if commit is None else commit.number):
                break
    reader = spark.read.format("rmq").option("url", url).option("topic", topic)
    with plain_errors():
        live = reader.option("ranges", json.dumps(ranges)).load().where("only_group is null")
        live = live.withColumn("day", _day()).select(*COLUMNS.names)
        if commit is None:
            return live
        kept = spark.read.schema(_STORED).parquet(_entries(out)).where(F.col("batch") <= commit.number)
        return kept.select(*COLUMNS.names).unionByName(live)


def last_commit(spark: SparkSession, out: str, until_s: float | None = None) -> Commit | None:
    """Return the newest committed batch of an archive, or `None`.

    Args:
        spark: The session.
        out: Folder of the archive.
        until_s: Ignore batches committed after this time, epoch seconds.
    """
    done = {number: time_s for number, time_s in _commits(spark, out).items() if until_s is None or time_s <= until_s}
    number = _newest(done)
    if number is None:
        return None
    with plain_errors():
        lines = [row.value for row in spark.read.text(f"{_checkpoint(out)}/offsets/{number}").collect()]
    for line in lines:
        with suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict) and "qid" in found:
                return Commit(number, LogBatch.from_offset(found))  # pyright: ignore[reportUnknownArgumentType]
    raise InvalidValueError(
        f"folder {out!r} is not an archive of a STREAM topic: its checkpoint belongs to another query"
    )


def _commits(spark: SparkSession, out: str) -> dict[int, float]:
    """Return the committed batches, number -> time in epoch seconds; Spark keeps about the last hundred."""
    file = "_metadata.file_name", "_metadata.file_modification_time"
    try:
        texts = spark.read.option("ignoreMissingFiles", "true").text(f"{_checkpoint(out)}/commits")
        rows = texts.select(F.col(file[0]).alias("name"), F.unix_millis(file[1]).alias("ms")).distinct().collect()
    except SPARK_ERRORS as error:
        if "PATH_NOT_FOUND" in str(error):
            return {}
        raise InvalidValueError(f"archive {out!r} cannot be read: {one_line(error)}") from None
    return {int(row.name): row.ms / 1_000 for row in rows if row.name.isdigit()}


def _newest(commits: Mapping[int, float]) -> int | None:
    return max(commits, default=None)


def _entries(out: str) -> str:
    return f"{out.rstrip('/')}/entries"


def _checkpoint(out: str) -> str:
    return f"{out.rstrip('/')}/checkpoint"


def _day() -> Column:
    """Return the day of an entry in UTC, computed from its id, which does not depend on the session's time zone."""
    sent_ms = F.split_part("id", F.lit("-"), F.lit(1)).cast("bigint")
    return F.date_from_unix_date(F.floor(sent_ms / DAY_MS).cast("int"))


def _stream_topic(connections: Connections, name: str) -> Topic:
    topic = Registry(connections).get(name)
    if topic.type is not TopicType.STREAM:
        raise InvalidValueError(f"topic {name} is {topic.type.name}; only STREAM topics can be archived", topic=name)
    return topic


def _kept_topic(connections: Connections, settings: ArchiveSettings) -> Topic:
    """Return the topic; raise an error if its retention may drop entries before they are archived."""
    topic = _stream_topic(connections, settings.topic)
    if (topic.retention or Retention()).unacked and not settings.accept_loss:
        raise InvalidValueError(
            f"the retention of topic {topic.name} also drops entries that groups have not acked (unacked), "
            "so the archive may miss entries. Change the retention, or set accept_loss",
            topic=topic.name,
        )
    return topic


def _check_archive(commit: Commit | None, topic: Topic, out: str, group: str | None = None) -> None:
    """Raise an error for the archive of another topic or another group."""
    if commit is None:
        return
    batch = commit.batch
    if batch.topic != topic.name or group not in (None, batch.group):
        raise InvalidValueError(
            f"folder {out!r} is the archive of topic {batch.topic} by group {batch.group}; use another folder",
            topic=topic.name,
        )


def _ranges(connections: Connections, topic: Topic, ends: Mapping[int, str]) -> dict[str, tuple[str, str]]:
    """Return the ids of the first and last entry after the archive, by slot; slots without entries are omitted."""
    slots = range(topic.slots)
    pages = call_slots(
        connections,
        slots,
        lambda slot: read_stream(topic, slot, f"({ends.get(slot, '0-0')}", "+", 1, down=False),
    )
    lasts = StreamTopic(connections, topic).stats().slots
    return {
        str(slot): (page[0].id, last.last_id or page[0].id)
        for slot, page, last in zip(slots, pages, lasts, strict=True)
        if page
    }


class _Run:
    """One run of the job."""

    def __init__(
        self, spark: SparkSession, connections: Connections, topic: Topic, settings: ArchiveSettings, say: Say
    ) -> None:
        self._spark, self._connections, self._topic = spark, connections, topic
        self._settings, self._say = settings, say
        self._options = {"url": settings.url, "topic": topic.name, "group": settings.group, "start": "all"}
        self._options |= {"failOnDataLoss": str(not settings.accept_loss).lower()}
        self._written: list[int] = []
        self._turn = Turn(connections, topic, settings.group)

    def run(self) -> ArchiveReport:
        with self._turn.held(self._say):
            return self._run()

    def _run(self) -> ArchiveReport:
        settings, topic = self._settings, self._topic
        self._say(f"reading archive {settings.out}")
        _check_archive(last_commit(self._spark, settings.out), topic, settings.out, settings.group)
        self._check_checkpoint()
        now_ms, _ = self._connections.run(look_at_stream(topic, [0], settings.group))
        before_ms = max(1, now_ms - settings.older_than_ms)
        self._archive(before_ms)
        trimmed, held = self._trim()
        return ArchiveReport(utc(before_ms), self._count(), len(self._written), trimmed, held)

    def _check_checkpoint(self) -> None:
        """Raise an error for files without a checkpoint: new batches would start at number 0 and overwrite them."""
        out = self._settings.out
        try:
            self._spark.read.text(f"{_checkpoint(out)}/offsets")
        except SPARK_ERRORS as error:
            if "PATH_NOT_FOUND" not in str(error):
                raise InvalidValueError(f"archive {out!r} cannot be read: {one_line(error)}") from None
            with suppress(*SPARK_ERRORS):
                if not self._spark.read.schema(_STORED).parquet(_entries(out)).isEmpty():
                    raise InvalidValueError(
                        f"folder {out!r} has entries but no checkpoint: restore the checkpoint, or use another folder "
                        "and another group"
                    ) from None

    def _archive(self, before_ms: int) -> None:
        settings = self._settings
        options = self._options | {"last": str(before_ms - 1), "maxMessagesPerTrigger": str(settings.batch)}
        self._say(f"archiving entries of topic {self._topic.name} from before {utc(before_ms):%Y-%m-%d %H:%M:%S} UTC")
        with plain_errors():
            frame = self._spark.readStream.format("rmq").options(**options).load()
            writer = frame.where("only_group is null").withColumn("day", _day()).select(*COLUMNS.names).writeStream
            writer = writer.foreachBatch(self._write).option("checkpointLocation", _checkpoint(settings.out))
            query = writer.queryName(f"archive {self._topic.name}").trigger(availableNow=True).start()
            try:
                query.awaitTermination()
            finally:
                query.stop()

    def _write(self, frame: DataFrame, number: int) -> None:
        """Write one batch, replacing files that a failed attempt left."""
        self._turn.check()
        self._say(f"batch {number}: writing")
        rows = frame.withColumn("batch", F.lit(number).cast("bigint"))
        rows = rows.repartition("day").sortWithinPartitions("day", "batch", "slot", "sent")
        writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic").partitionBy("day", "batch")
        writer.parquet(_entries(self._settings.out))
        self._written.append(number)
        self._say(f"batch {number}: written")

    def _count(self) -> int:
        """Return the number of entries that this run has written."""
        if not self._written:
            return 0
        with plain_errors():
            stored = self._spark.read.schema(_STORED).parquet(_entries(self._settings.out))
            return stored.where(F.col("batch").between(min(self._written), max(self._written))).count()

    def _trim(self) -> tuple[int, int]:
        """Move the group to the end of the archive, and trim; return the numbers of trimmed entries and held slots."""
        settings = self._settings
        commit = last_commit(self._spark, settings.out)
        if commit is None:
            return 0, 0
        with closing(LogDriver(parse_options(self._options), self._topic)) as driver:
            self._say(f"moving group {settings.group}")
            driver.ack(commit.batch)
            if settings.trim_after_ms:
                commit = last_commit(self._spark, settings.out, time.time() - settings.trim_after_ms / 1_000)
            if not settings.trim or commit is None:
                return 0, 0
            self._say(f"trimming topic {self._topic.name}")
            return driver.trim(commit.batch.ends, self._say)


HOLD_MS = 20_000
"""Lifetime of the lock, ms: the next run waits this long after a run was killed."""

RENEW_S = 4.0
_LOOK_S = 0.5


class Turn:
    """A lock in Redis for a run. Others wait until it expires, and fail if its holder renews it.

    Args:
        connections: Connections to Redis.
        topic: The definition.
        group: Name of the archive's group.
    """

    def __init__(self, connections: Connections, topic: Topic, group: str) -> None:
        self._connections, self._topic, self._group = connections, topic, group
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"

    @contextmanager
    def held(self, say: Say) -> Generator[None]:
        """Context manager that makes this the only active run.

        Raises:
            DriverReplacedError: Another run of the job is active.
        """
        self._take(say)
        try:
            with watching(self._renew, RENEW_S):
                yield
        finally:
            with suppress(RmqError):
                self._ask(0, keep=True)

    def check(self) -> None:
        """Renew the lock, and check that this run still holds it.

        Raises:
            DriverReplacedError: Another run has the lock, for example after a pause longer than its lifetime.
        """
        if self._ask(HOLD_MS, keep=True).holder != self._holder:
            raise self._at_work("this run no longer has the lock: another run was started, or Redis lost the lock")

    def _take(self, say: Say) -> None:
        before: Lock | None = None
        while True:
            found = self._ask(HOLD_MS, keep=False)
            if found.holder == self._holder:
                return
            if before is None:
                say(f"waiting for run {found.holder} to end")
            elif found[:2] != before[:2]:  # it was renewed, so that its holder is alive
                raise self._at_work(f"another run ({found.holder}) is active")
            before = found
            time.sleep(_LOOK_S)

    def _renew(self) -> None:
        self._ask(HOLD_MS, keep=True)

    def _ask(self, hold_ms: int, *, keep: bool) -> Lock:
        return self._connections.run(lock_run(self._topic, self._group, self._holder, hold_ms, keep=keep))

    def _at_work(self, what: str) -> DriverReplacedError:
        return DriverReplacedError(
            f"topic {self._topic.name}, archive group {self._group}: {what}; only one run may be active",
            topic=self._topic.name,
        )
