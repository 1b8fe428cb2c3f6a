"""The columns of a frame as a sink uses them: checked once on the driver, then converted column by column.

If the rows name their topics, each topic gets the columns of its type (`columns_for`) and its rows (`by_topic`).

A frame that `rmq.spark.keyed` created has columns that say so. Marks identify a call by its task and its number in the
task, so they are valid only if a task that is retried has the same rows in the same order. `keyed` partitions rows by a
hash of their content, independent of the number of cores. Each row has the number of its partition in the column
`partition`, which is compared with the number of the task: rows that a later `coalesce` or union has moved are found
before they are sent. Spark sorts the rows of a frame, but not those of a stream. Those are sorted here, a partition of
a batch at a time, by all their values.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from rmq import Merge, Topic, TopicType
from rmq.errors import InvalidMessageError, InvalidValueError
from rmq.spark.arrow import pa, pc
from rmq.spark.option_kinds import quoted
from rmq.spark.options import Options
from rmq.spark.schema import PARTITION, PARTITIONS, SORTED, of_reads
from rmq.spi.scripts import BODIES, NUMBERS, Encoder, is_name

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

PAGE = 10_000
"""Number of rows of a stream in a record batch."""

_REMEDY = "make keyed the last step before the write, and do not change its column partition"


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


VALUE_COLUMNS: dict[TopicType, str] = {
    TopicType.RANGE_MERGE: "time_range",
    TopicType.PRIORITY: "priority",
    TopicType.FIXED_TIME: "fixed_time",
}
"""Topic type -> the column of Spark's frames with the due time or priority of messages."""

log = logging.getLogger("rmq.spark")

_VALUES: Types = {
    VALUE_COLUMNS[TopicType.RANGE_MERGE]: (*WHOLE, DayTimeIntervalType),
    VALUE_COLUMNS[TopicType.PRIORITY]: WHOLE,
    VALUE_COLUMNS[TopicType.FIXED_TIME]: (*WHOLE, TimestampType),
}
"""The columns for due times and priorities, with the allowed types of each."""

_WORDS: dict[type[DataType], str] = {DayTimeIntervalType: "interval", MapType: "map", ArrayType: "array"}
"""Names of types in Spark's documentation, if they differ from those of the classes."""

ANY: Types = {
    "content": TEXT,
    "slot_basis": TEXT,
    "slot": WHOLE,
    "fields": (MapType,),
    **_VALUES,
    **OF_MERGING,
}
"""All columns that a topic of any type accepts, with the allowed types of each."""

VALUES = frozenset(("content", "slot_basis", "slot", *VALUE_COLUMNS.values()))
"""The columns whose types are checked even if reads return columns of the same names."""


@dataclass(frozen=True)
class Layout:
    """The columns of a frame, by their use.

    Attributes:
        topic: The registered definition.
        value: Column of time range, priority or fixed time; `None` for streams, or if `constant` applies to all rows.
        constant: Value of all rows, or of rows with null in the column `value`.
        slot_basis: Whether the frame has a column `slot_basis`.
        body: Whether the frame has a column `body`, of a topic without `merge=`.
        slot: Whether the frame has a column `slot`, computed by Spark.
        trusted: Whether the column `slot` is used without a check.
        fields: Whether the rows are stream entries with a column `fields` in place of `content`.
        merge: The columns of a record, if the topic has `merge=`; otherwise `None`.
    """

    topic: Topic
    value: str | None = None
    constant: int | None = None
    slot_basis: bool = False
    body: bool = False
    slot: bool = False
    trusted: bool = False
    fields: bool = False
    merge: MergeColumns | None = None

    def __post_init__(self) -> None:
        if self.trusted and (not self.slot or self.fields):
            raise InvalidValueError("trustSlot needs columns slot and content")

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder, which checks the bounds of the topic's messages and creates their records."""
        return Encoder(self.topic)


def layout_of(schema: StructType, topic: Topic, options: Options) -> Layout:
    """Return the layout of a frame's columns.

    Raises:
        InvalidValueError: A column is missing, unknown, or of a type that does not fit.
    """
    types = {field.name: field.dataType for field in schema.fields}
    value = VALUE_COLUMNS.get(topic.type)
    merge = None if topic.merge is None else merge_columns(topic.merge, types)
    _check_columns(types, _wanted(topic, merge), topic)
    has_fields = topic.type is TopicType.STREAM and "fields" in types
    given = {"time_range": options.time_range_ms, "priority": options.priority}.get(value or "")
    constant = topic.default_range_ms if given is None and value == "time_range" else given
    needed = () if has_fields else ("content", *(merge.needed if merge else ()))
    for name in needed if value is None or constant is not None else (*needed, value):
        if name not in types:
            there = ", ".join(types)
            raise InvalidValueError(f"column {name} is missing for {_rules(topic)}; the frame has {there}")
    layout = Layout(
        topic,
        value if given is None and value in types else None,
        constant,
        slot_basis="slot_basis" in types,
        body=merge is None and "body" in types,
        slot="slot" in types,
        trusted=options.trust_slot,
        fields=has_fields,
        merge=merge,
    )
    if merge is not None and merge.kind == "S" and _has_fractions(types.get(merge.value or "")):
        log.warning(
            "topic %s adds numbers as doubles, and column %s is decimal: sums may be off in the last digits; send "
            "whole numbers of a smaller unit if sums must be exact",
            topic.name,
            merge.value,
        )
    low, high = layout.encoder.bounds
    if constant is not None and not low <= constant <= high:
        raise InvalidValueError(f"option {value} is {constant}; on topic {topic.name} it must be from {low} to {high}")
    return layout


def _has_fractions(kind: DataType | None) -> bool:
    return isinstance(kind, DecimalType) and kind.scale > 0


def _wanted(topic: Topic, merge: MergeColumns | None) -> Types:
    """Return the columns that a topic accepts, with the allowed types of each."""
    value = VALUE_COLUMNS.get(topic.type)
    wanted: dict[str, tuple[type[DataType], ...]] = {"content": TEXT, "slot_basis": TEXT, "slot": WHOLE}
    wanted |= {"body": TEXT} if merge is None else merge.types
    wanted |= {} if value is None else {value: _VALUES[value]}
    return wanted | ({"fields": (MapType,)} if topic.type is TopicType.STREAM else {})


def _rules(topic: Topic) -> str:
    merges = "" if topic.merge is None else f" and merges by {topic.merge.reduce!r}"
    return f"topic {topic.name}, which is {topic.type.name}{merges}"


def _check_columns(types: dict[str, DataType], wanted: Types, topic: Topic) -> None:
    for name, kind in types.items():
        if name in wanted:
            check_type(name, kind, wanted[name], _rules(topic))
        elif name not in of_reads(types):
            rules = f"{_rules(topic)}; the topic takes {', '.join(wanted)}"
            raise InvalidValueError(f"column {quoted(name)} is not a column of {rules}; rename or drop the column")
    if "fields" in wanted and "fields" in types and ("content" in types or "body" in types):
        raise InvalidValueError("a stream entry with fields has no content or body: drop these columns, or fields")


def check_type(name: str, kind: DataType, wanted: tuple[type[DataType], ...], what: str) -> None:
    """Raise `InvalidValueError` for a column that has none of the allowed types.

    Args:
        name: Name of the column.
        kind: Its type.
        wanted: The allowed types.
        what: The topic or rows with this column, for the error.
    """
    fits = isinstance(kind, wanted)
    if isinstance(kind, MapType):
        fits = fits and isinstance(kind.keyType, StringType) and isinstance(kind.valueType, TEXT)
    if isinstance(kind, ArrayType):
        fits = fits and isinstance(kind.elementType, TEXT)
    if not fits:
        names = ", ".join(_WORDS.get(each, each.typeName()) for each in wanted)
        rule = f"it must be one of {names}" if len(wanted) > 1 else f"it must be {names}"
        raise InvalidValueError(
            f"column {name} is {kind.simpleString():.60}; for {what}, {rule}"
            + (" from string to string or binary" if MapType in wanted else "")
            + (" of string or binary" if ArrayType in wanted else "")
        )


COLUMN = "topic"


def routes(schema: StructType, options: Options) -> bool:
    """Return whether each row names its topic; option `topic` overrides the column, as with Spark's Kafka sink.

    Raises:
        InvalidValueError: The column `topic` is not of type string, or options define a new topic.
    """
    if options.topic is not None or COLUMN not in schema.names:
        return False
    kind = schema[COLUMN].dataType
    if not isinstance(kind, StringType):
        kind_name = kind.simpleString()
        raise InvalidValueError(f"column topic is {kind_name}; it must be string, unless option topic is set")
    if options.type is not None or options.slots is not None:
        raise InvalidValueError("options type and slots need option topic; topics named in rows must be registered")
    return True


def check_routed(schema: StructType, options: Options) -> None:
    """Raise an error for columns that no topic accepts, whichever topics the rows name.

    Raises:
        InvalidValueError: A column is unknown or has a type that no topic accepts, or `content` is missing.
    """
    names = [name for name in schema.names if name != COLUMN]
    read = of_reads(schema.names)
    for field in schema.fields:
        name = field.name
        if name in ANY and (name in VALUES or name not in read):
            check_type(name, field.dataType, ANY[name], "rows that name their topics")
        elif name not in (*ANY, *read):
            raise InvalidValueError(f"column {quoted(name)} is not a column of any topic; rename or drop it")
    if "content" not in names and "fields" not in names:
        raise InvalidValueError(
            f"rows that name topics need column content, or fields for STREAM; the frame has topic, {', '.join(names)}"
        )
    if options.trust_slot and not {"slot", "content"} <= {*names}:
        raise InvalidValueError("trustSlot needs columns slot and content")


def columns_for(topic: Topic, schema: StructType) -> StructType:
    """Return the columns of a frame for several topics, without columns for topics of other types than this one."""
    own = VALUE_COLUMNS.get(topic.type)
    others = set(VALUE_COLUMNS.values()) - {own}
    if topic.type is not TopicType.STREAM:
        others.add("fields")
    return StructType([field for field in schema.fields if field.name not in others and field.name != COLUMN])


def by_topic(batch: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name of each topic in the rows of a record batch, and its rows in order.

    Raises:
        InvalidMessageError: The topic of a row is null, or not a valid name.
    """
    column = batch.column(COLUMN)
    for name in pc.unique(column).to_pylist():
        if name is None:
            row = batch.filter(pc.is_null(column)).slice(0, 1).to_pylist()[0]
            raise InvalidMessageError(f"row {row!r:.400}: column topic is null, and option topic is not set")
        if not is_name(name):
            rule = "it must be 1 to 128 characters of A-Z a-z 0-9 . _ -"
            raise InvalidMessageError(f"a row's topic is {name!r:.200}; {rule}")
        yield name, batch.filter(pc.equal(column, name))


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
        for column in map(binary, keys.columns):
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


def binary(column: Any) -> Any:
    """Return a column of texts or bytes as bytes."""
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    return column.cast(pa.large_binary() if large else pa.binary())


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
