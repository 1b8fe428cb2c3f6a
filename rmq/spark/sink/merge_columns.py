"""The columns of a frame for a topic with `merge=`, and the encoding of their rows as records."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import reduce
from itertools import repeat
from typing import Any, cast

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
)

from rmq._model.batches import EncodedMessage
from rmq._model.encoding import Encoder
from rmq._model.merging import MAX_COUNT, Merge
from rmq._model.records import BODIES, ITEMS, NUMBERS, Record, fold, read_record, unwrap, write_record
from rmq.errors import InvalidMessageError

TEXT = (StringType, BinaryType)
WHOLE = (ByteType, ShortType, IntegerType, LongType)
_NUMBERS = (*WHOLE, FloatType, DoubleType, DecimalType)
_LISTS = (*TEXT, ArrayType)

Types = Mapping[str, tuple[type[DataType], ...]]

OF_MERGING: Types = {
    "body": (*_NUMBERS, *_LISTS),
    "value": _NUMBERS,
    **dict.fromkeys(("items", "part"), _LISTS),
    **dict.fromkeys(("of", "wanted", "version", "weight", "merged"), WHOLE),
}
"""The columns of all kinds of records, with the allowed types of each."""


@dataclass(frozen=True)
class MergeColumns:
    """The columns of a frame from which records are created; those of a read are used if present.

    Attributes:
        kind: The letter that identifies the kind of the records.
        value: `body`, `value` for numbers, `items`, or `part` for joins; `None` for messages without a body.
        wanted: Column with the number of parts of a join, `of` or `wanted`; otherwise `None`.
        weight: Column with the number of sends in a row, `weight` or `merged`; `None` if each row is one send.
    """

    kind: str
    value: str | None
    wanted: str | None
    weight: str | None

    @property
    def version(self) -> str | None:
        """The column with the version, for the reducer `Newest`; otherwise `None`."""
        return "version" if self.kind == "N" else None

    @property
    def needed(self) -> tuple[str, ...]:
        """The required columns."""
        value = None if self.kind in BODIES else self.value
        return tuple(name for name in (value, self.version, self.wanted) if name is not None)

    @property
    def types(self) -> Types:
        """The allowed types of all columns of a record, including columns that the frame does not have."""
        kinds = TEXT if self.kind in BODIES else _NUMBERS if self.kind in NUMBERS else _LISTS
        whole = self.weight or "weight", self.version, self.wanted
        return {self.value or "body": kinds} | {name: WHOLE for name in whole if name is not None}


def merge_columns(merge: Merge, names: Collection[str]) -> MergeColumns:
    """Return the columns of a record for a reducer, chosen from `names`; required ones are included even if missing."""
    kind, wanted = merge.kind, None
    if kind in BODIES:
        value = "body" if "body" in names else None
    elif kind in NUMBERS:
        value = "value" if "value" in names else "body"
    else:
        value = "items" if "items" in names else "part" if merge.joins else "body"
        wanted = ("wanted" if value == "items" else "of") if merge.joins else None
    weight = next((name for name in ("weight", "merged") if name in names), None)
    return MergeColumns(kind, value, wanted, weight)


def records_of(
    encoder: Encoder, columns: MergeColumns, batch: Any, contents: Sequence[Any], bad: dict[int, str]
) -> list[bytes | None]:
    """Return the records of a batch's rows, `None` for rows in `bad`; adds rows that break a rule to `bad`."""

    def values(name: str | None, otherwise: Any = None) -> Iterator[Any]:
        found = repeat(otherwise, batch.num_rows) if name is None else batch.column(name).to_pylist()
        return cast("Iterator[Any]", found)

    rows = zip(
        contents,
        values(columns.value),
        values(columns.wanted),
        values(columns.version),
        values(columns.weight, 1),
        strict=True,
    )
    found: list[bytes | None] = []
    for index, (content, value, wanted, version, weight) in enumerate(rows):
        record = None
        try:
            if index in bad:
                pass
            elif columns.wanted is not None:
                record = _join_of(encoder, content, value, wanted, weight)
            else:
                record = encoder.record(content, _plain(value, content), version, weight)
        except InvalidMessageError as error:
            bad[index] = str(error)
        found.append(record)
    return found


def values_of(columns: MergeColumns, row: EncodedMessage, lists: bool) -> list[dict[str, Any]]:
    """Return the column values of a message that was not sent; several rows if its items need one row each.

    Args:
        columns: The columns of a record in the frame.
        row: The message; several rows may have been folded into it.
        lists: Whether the items of a row are in one list.
    """
    record = cast("Record", read_record(row.body))
    values: list[Any] = [unwrap(record.body)[0] if record.kind in BODIES else record.number]
    if record.kind in ITEMS:
        values = [list(record.items)] if lists else list(record.items)
    others: dict[str, Any] = {columns.version: record.number} if columns.version else {}
    others |= {columns.wanted: record.wanted} if columns.wanted else {}
    others |= {columns.weight: record.count if len(values) == 1 else 1} if columns.weight else {}
    return [others | ({columns.value: value} if columns.value else {}) for value in values]


def _plain(value: Any, content: bytes) -> Any:
    if not isinstance(value, Decimal):
        return value
    plain = int(value) if value == value.to_integral_value() else float(value)
    if Decimal(repr(plain)) != value:
        raise InvalidMessageError(
            f"value of {content!r:.80} is {value}; numbers in Redis have about 15 significant digits: "
            "round it, or send whole numbers of a smaller unit"
        )
    return plain


def _join_of(encoder: Encoder, content: bytes, value: Any, wanted: Any, weight: Any) -> bytes:
    parts = cast("list[Any]", value) if isinstance(value, list) else [value]
    if type(wanted) is not int or wanted < 1:
        raise InvalidMessageError(
            f"column 'of' is {wanted!r} for content {content!r:.80}; it must be a whole number of 1 or more"
        )
    if type(weight) is not int or not 1 <= weight <= MAX_COUNT:
        raise InvalidMessageError(f"weight of {content!r:.80} is {weight!r}; it must be from 1 to {MAX_COUNT}")
    if not parts or not all(parts):
        raise InvalidMessageError(f"part of {content!r:.80} is {parts!r:.80}; parts must not be null or empty")
    records = [cast("Record", read_record(encoder.join(content, part, wanted))) for part in parts]
    return write_record(replace(reduce(fold, records), count=weight))
