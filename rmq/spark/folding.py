"""Operations on a whole frame before it is written, which a sink cannot do as it sees one partition at a time.

`reduced` folds rows with operations of Spark as the reducer of a topic with `merge=` would.
Column names are case-insensitive, as in the sinks. Contents are compared by their bytes, whatever their collation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DayTimeIntervalType, MapType

from rmq import Merge, PriorityRule, Sliding, Topic, TopicType
from rmq.errors import InvalidValueError
from rmq.spark.schema import PARTITION, PARTITIONS, SORTED, lowered
from rmq.spark.sink.columns import VALUE_COLUMNS
from rmq.spi.scripts import ITEMS, MAX_SLOTS, NUMBERS


def with_slot(frame: DataFrame, slots: int) -> DataFrame:
    """Return a frame with the column `slot`, computed by Spark as RMQ computes it.

    Args:
        frame: Frame with a column `content`, and `slot_basis` if slots depend on it, as text or binary.
        slots: The topic's number of slots, a power of two.

    Returns:
        The columns of the frame, with lower-case names, and `slot`.

    Raises:
        InvalidValueError: `slots` is not a power of two, or the frame has no column `content`.
    """
    if slots < 1 or slots & (slots - 1):
        raise InvalidValueError(f"slots is {slots}; it must be a power of two")
    frame = _lowered(frame, "with_slot")
    return frame.withColumn("slot", F.crc32(_basis(frame)).bitwiseAND(slots - 1).cast("int"))


def keyed(frame: DataFrame, partitions: int, order_by: str | Column | None = None) -> DataFrame:
    """Return a frame whose partitions are the same after a restart, independent of cores, files and batches.

    Rows are partitioned by content into a fixed number of partitions, and sorted within each. A task that is retried,
    in the same job or a later one, therefore sends the same messages in the same calls, and omits those that Redis has
    recorded as sent. A stream, or a write with `once` or `txnAppId`, requires such a frame for a topic on which each
    send counts (`Sum`, `Collect`, `priority="sum"`).

    Args:
        frame: Frame with the columns of a sink. Call this last: the sink raises an error if a later step moves rows to
            other partitions.
        partitions: Number of partitions, 1 to 16,384. Do not change it while a batch may be run again: the sink raises
            an error for a batch that was started with another number.
        order_by: Order of the rows of a content, such as the items of a `Collect`; by default they are ordered by
            the values of all columns. The rows of a stream have no order: call `keyed` in `foreachBatch` if the order
            matters.

    Returns:
        The columns of the frame, with lower-case names, and `partition`. Costs a shuffle of the frame.

    Raises:
        InvalidValueError: The frame has no column `content`, is a stream with `order_by`, or `partitions` is out of
            range.
    """
    if type(partitions) is not int or not 1 <= partitions <= MAX_SLOTS:
        raise InvalidValueError(f"partitions is {partitions!r:.80}; it must be a whole number from 1 to {MAX_SLOTS}")
    if order_by is not None and frame.isStreaming:
        raise InvalidValueError(
            "order_by cannot be used on a streaming frame, whose rows have no order: call keyed in foreachBatch"
        )
    frame = _lowered(frame, "keyed").drop(PARTITION)
    content, sorts = bytes_of("content"), not frame.isStreaming  # Spark cannot sort streams; the sink sorts their rows
    number = F.pmod(F.hash(content), F.lit(partitions)).cast("int")
    told = {PARTITIONS: partitions, SORTED: sorts}
    parted = frame.select("*", number.alias(PARTITION, metadata=told)).repartition(partitions, content)
    if not sorts:
        return parted
    first = [bytes_of("topic")] if "topic" in frame.columns else []
    order = [] if order_by is None else [_order(order_by)]
    # all values, so that the order is unambiguous
    rest = [column_of(field.name) for field in frame.schema.fields if not isinstance(field.dataType, MapType)]
    return parted.sortWithinPartitions(*first, content, *order, *rest)


def merged(frame: DataFrame, topic_type: Topic | TopicType | str, order_by: str | Column | None = None) -> DataFrame:
    """Return a frame with one row per content and slot, merged as the topic would merge them.

    Args:
        frame: Frame with the columns of a sink. Rows with the same content, and the same `topic` and `slot` or
            `slot_basis` if the frame has these columns, are folded into one. Drop `topic` if all rows go to one topic.
        topic_type: A `Topic`, a type, or the name of a type. RANGE_MERGE keeps the first row; PRIORITY and FIXED_TIME
            keep the last one. All of them keep the body of the last row that has one. A `Topic` with `merge=` folds by
            its reducer, and the result has a column `weight` with the number of rows folded into each. For `Collect`,
            and for `Newest` with a `priority` other than "last", rows are not folded and there is no `weight`: all rows
            of a content are moved to one partition, in order, and the sink folds them within the topic's bounds.
        order_by: Order of the rows, which determines the first and last row; required for PRIORITY, FIXED_TIME and
            frames with `body`. For RANGE_MERGE without it, the row with the smallest `time_range` is the first. With
            `merge=` it is required if the result depends on the first or last row.

    Returns:
        The columns of the frame, with lower-case names; also `weight` if a reducer folded the rows. Costs a shuffle of
        the frame.

    Raises:
        InvalidValueError: The type is STREAM, whose entries are never merged, the frame has no column `content`, or
            `order_by` is required but missing.
    """
    topic = topic_type if isinstance(topic_type, Topic) else None
    kind = (
        TopicType[topic_type] if isinstance(topic_type, str) else topic.type if topic else cast("TopicType", topic_type)
    )
    if kind is TopicType.STREAM:
        raise InvalidValueError("merged cannot be used for a STREAM topic: its entries are never merged")
    frame = _lowered(frame, "merged")
    columns = frame.columns
    keys = [bytes_of(name) for name in ("topic",) if name in columns]
    if "slot" in columns:
        keys.append(F.col("slot"))
    elif "slot_basis" in columns:
        keys.append(_basis(frame))
    keys.append(bytes_of("content"))
    order = None if order_by is None else _order(order_by)
    if topic is not None and topic.merge is not None:
        return reduced(frame, topic, topic.merge, keys, order)
    if order is None and "body" in columns:
        raise InvalidValueError(
            f"merging for {kind.name} topics needs order_by: the newest body is kept, and a frame's rows have no order"
        )
    whole_row = F.struct(*map(column_of, columns))
    if kind is TopicType.RANGE_MERGE:
        chosen = F.min_by(whole_row, _earliest(frame, order))
    elif order is None:
        raise InvalidValueError(
            f"merging for {kind.name} topics needs order_by: the last row is kept, and a frame's rows have no order"
        )
    else:
        chosen = F.max_by(whole_row, F.struct(order))  # a struct is never null, so no row is ignored
    if order is None or "body" not in columns:
        return frame.groupBy(*keys).agg(chosen.alias("_row")).select("_row.*")
    folded = frame.groupBy(*keys).agg(chosen.alias("_row"), newest_body(F.struct(order)).alias("body"))
    return folded.select(*(F.col("body" if name == "body" else f"_row.`{name}`").alias(name) for name in columns))


def _lowered(frame: DataFrame, what: str) -> DataFrame:
    """Return a frame with lower-case column names, as the sinks use; raise if it has no column `content`."""
    names = lowered(frame.schema).names
    if "content" not in names:
        raise InvalidValueError(
            f"{what} needs a column content; the columns of the frame are {', '.join(names) or 'none'}"
        )
    return frame if names == frame.columns else frame.toDF(*names)


def _basis(frame: DataFrame) -> Column:
    """Return the column from which the slot of each row is computed."""
    content = bytes_of("content")
    return F.coalesce(bytes_of("slot_basis"), content) if "slot_basis" in frame.columns else content


def _order(order_by: str | Column) -> Column:
    return column_of(order_by.lower()) if isinstance(order_by, str) else order_by


def _earliest(frame: DataFrame, order: Column | None) -> Column:
    if order is not None or "time_range" not in frame.columns:
        return F.struct(F.lit(0) if order is None else order)
    value = F.col("time_range")
    interval = isinstance(frame.schema["time_range"].dataType, DayTimeIntervalType)
    nothing = F.expr("INTERVAL '0' SECOND") if interval else F.lit(0)
    # an invalid value does not win over a valid one
    return F.struct(F.coalesce(value <= nothing, F.lit(True)), value)


def reduced(frame: DataFrame, topic: Topic, merge: Merge, keys: Sequence[Column], order: Column | None) -> DataFrame:
    """Return a frame with the rows of each key folded, see `rmq.spark.merged`.

    Args:
        frame: Frame with the columns of a sink, with lower-case names.
        topic: The definition.
        merge: The topic's merge settings.
        keys: The columns that identify a message, as bytes.
        order: Order of the rows.

    Raises:
        InvalidValueError: `order` is missing, and the result depends on the first or the last row.
    """
    kind, columns = merge.kind, frame.columns
    if kind in ITEMS or (kind == "N" and merge.priority is not PriorityRule.LAST):
        return _together(frame, keys, order)
    last = _last(kind, order)
    row = F.struct(*map(column_of, columns))
    weight = next((F.col(name) for name in ("weight", "merged") if name in columns), F.lit(1))
    found: dict[str, Column] = {"weight": _of_all(weight, F.sum(weight)).cast("bigint")}
    if kind in NUMBERS:
        value = "value" if "value" in columns else "body"
        found[value] = _of_all(F.col(value), {"S": F.sum, "X": F.max, "I": F.min}[kind](value))
    elif kind == "K" and "body" in columns:
        found["body"] = F.min_by(F.struct("body"), _needed(order, topic, "body"))["body"]
    elif kind == "R" and "body" in columns:
        found["body"] = newest_body(_needed(order, topic, "body"))
    due = VALUE_COLUMNS[topic.type]
    if due in columns:
        found[due] = _due_of(topic, merge, due, order, last)
    newest = F.any_value(row) if last is None else F.max_by(row, last)
    grouped = frame.groupBy(*keys).agg(newest.alias("_row"), *(each.alias(name) for name, each in found.items()))
    names = columns if "weight" in columns else [*columns, "weight"]
    return grouped.select(*(F.col(name) if name in found else F.col("_row")[name].alias(name) for name in names))


def column_of(name: str) -> Column:
    """Return a column by its full name, which may contain dots."""
    return F.col("`" + name.replace("`", "``") + "`")


def newest_body(order: Column) -> Column:
    """Return the body of the last row that has one, as an aggregate."""
    return F.max_by(F.struct("body"), F.when(F.col("body").isNotNull(), order))["body"]


def bytes_of(name: str) -> Column:
    """Return a column as bytes, as Redis compares them; a collation may consider different texts equal."""
    return F.col(name).cast("binary")


def _together(frame: DataFrame, keys: Sequence[Column], order: Column | None) -> DataFrame:
    """Move the rows of one key into one partition, adjacent and in order."""
    sorting = [*keys] if order is None else [*keys, order]
    return frame.repartition(*keys).sortWithinPartitions(*sorting)


def _of_all(column: Column, folded: Column) -> Column:
    """Return null if one of the values is null, so that the fold does not hide an invalid row."""
    return F.when(F.count(column) == F.count(F.lit(1)), folded)


def _last(kind: str, order: Column | None) -> Column | None:
    """Return the sort key of the last row, or of the newest version; `None` if there is no order."""
    if kind == "N":
        return F.struct(F.col("version")) if order is None else F.struct(F.col("version"), order)
    return None if order is None else F.struct(order)


def _needed(order: Column | None, topic: Topic, column: str) -> Column:
    if order is None:
        raise InvalidValueError(
            f"merging for topic {topic.name} needs order_by: {column} depends on the order of the rows, "
            "and a frame's rows have no order"
        )
    return F.struct(order)


def _due_of(topic: Topic, merge: Merge, due: str, order: Column | None, last: Column | None) -> Column:
    """Return the due time or priority of the folded row, as the sends of its rows would produce it."""
    value = F.col(due)
    if topic.type is TopicType.PRIORITY and merge.priority is not PriorityRule.LAST:
        if merge.priority is PriorityRule.SUM:
            return _of_all(value, F.least(F.sum(value), F.lit(topic.priorities[1]))).cast("bigint")
        return _of_all(value, (F.max if merge.priority is PriorityRule.HIGHEST else F.min)(value))
    if topic.type is TopicType.RANGE_MERGE and not isinstance(merge.window, Sliding):
        return F.min_by(F.struct(due), _needed(order, topic, due))[due]
    if merge.kind == "N" and last is not None:
        return F.max_by(F.struct(due), last)[due]
    return F.max_by(F.struct(due), _needed(order, topic, due))[due]
