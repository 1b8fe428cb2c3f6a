"""What is sent column by column: checked as a whole before anything is sent, by the rules of the messages. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from numbers import Number
from typing import Any, Protocol, TypeAlias, TypeGuard, cast, runtime_checkable

from rmq._model.display import counted
from rmq._model.encoding import Row, encoder_of, score_bounds
from rmq._model.envelope import MARK
from rmq._model.messages import (
    MESSAGE_TYPES,
    FixedTimeMessage,
    Message,
    PriorityMessage,
    RangeMergeMessage,
    checked_priority,
)
from rmq._model.times import due_ms, duration_ms
from rmq._model.topics import Topic, TopicType, slot_of
from rmq.errors import InvalidBatchError, InvalidMessageError, InvalidValueError


@runtime_checkable
class ArrowArray(Protocol):
    """A `pyarrow.Array` or `ChunkedArray`, for programs that have pyarrow: RMQ does not need it.

    Examples:
        >>> import pyarrow
        >>> jobs = client.producer(Topic("jobs", TopicType.PRIORITY))
        >>> jobs.send_columns(pyarrow.array(["a", "b"]), priorities=pyarrow.array([1, 2])).new
        2
    """

    def to_pylist(self) -> list[Any]:
        """Return the values as a list."""
        ...


Column: TypeAlias = Sequence[Any] | ArrowArray
"""The values of all rows: a list, a tuple or an Arrow array."""

_VALUES: dict[TopicType, str] = {
    TopicType.RANGE_MERGE: "time_range",
    TopicType.PRIORITY: "priorities",
    TopicType.FIXED_TIME: "fixed_times",
}
"""Name of the column, or the one value, that says when the messages of a topic are due, or how urgent they are."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What to send, checked.

    Attributes:
        contents: Contents.
        scores: As many scores, or a single one that all of them have.
        bodies: As many bodies; `None` where no row has one.
        bases: What the slots are computed from; `None` for the contents.
        encoded: All of that row by row instead, where the columns need more than a look at all values at once.
    """

    contents: Sequence[bytes] = ()
    scores: list[int] | tuple[int, ...] = ()
    bodies: Sequence[bytes | None] | None = None
    bases: Sequence[bytes] | None = None
    encoded: Sequence[Row] = ()

    def __len__(self) -> int:
        return len(self.encoded) or len(self.contents)

    def each(self, slots: int) -> Iterator[Row]:
        """Yield them row by row, of a topic with so many slots."""
        if self.encoded:
            yield from self.encoded
            return
        scores = self.scores * len(self.contents) if len(self.scores) == 1 else self.scores
        bases = self.contents if self.bases is None else self.bases
        rows = zip(self.contents, scores, self.bodies or repeat(None), bases, strict=False)
        for content, score, body, basis in rows:
            yield slot_of(basis, slots), content, score, body, ()


def rows_of(
    topic: Topic,
    contents: Column,
    values: Mapping[str, Any],
    bodies: Column | None = None,
    slot_bases: Column | None = None,
) -> Rows:
    """Check columns against their topic.

    Args:
        topic: The registered definition.
        contents: Contents.
        values: `time_range`, `priorities` and `fixed_times`: that of the topic's type a column, or one value for all
            rows; the others `None`.
        bodies: Bodies, `None` for a row without one.
        slot_bases: Slot bases, `None` for a row whose slot comes from its content.

    Raises:
        InvalidBatchError: A row breaks a rule of its message.
        InvalidValueError: A column is none, of another length, missing, or of another type of topic.
    """
    found = list_of("contents", contents)
    value = _value_of(topic, values, len(found))
    with_bodies = None if bodies is None else list_of("bodies", bodies, len(found))
    bases = None if slot_bases is None else list_of("slot_bases", slot_bases, len(found))
    return _plain(topic, found, value, with_bodies, bases) or Rows(
        encoded=list(_each(topic, found, value, with_bodies, bases))
    )


def list_of(name: str, column: Column, number: int | None = None) -> Sequence[Any]:
    """Return a column as a list or a tuple.

    Args:
        name: What errors call it.
        column: A list, a tuple or an Arrow array.
        number: How many values it must have.

    Raises:
        InvalidValueError: It is no column, or has another number of values.
    """
    if isinstance(column, ArrowArray):
        column = column.to_pylist()
    if not isinstance(column, list | tuple):
        raise InvalidValueError(f"{name} is {column!r:.80}; it must be a list, a tuple or an Arrow array")
    if number is not None and len(column) != number:
        raise InvalidValueError(
            f"{name} has {counted(len(column), 'value')} and contents {number:,}; both must have as many"
        )
    return column


def _value_of(topic: Topic, values: Mapping[str, Any], number: int) -> Any:
    """Return the column that the type of the topic takes, as a list, or the one value for all rows."""
    wanted = _VALUES.get(topic.type)
    for name, value in values.items():
        if name != wanted and value is not None:
            takes = "none of them" if wanted is None else wanted
            raise InvalidValueError(
                f"{name} is {value!r:.80}; topic {topic.name} is {topic.type.name} and takes {takes}"
            )
    value = None if wanted is None else values.get(wanted)
    if wanted is None or (value is None and topic.type is TopicType.RANGE_MERGE):  # the topic's own window
        return None
    if value is None:
        raise InvalidValueError(f"{wanted} is None; topic {topic.name} is {topic.type.name} and needs it")
    if _is_several(value):
        return list_of(wanted, value, number)
    if topic.type is TopicType.RANGE_MERGE:
        return duration_ms(value, wanted)
    return value if topic.type is TopicType.PRIORITY else due_ms(value, wanted)


def _plain(
    topic: Topic,
    contents: Sequence[Any],
    value: Any,
    bodies: Sequence[Any] | None,
    bases: Sequence[Any] | None,
) -> Rows | None:
    """Return the rows if a look at all values of each column at once shows that they keep the rules, else `None`."""
    if topic.merge is not None:
        return None
    found = _payloads(contents, 1, topic.max_content_bytes)
    scores = _scores(topic, value)
    if found is None or scores is None:
        return None
    rest: list[Sequence[bytes | None] | None] = [None, None]
    for index, column in enumerate((bodies, bases)):
        if column is not None and column.count(None) < len(column):
            most = 2**62 if index else topic.max_body_bytes
            present = _payloads([each for each in column if each is not None], 0, most)
            if present is None or (not index and any(map(_is_marked, present))):
                return None
            again = iter(present)
            whole = len(present) == len(column)
            rest[index] = present if whole else [None if each is None else next(again) for each in column]
    keys = None
    if rest[1] is not None:
        keys = [content if basis is None else basis for content, basis in zip(found, rest[1], strict=True)]
    return Rows(found, scores, rest[0], keys)


def _is_marked(body: bytes) -> bool:
    return body.startswith(MARK)


def _payloads(values: Sequence[Any], least: int, most: int) -> Sequence[bytes] | None:
    """Return payloads as bytes; `None` where some are neither all text nor all bytes, or too short or too long."""
    kinds = set(map(type, values))
    if kinds == {str}:
        try:
            values = list(map(str.encode, values))
        except UnicodeEncodeError:
            return None
    elif not kinds <= {bytes}:
        return None
    lengths = list(map(len, values))
    return values if not lengths or (min(lengths) >= least and max(lengths) <= most) else None


def _scores(topic: Topic, value: Any) -> list[int] | tuple[int, ...] | None:
    """Return scores, or the single one of all rows; `None` where some are not whole numbers within their bounds."""
    if topic.type is TopicType.STREAM:
        return (0,)
    lowest, highest = score_bounds(topic)
    scores: list[Any] | tuple[Any, ...] = value if _is_column(value) else (value,)
    if scores and (set(map(type, scores)) != {int} or not lowest <= min(scores) <= max(scores) <= highest):
        return None
    return scores


def _is_several(value: object) -> bool:
    """Return whether this is meant to be a column, and may be none."""
    return isinstance(value, Iterable | ArrowArray) and not isinstance(value, str | bytes)


def _is_column(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(value, list | tuple)


def _each(
    topic: Topic,
    contents: Sequence[Any],
    value: Any,
    bodies: Sequence[Any] | None,
    bases: Sequence[Any] | None,
) -> Iterator[Row]:
    """Yield the rows, each checked as the message that it stands for."""
    encode, message_of = encoder_of(topic), _message_maker(topic)
    values = value if _is_column(value) else repeat(value)
    rows = zip(contents, values, bases or repeat(None), bodies or repeat(None), strict=False)
    for number, row in enumerate(rows):
        try:
            yield encode(message_of(*row))
        except InvalidMessageError as error:
            raise InvalidBatchError(f"row {number} of send_columns: {error}", topic=topic.name) from error


def _message_maker(topic: Topic) -> Callable[[Any, Any, Any, Any], Message]:
    """Return what makes a message of a content, a value, a slot basis and a body."""
    kind: Any = MESSAGE_TYPES[topic.type]
    if topic.merge is not None and topic.merge.joins:
        raise InvalidValueError(f"topic {topic.name} joins parts and takes JoinMessage, which has no columns")
    if topic.merge is not None and topic.merge.kind == "N":
        raise InvalidValueError(f"topic {topic.name} keeps Newest, which needs a version of each message: no column")
    if topic.type is TopicType.STREAM:
        return lambda content, value, basis, body: kind(content, basis, body)
    if topic.type is TopicType.PRIORITY:
        return partial(_priority_message, topic)
    return partial(_timed_message, kind)


def _timed_message(
    kind: type[RangeMergeMessage] | type[FixedTimeMessage], content: Any, value: Any, basis: Any, body: Any
) -> Message:
    """Return a message of a row; numbers of a column are ms."""
    if not isinstance(value, Number):
        return kind(content, value, basis, body)
    if kind is RangeMergeMessage:
        return RangeMergeMessage(content, None, basis, body, time_range_ms=cast("float", value))
    return FixedTimeMessage(content, None, basis, body, fixed_time_ms=cast("float", value))


def _priority_message(topic: Topic, content: Any, priority: Any, basis: Any, body: Any) -> Message:
    """Return a message; an error about its priority names the bounds of the topic, which the message does not know."""
    try:
        return PriorityMessage(content, priority, basis, body)
    except InvalidMessageError as error:
        try:
            checked_priority(topic, priority)
        except InvalidValueError as known:
            raise InvalidMessageError(str(known)) from None
        raise error
