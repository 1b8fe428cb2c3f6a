"""What the columns of a frame mean to a sink: checked once on the driver, then turned into messages by columns."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from rmq._model.times import MAX_DURATION_MS, MAX_SCORE
from rmq._model.topics import Topic, TopicType
from rmq.errors import InvalidValueError
from rmq.spark.options import Options
from rmq.spark.schema import DEAD, QUEUE

_TEXT = (StringType, BinaryType)
_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_VALUES: dict[TopicType, tuple[str, tuple[type[DataType], ...]]] = {
    TopicType.RANGE_MERGE: ("time_range", (*_WHOLE, DayTimeIntervalType)),
    TopicType.PRIORITY: ("priority", _WHOLE),
    TopicType.FIXED_TIME: ("fixed_time", (*_WHOLE, TimestampType)),
}
_OF_READS = frozenset([*QUEUE.names, *DEAD.names])
"""Columns of a read that a sink passes over, so that what was read can be written."""


@dataclass(frozen=True)
class Layout:
    """What a frame's columns are.

    Attributes:
        topic: The registered definition.
        value: Column of time range, priority or fixed time; `None` where `constant` is it, and for streams.
        constant: The same for all rows.
        slot_basis: Whether there is such a column; so with those below.
        body: The payload beside the content.
        slot: The slot, computed by Spark.
        trusted: The slot is taken as it is.
        fields: Stream entries made of fields stand here, and not in `content`.
    """

    topic: Topic
    value: str | None = None
    constant: int | None = None
    slot_basis: bool = False
    body: bool = False
    slot: bool = False
    trusted: bool = False
    fields: bool = False

    def __post_init__(self) -> None:
        if self.trusted and (not self.slot or self.fields):
            raise InvalidValueError("trustSlot needs a column slot beside a column content")

    @property
    def bounds(self) -> tuple[int, int]:
        """Smallest and largest value that a message of this topic may have: ms, priority or epoch ms."""
        match self.topic.type:
            case TopicType.RANGE_MERGE:
                return 1, MAX_DURATION_MS
            case TopicType.PRIORITY:
                return self.topic.priorities
            case _:
                return 1, MAX_SCORE


def layout_of(schema: StructType, topic: Topic, options: Options) -> Layout:
    """Return what the columns of a frame are.

    Raises:
        InvalidValueError: A column is missing, unknown, or of a type that does not fit.
    """
    types = {field.name: field.dataType for field in schema.fields}
    value, kinds = _VALUES.get(topic.type, (None, ()))
    wanted: dict[str, tuple[type[DataType], ...]] = {
        "content": _TEXT, "body": _TEXT, "slot_basis": _TEXT, "slot": _WHOLE,
    }  # fmt: skip
    if value is not None:
        wanted[value] = kinds
    if topic.type is TopicType.STREAM:
        wanted["fields"] = (MapType,)
    for name, kind in types.items():
        if name in wanted:
            _check_type(name, kind, wanted[name], topic)
        elif name not in _OF_READS:
            raise InvalidValueError(
                f"column {name!r} is not a column of topic {topic.name}, which is {topic.type.name} and takes "
                f"{', '.join(wanted)}; rename or drop it"
            )
    has_fields = topic.type is TopicType.STREAM and "fields" in types
    if has_fields and ("content" in types or "body" in types):
        raise InvalidValueError("an entry made of fields has neither content nor body: drop these columns")
    if not has_fields and "content" not in types:
        raise InvalidValueError(f"column content is missing; there are {', '.join(types)}")
    constant = {"time_range": options.time_range_ms, "priority": options.priority}.get(value or "")
    if value is not None and constant is None and value not in types:
        raise InvalidValueError(f"topic {topic.name} is {topic.type.name}: column {value} is missing")
    layout = Layout(
        topic,
        value if constant is None else None,
        constant,
        slot_basis="slot_basis" in types,
        body="body" in types,
        slot="slot" in types,
        trusted=options.trust_slot,
        fields=has_fields,
    )
    low, high = layout.bounds
    if constant is not None and not low <= constant <= high:
        raise InvalidValueError(f"option {value} is {constant}; on topic {topic.name} it must be from {low} to {high}")
    return layout


def _check_type(name: str, kind: DataType, wanted: tuple[type[DataType], ...], topic: Topic) -> None:
    fits = isinstance(kind, wanted)
    if isinstance(kind, MapType):
        fits = fits and isinstance(kind.keyType, StringType) and isinstance(kind.valueType, _TEXT)
    if not fits:
        names = ", ".join(each.__name__.removesuffix("Type").lower() for each in wanted)
        raise InvalidValueError(
            f"column {name} is {kind.simpleString()}; for topic {topic.name}, which is {topic.type.name}, it must be "
            f"one of {names}" + (" from string to string or binary" if MapType in wanted else "")
        )
