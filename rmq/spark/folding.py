"""Folds a frame over all its partitions before it is written, which a sink can't: it sees one partition at a time."""

from __future__ import annotations

from typing import cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DayTimeIntervalType

from rmq._model.topics import Topic, TopicType
from rmq.errors import InvalidValueError
from rmq.spark.reducing import reduced


def with_slot(frame: DataFrame, slots: int) -> DataFrame:
    """Return a frame with the column `slot`, computed by Spark as RMQ computes it.

    Args:
        frame: With `content`, and `slot_basis` where it is used, text or binary.
        slots: The topic's number of slots, a power of two.

    Raises:
        InvalidValueError: `slots` is no power of two.
    """
    if slots < 1 or slots & (slots - 1):
        raise InvalidValueError(f"slots is {slots}; it must be a power of two")
    basis = F.col("content").cast("binary")
    if "slot_basis" in frame.columns:
        basis = F.coalesce(F.col("slot_basis").cast("binary"), basis)
    return frame.withColumn("slot", F.crc32(basis).bitwiseAND(slots - 1).cast("int"))


def merged(frame: DataFrame, topic_type: Topic | TopicType | str, order_by: str | Column | None = None) -> DataFrame:
    """Return a frame with one row for each content of a slot, as the topic would merge them.

    Args:
        frame: With the columns of a sink. Rows of one content, and of one `slot` or `slot_basis` where there is such a
            column, are folded into one.
        topic_type: RANGE_MERGE keeps the first row; PRIORITY and FIXED_TIME keep the last one.
            A `Topic` with `merge=` folds by its reducer: then a column `weight` says how many rows a row stands for.
            Items of `Collect` are not folded here: all rows of a content come into one partition, in their order, where
            the sink folds them within the topic's bounds.
        order_by: What tells which row is the first or the last one; PRIORITY and FIXED_TIME need it. On RANGE_MERGE
            without it any row may count as the first: the one with the smallest `time_range` does. With `merge=` it is
            needed where the first or the last row decides about something.

    Returns:
        The same columns; with `merge=` also `weight`. Costs a shuffle of the frame.

    Raises:
        InvalidValueError: STREAM, whose entries never merge, or no `order_by` where it is needed.
    """
    topic = topic_type if isinstance(topic_type, Topic) else None
    kind = (
        TopicType[topic_type] if isinstance(topic_type, str) else topic.type if topic else cast("TopicType", topic_type)
    )
    if kind is TopicType.STREAM:
        raise InvalidValueError("entries of a STREAM topic never merge")
    columns = frame.columns
    keys = [name for name in ("slot", "content") if name in columns]
    if "slot" not in columns and "slot_basis" in columns:
        keys = ["slot_basis", "content"]
    order = F.col(order_by) if isinstance(order_by, str) else order_by
    if topic is not None and topic.merge is not None:
        return reduced(frame, topic, topic.merge, keys, order)
    whole_row = F.struct(*columns)
    if kind is TopicType.RANGE_MERGE:
        chosen = F.min_by(whole_row, _earliest(frame, order))
    elif order is None:
        raise InvalidValueError(
            f"merging for {kind.name} needs order_by: it keeps the last row, and rows have no order"
        )
    else:
        chosen = F.max_by(whole_row, F.struct(order))  # a struct is never null: no row is passed over
    return frame.groupBy(*keys).agg(chosen.alias("_row")).select("_row.*")


def _earliest(frame: DataFrame, order: Column | None) -> Column:
    if order is not None or "time_range" not in frame.columns:
        return F.struct(F.lit(0) if order is None else order)
    value = F.col("time_range")
    interval = isinstance(frame.schema["time_range"].dataType, DayTimeIntervalType)
    nothing = F.expr("INTERVAL '0' SECOND") if interval else F.lit(0)
    # a value that breaks the rule does not win over one that keeps it
    return F.struct(F.coalesce(value <= nothing, F.lit(True)), value)
