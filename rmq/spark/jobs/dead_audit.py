"""The audit of dead letters: counts by error, hour and slot; on request it redrives the selected messages.

The job reads the selected messages of all topics once and caches them, so tables, charts and redrive agree.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import astuple, dataclass, field, fields
from datetime import datetime
from functools import reduce
from operator import attrgetter
from typing import Any, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rmq import Topic
from rmq.errors import InvalidValueError
from rmq.spark.jobs import Say, nothing, one_line, plain_errors
from rmq.spark.jobs.redrive import Again, Redriver, connect, dead_of, dead_topic, in_utc, utc
from rmq.spark.sink.sender import Counts
from rmq.spi.scripts import Connections

MOST_ROWS = 100_000
"""Maximum number of rows of a table, those with the largest counts; a row is an error type in an hour or slot."""

MOST_EXAMPLES = 20


@dataclass(frozen=True)
class DeadAuditSettings:
    """Settings of the job.

    Attributes:
        topics: Names of the topics whose dead messages are read.
        url: URL of Redis for driver and executors.
        where: Spark SQL condition on the columns of a read with `queue=dead`, and on `text`, the content as text;
            `None` for all messages. Times are UTC.
        rows: Folder for the selected messages as Parquet, a path or URI for Spark's processes; it must not exist.
        redrive: Whether to move the selected messages back into the backlog; requires `where`.
        dry_run: Only report which messages a redrive would move.
        again: Settings of the redrive.
    """

    topics: tuple[str, ...]
    url: str
    where: str | None = None
    rows: str | None = None
    redrive: bool = False
    dry_run: bool = False
    again: Again = field(default_factory=Again)

    def __post_init__(self) -> None:
        if not self.topics:
            raise InvalidValueError("topics is empty; name at least one topic")
        if len(set(self.topics)) < len(self.topics):
            raise InvalidValueError(f"topics contains a topic twice: {', '.join(self.topics)}")
        if (self.redrive or self.dry_run) and self.where is None:
            raise InvalidValueError("redrive and dry_run need a condition; where='true' selects all dead messages")


@dataclass(frozen=True)
class Reason:
    """The dead messages of one topic with one error type.

    Attributes:
        topic: Topic name.
        error_type: Type of the last error; empty if unknown.
        dead: Number of dead messages.
        attempts: Average number of deliveries of a message.
        first_died: Earliest time of death, UTC.
        last_died: Latest time of death, UTC.
        example: Error message of the message that died last.
    """

    topic: str
    error_type: str
    dead: int
    attempts: float
    first_died: datetime
    last_died: datetime
    example: str


@dataclass(frozen=True)
class HourCount:
    """The number of dead messages of one topic, hour (its start, UTC) and error type."""

    topic: str
    hour: datetime
    error_type: str
    dead: int


@dataclass(frozen=True)
class SlotCount:
    """The number of dead messages of one topic, slot and error type."""

    topic: str
    slot: int
    error_type: str
    dead: int


@dataclass(frozen=True)
class Example:
    """A dead message that would be redriven."""

    topic: str
    slot: int
    content: bytes
    died: datetime
    error_type: str
    error_message: str


Value = TypeVar("Value", Reason, HourCount, SlotCount, Example)


@dataclass(frozen=True)
class DeadReport:
    """Results of an audit: dead messages by error, hour and slot, and those redriven.

    Attributes:
        found: Number of dead messages of all topics; with a condition, counted shortly after the selected ones.
        chosen: Number of messages that the condition selects; the tables contain only these.
        reasons: Counts by topic and error type, the largest first.
        hours: Counts by topic, hour and error type, the earliest first.
        slots: Counts by topic, slot and error type.
        examples: For a dry run, the messages to redrive that died first.
        redriven: Topic -> counts: `new` (in the backlog again), `merged` (with a newer copy) and `skipped` (no longer
            dead); empty without a redrive.
    """

    found: int
    chosen: int
    reasons: tuple[Reason, ...]
    hours: tuple[HourCount, ...]
    slots: tuple[SlotCount, ...]
    examples: tuple[Example, ...] = ()
    redriven: dict[str, Counts] = field(default_factory=dict[str, Counts])


def check(settings: DeadAuditSettings) -> None:
    """Run the checks of `run` that need no Spark.

    Raises:
        InvalidValueError: A topic is a STREAM.
        UnknownTopicError: A topic is not registered.
    """
    with closing(connect(settings.url)) as connections:
        _topics(connections, settings)


def run(
    spark: SparkSession,
    settings: DeadAuditSettings,
    say: Say = nothing,
    found: Callable[[DeadReport], None] = lambda report: None,
) -> DeadReport:
    """Read and count the dead messages, and redrive the selected ones if requested.

    Args:
        spark: A session with `format("rmq")` registered.
        settings: Settings of the job.
        say: Called with a line of text when a step begins.
        found: Called with the report before any message is redriven.

    Raises:
        InvalidValueError: A topic, the condition or a setting of the redrive is invalid; nothing was written.
        UnknownTopicError: A topic is not registered.
        RmqError: The job failed. Messages already redriven stay in the backlog; another run moves the rest.

    Guarantee: as for `RedriveWriter`: a message is either dead or in the backlog at any time.
    """
    with closing(connect(settings.url)) as connections, in_utc(spark):
        topics = _topics(connections, settings)
        frame = reduce(_union, [dead_of(spark, settings.url, topic.name) for topic in topics])
        chosen = _chosen(frame, settings.where)
        redrivers: list[tuple[Topic, Redriver]] = []
        if settings.redrive or settings.dry_run:
            redrivers = [(topic, Redriver(connections, settings.url, topic, settings.again)) for topic in topics]
            for _, redriver in redrivers:
                redriver.check(chosen)
        kept = chosen.persist()
        try:
            with plain_errors():
                say("reading the dead messages")
                report = _report(frame, kept, settings)
                if settings.rows is not None:
                    say("writing the selected messages")
                    kept.drop("text").write.parquet(settings.rows)
            found(report)
            if settings.dry_run or not settings.redrive:
                return report
            for topic, redriver in redrivers:
                rows = kept.where(F.col("topic") == topic.name)
                total = rows.count()  # not from the report, whose tables leave out what is rare
                if total:
                    say(f"redriving {total:,} messages of topic {topic.name}")
                    report.redriven[topic.name] = redriver.move(rows, total, f"Spark: {settings.where}"[:500], say)
            return report
        finally:
            kept.unpersist()


def _topics(connections: Connections, settings: DeadAuditSettings) -> list[Topic]:
    return [dead_topic(connections, name) for name in settings.topics]


def _union(frame: DataFrame, other: DataFrame) -> DataFrame:
    return frame.unionByName(other, allowMissingColumns=True)  # a topic that merges has columns of its own


def _chosen(frame: DataFrame, where: str | None) -> DataFrame:
    named = frame.withColumn("text", F.col("content").cast("string"))
    if where is None:
        return named
    try:
        return named.where(where)
    except PySparkException as error:
        raise InvalidValueError(f"{where!r:.200} is not a valid condition: {one_line(error)}") from None


def _report(frame: DataFrame, kept: DataFrame, settings: DeadAuditSettings) -> DeadReport:
    chosen, dead = kept.count(), F.count("*").alias("dead")
    reasons = kept.groupBy("topic", "error_type").agg(
        dead,
        F.avg("attempts").alias("attempts"),
        F.unix_millis(F.min("died")).alias("first_died"),
        F.unix_millis(F.max("died")).alias("last_died"),
        F.max_by("error_message", "died").alias("example"),
    )
    hour = F.unix_millis(F.date_trunc("hour", "died")).alias("hour")
    hours = _values(HourCount, _largest(kept.groupBy("topic", hour, "error_type").agg(dead)))
    slots = _values(SlotCount, _largest(kept.groupBy("topic", "slot", "error_type").agg(dead)))
    longest = kept.orderBy("died", "topic", "slot", "content").limit(MOST_EXAMPLES)
    return DeadReport(
        found=chosen if settings.where is None else frame.count(),
        chosen=chosen,
        reasons=_values(Reason, _largest(reasons)),
        hours=tuple(sorted(hours, key=attrgetter("hour", "topic", "error_type"))),
        slots=tuple(sorted(slots, key=astuple)),
        examples=_values(Example, longest.withColumn("died", F.unix_millis("died"))) if settings.dry_run else (),
    )


def _largest(table: DataFrame) -> DataFrame:
    return table.orderBy(F.col("dead").desc(), *(name for name in table.columns if name != "dead")).limit(MOST_ROWS)


def _values(kind: type[Value], table: DataFrame) -> tuple[Value, ...]:
    """Return the rows of a table as instances of a class with fields of the same names."""
    convert: dict[str, Callable[[Any], Any]] = {"content": bytes}
    convert |= dict.fromkeys(("hour", "died", "first_died", "last_died"), utc)
    names: list[str] = [field.name for field in fields(kind)]
    rows: list[Any] = table.collect()
    return tuple(kind(*[convert.get(name, lambda value: value)(row[name]) for name in names]) for row in rows)
