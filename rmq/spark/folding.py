"""Operations on a whole frame before it is written, which a sink cannot do as it sees one partition at a time.

Column names are case-insensitive, as in the sinks. Contents are compared by their bytes, whatever their collation.
"""

from __future__ import annotations

from typing import cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DayTimeIntervalType, MapType

from rmq._model.topics import MAX_SLOTS, Topic, TopicType
from rmq.errors import InvalidValueError
from rmq.spark.reducing import bytes_of, column_of, newest_body, reduced
from rmq.spark.schema import PARTITION, PARTITIONS, SORTED, lowered


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
    in the same job or a later one, therefore sends the same messages in the same calls, and marks in Redis show which
    were sent. A named write or a stream to a topic on which each send counts (`Sum`, `Collect`, `priority="sum"`)
    requires such a frame.

    Args:
        frame: Frame with the columns of a sink. Call this last: the sink raises an error if a later step moves rows to
            other partitions.
        partitions: Number of partitions, 1 to 16,384. Do not change it while a batch may be run again: the sink raises
            an error for a batch that was started with another number.
        order_by: Order of the rows of a content, such as the items of a `Collect`; by default they are ordered by
            value. A stream has no order: use `foreachBatch` if it matters.

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
        topic_type: RANGE_MERGE keeps the first row; PRIORITY and FIXED_TIME keep the last one. All of them keep the
            body of the last row that has one. A `Topic` with `merge=` folds by its reducer, and the result has a column
            `weight` with the number of rows folded into each. For `Collect`, rows are not folded: all rows of a content
            are moved to one partition, in order, and the sink folds them within the topic's bounds.
        order_by: Order of the rows, which determines the first and last row; required for PRIORITY, FIXED_TIME and
            frames with `body`. For RANGE_MERGE without it, the row with the smallest `time_range` is the first. With
            `merge=` it is required if the result depends on the first or last row.

    Returns:
        The columns of the frame, with lower-case names; with `merge=` also `weight`. Costs a shuffle of the frame.

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
            f"merging for {kind.name} needs order_by: it keeps the newest body, and the rows of a frame have no order"
        )
    whole_row = F.struct(*map(column_of, columns))
    if kind is TopicType.RANGE_MERGE:
        chosen = F.min_by(whole_row, _earliest(frame, order))
    elif order is None:
        raise InvalidValueError(
            f"merging for {kind.name} needs order_by: it keeps the last row, and the rows of a frame have no order"
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
