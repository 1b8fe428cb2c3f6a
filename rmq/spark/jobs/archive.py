"""Archives: Parquet files with messages that a drain took from a topic, and the time of each.

Messages of a topic with `merge=` have the columns of their records, whose values are checked before anything is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from rmq import Collect, Merge, Topic, TopicType
from rmq.errors import InvalidValueError
from rmq.spark.failures import SPARK_ERRORS, one_line
from rmq.spark.folding import with_slot
from rmq.spark.jobs.redrive import Again
from rmq.spark.schema import lowered
from rmq.spi.scripts import BODIES, MAX_COUNT, MAX_WHOLE, NUMBERS

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
