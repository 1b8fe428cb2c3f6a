"""Folds the rows of a frame with operations of Spark, as the reducer of a topic with `merge=` would."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from rmq._model.merging import Merge, PriorityRule, Sliding
from rmq._model.records import ITEMS, NUMBERS
from rmq._model.topics import Topic, TopicType
from rmq.errors import InvalidValueError
from rmq.spark.sink.columns import VALUE_COLUMNS


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
            "and the rows of a frame have no order"
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
