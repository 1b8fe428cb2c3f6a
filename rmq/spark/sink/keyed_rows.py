"""The rows of a task of a frame that `rmq.spark.keyed` created: those of its partition, sorted.

Marks identify a call by its task and its number in the task, so they are valid only if a task that is retried has the
same rows in the same order. `keyed` partitions rows by a hash of their content, independent of the number of cores.
Each row has the number of its partition in the column `partition`, which is compared with the number of the task: rows
that a later `coalesce` or union has moved are found before they are sent. Spark sorts the rows of a frame, but not
those of a stream. Those are sorted here, a partition of a batch at a time, by all their values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pyspark.sql.types import StructType

from rmq.errors import InvalidValueError
from rmq.spark.arrow import pa, pc
from rmq.spark.schema import PARTITION, PARTITIONS, SORTED

PAGE = 10_000
"""Number of rows of a stream in a record batch."""

_REMEDY = "make keyed the last step before the write, and do not change its column partition"


class Keyed(NamedTuple):
    """Keying of a frame: the number of partitions, and whether each is sorted."""

    partitions: int
    sorted: bool


def keyed_by(schema: StructType) -> Keyed | None:
    """Return the keying of a frame with these columns; `None` if `rmq.spark.keyed` did not create it."""
    if PARTITION not in schema.names or PARTITIONS not in (told := schema[PARTITION].metadata):
        return None
    return Keyed(told[PARTITIONS], told[SORTED])


class KeyedRows:
    """Checks, and for a stream sorts, the rows of one task.

    Args:
        keyed: How the frame is keyed.
        partition: Number of the task.
        names: The columns to pass on, in order.
    """

    def __init__(self, keyed: Keyed, partition: int, names: Sequence[str]) -> None:
        self._keyed, self._partition, self._names = keyed, partition, list(names)
        self._order = [name for name in ("topic", "content") if name in names]
        self._last: Any = None

    def of(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield record batches without their column `partition`.

        Raises:
            InvalidValueError: A row belongs to another partition, or is not in order; no row of its record batch is
                sent.
        """
        checked = map(self._checked, batches)
        if not self._keyed.sorted:
            checked = self._sorted([batch for batch in checked if batch.num_rows])
        for batch in checked:
            self._check_order(batch)
            yield batch

    def _checked(self, batch: Any) -> Any:
        numbers = batch.column(PARTITION)
        wrong = pc.fill_null(pc.not_equal(numbers, self._partition), True)
        if pc.any(wrong).as_py():
            row = batch.filter(wrong).slice(0, 1).to_pylist()[0]
            raise InvalidValueError(
                f"row {row!r:.400} belongs to partition {row[PARTITION]} of {self._keyed.partitions}, but is "
                f"in partition {self._partition}: rows were moved after rmq.spark.keyed; {_REMEDY}"
            )
        return batch.select(self._names)

    def _check_order(self, batch: Any) -> None:
        keys = batch.select(self._order)
        if self._last is not None:
            keys = pa.concat_batches([self._last, keys])
        falls, same = pa.scalar(False), pa.scalar(True)
        for column in map(_binary, keys.columns):
            before, behind = column[:-1], column[1:]
            falls = pc.or_kleene(falls, pc.and_kleene(same, pc.greater(before, behind)))
            same = pc.and_kleene(same, pc.equal(before, behind))
        if pc.any(falls).as_py():
            raise InvalidValueError(
                f"the rows of partition {self._partition} are no longer sorted by content: {_REMEDY}"
            )
        self._last = keys.slice(max(0, keys.num_rows - 1))

    def _sorted(self, batches: list[Any]) -> Iterator[Any]:
        if not batches:
            return
        table = pa.Table.from_batches(batches).combine_chunks()
        names = dict.fromkeys([*self._order, *self._names])
        columns = {name: _sortable(table.column(name)) for name in names}
        found = {name: column for name, column in columns.items() if column is not None}
        indices = pc.sort_indices(pa.table(found), sort_keys=[(name, "ascending") for name in found])
        for first in range(0, len(indices), PAGE):
            yield from table.take(indices.slice(first, PAGE)).combine_chunks().to_batches()


def _binary(column: Any) -> Any:
    return column if pa.types.is_large_string(column.type) else column.cast(pa.binary())


def _sortable(column: Any) -> Any:
    """Return the sort key of a column, or `None` if its type has no order."""
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pc.binary_join(column, b"\x00") if _is_text(kind.value_type) else None
    if pa.types.is_nested(kind):
        return None
    return column.cast(pa.int64()) if pa.types.is_duration(kind) else column


def _is_text(kind: Any) -> bool:
    return pa.types.is_string(kind) or pa.types.is_binary(kind)
