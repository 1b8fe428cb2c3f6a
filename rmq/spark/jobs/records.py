"""The columns of an archive with the records of a topic with `merge=`, and the checks of their values."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

from rmq._model.merging import MAX_COUNT, Collect, Merge
from rmq._model.records import BODIES, MAX_WHOLE, NUMBERS
from rmq._model.topics import Topic


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
