"""Checks messages by the rules of their topic, and encodes them as bytes. Pure.

All senders use the `Encoder` of a topic: producers for single messages and for columns, Spark's sink for bounds and
records. So each rule has one place, and one error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import repeat
from math import isfinite
from numbers import Number
from operator import attrgetter
from typing import Any, Protocol, TypeAlias, TypeGuard, cast, runtime_checkable
from zlib import crc32

from rmq._model.batches import EncodedMessage, Row, Rows, slots_of
from rmq._model.display import counted
from rmq._model.merging import MAX_COUNT, Collect, Merge
from rmq._model.messages import (
    BODY,
    CONTENT,
    ID,
    MESSAGE_TYPES,
    Body,
    JoinMessage,
    Message,
    Payload,
    PlainMessage,
    PriorityMessage,
    StreamMessage,
    payload_bytes,
)
from rmq._model.records import BODIES, ITEMS, MAX_WHOLE, TRACE_MARK, framed, new_record, traced, unwrap, wanting, wrap
from rmq._model.settings import is_number
from rmq._model.times import MAX_DUE_MS, MAX_DURATION_MS, due_ms, duration_ms, number_ms
from rmq._model.topics import Topic, TopicType, slot_of
from rmq.errors import InvalidBatchError, InvalidMessageError, InvalidValueError

_NUMBERS = {
    TopicType.RANGE_MERGE: "time_range_ms",
    TopicType.PRIORITY: "priority",
    TopicType.FIXED_TIME: "fixed_time_ms",
}
"""Topic type -> the attribute of a message that holds the number."""

_PARAMETERS: dict[TopicType, tuple[str, ...]] = {
    TopicType.RANGE_MERGE: ("time_range",),
    TopicType.PRIORITY: ("priorities",),
    TopicType.FIXED_TIME: ("fixed_times", "delays"),
    TopicType.STREAM: (),
}
"""Topic type -> the parameters of `send_columns`, of which a call has one."""

_KEYWORDS = {"time_range": "time_range_ms", "fixed_times": "fixed_time_ms"}
"""Parameter of `send_columns` -> the argument of a message for its numbers; others are the second argument."""

_TOPIC_TYPES: dict[type[Message], TopicType] = {kind: topic_type for topic_type, kind in MESSAGE_TYPES.items()}
"""Message class -> topic type: a class hashes faster than an enum member."""


@runtime_checkable
class ArrowArray(Protocol):
    """A `pyarrow.Array` or `pyarrow.ChunkedArray`. RMQ itself does not need pyarrow.

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
"""One value per row: a list, a tuple or an Arrow array."""


class Encoder:
    """Checks and encodes the messages of one topic.

    Args:
        topic: The registered definition.

    Attributes:
        row: Function that does the same as `one`, but may return a plain tuple.
        bounds: Smallest and largest value of a message: time range in ms, priority or epoch ms.
    """

    __slots__ = ("_merge", "bounds", "row", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic, self._merge = topic, cast("Merge", topic.merge)
        if topic.type is TopicType.PRIORITY:
            self.bounds = topic.priorities
        else:
            self.bounds = 1, MAX_DURATION_MS if topic.type is TopicType.RANGE_MERGE else MAX_DUE_MS
        plain = topic.type is not TopicType.STREAM and topic.merge is None
        self.row: Callable[[Message], Row] = self._plain_first() if plain else self._checked

    def __reduce__(self) -> tuple[type[Encoder], tuple[Topic]]:
        return Encoder, (self.topic,)

    def one(self, message: Message) -> EncodedMessage:
        """Check a message, and return it encoded.

        Raises:
            InvalidMessageError: The message is for another topic type, empty, too long, or has a value out of bounds.
        """
        row = self.row(message)
        return row if type(row) is EncodedMessage else EncodedMessage(*row)

    def _plain_first(self) -> Callable[[Message], Row]:
        """Return a function equivalent to `_checked` that takes half the time for plain messages."""
        topic, checked = self.topic, self._checked
        kind: Any = MESSAGE_TYPES[topic.type]
        value_of = attrgetter(_NUMBERS[topic.type])
        lowest, highest = self.bounds
        if topic.type is TopicType.FIXED_TIME:
            lowest = -MAX_DURATION_MS  # a delay, negated
        most, most_body, mask = topic.max_content_bytes, topic.max_body_bytes, topic.slots - 1

        text = str.encode

        def encode(message: Any) -> Row:
            if type(message) is kind and message.weight == 1 and message.version is None:
                content, value, basis, body = message.content, value_of(message), message.slot_basis, message.body
                try:
                    if value is None:  # it has a delay, or takes the topic's time range
                        value = message.score_ms()
                    content = content if type(content) is bytes else text(content)
                    basis = content if basis is None else _plain_bytes(basis, 2**62)
                    body = body if body is None else _plain_bytes(body, most_body)
                    if type(value) is int and lowest <= value <= highest and 0 < len(content) <= most:
                        return crc32(basis) & mask, content, value, body, ()
                except (TypeError, UnicodeEncodeError):
                    pass
            return checked(message)  # which says what is wrong, where something is

        return encode

    def _checked(self, message: Message) -> EncodedMessage:
        topic, kind = self.topic, type(message)
        if _TOPIC_TYPES.get(kind) is not topic.type:
            self._refuse_other(kind)
        if isinstance(message, StreamMessage):
            return self._entry(message)
        content = message.content if type(message.content) is bytes else payload_bytes(message.content, "content")
        if not 0 < len(content) <= topic.max_content_bytes:
            raise self._wrong_length("content", content, topic.max_content_bytes)
        if isinstance(message, PriorityMessage):
            value = int(message.priority)
            lowest, highest = self.bounds
            if not lowest <= value <= highest:
                checked_priority(topic, value)
        else:
            value = message.score_ms() or self._default_range_ms()
        basis = content if message.slot_basis is None else payload_bytes(message.slot_basis, "slot_basis")
        if topic.merge is None:
            plain: PlainMessage = message  # pyright: ignore[reportAssignmentType] - the type of the topic was checked
            body = self._body(content, plain.body)
            if plain.weight != 1 or plain.version is not None:
                name, extra = ("weight", plain.weight) if plain.version is None else ("version", plain.version)
                raise self._wrong(name, content, extra, f", but topic {topic.name} has no merge=; omit the {name}")
        elif isinstance(message, JoinMessage):
            body = self.join(content, message.part, message.of)
        else:
            if topic.merge.joins:
                self._refuse_other(kind)
            body = self.record(content, message.body, message.version, message.weight)
        return EncodedMessage(slot_of(basis, topic.slots), content, value, body)

    def _entry(self, message: StreamMessage) -> EncodedMessage:
        topic, fields = self.topic, message.flat()
        content = b"".join(fields) if fields else payload_bytes(cast("Payload", message.content), "content")
        most, what = (topic.max_body_bytes, "entry") if fields else (topic.max_content_bytes, "content")
        if not 0 < len(content) <= most:
            raise self._wrong_length(what, content, most)
        basis = content if message.slot_basis is None else payload_bytes(message.slot_basis, "slot_basis")
        body = self._body(content, message.body)
        if message.id is not None:
            sent = fields or ((CONTENT, content) if body is None else (CONTENT, content, BODY, body))
            fields = (ID, message.id.encode(), *sent)
        return EncodedMessage(slot_of(basis, topic.slots), content, 0, body, fields)

    def _refuse_other(self, kind: type[Message]) -> None:
        """Raise `InvalidMessageError` for a message of a class that the topic does not take."""
        topic = self.topic
        joins = topic.merge is not None and topic.merge.joins
        taken = JoinMessage if joins else MESSAGE_TYPES[topic.type]
        if kind is not taken:
            what = "joins parts" if joins else f"is {topic.type.name}"
            raise self._error(f"topic {topic.name} {what} and takes {taken.__name__}, not {kind.__name__}")

    def _default_range_ms(self) -> int:
        if self.topic.default_range_ms is not None:
            return self.topic.default_range_ms
        raise self._error(
            f"time_range is None, and topic {self.topic.name} has no default window; give the message a time_range"
        )

    def _error(self, text: str) -> InvalidMessageError:
        return InvalidMessageError(text, topic=self.topic.name)

    def _wrong(self, name: str, content: bytes, value: object, rule: str) -> InvalidMessageError:
        """Return the error about a part of the message of a content, with the rule that it breaks."""
        return self._error(f"{name} of {content!r:.80} is {value!r:.80}{rule}")

    def _wrong_length(self, what: str, content: bytes, most: int) -> InvalidMessageError:
        return self._error(
            f"{what} {content!r:.80} has {len(content)} bytes; on topic {self.topic.name} it must have 1 to {most}"
        )

    def traced(self, encoded: EncodedMessage, trace: str) -> EncodedMessage:
        """Return a message with the trace context before its body; stream entries are returned unchanged."""
        if not trace or self.topic.type is TopicType.STREAM:
            return encoded
        if self.topic.merge is not None and encoded.body is not None:
            return encoded._replace(body=traced(encoded.body, trace))
        return encoded._replace(body=wrap(unwrap(encoded.body)[0], trace))

    def _body(self, content: bytes, body: Body) -> bytes | None:
        """Return a body as it is stored; one that begins like RMQ's trace envelope is wrapped in an empty envelope."""
        if body is None:
            return None
        stored = self._payload(content, body, "body")
        return wrap(stored, "") if stored.startswith(TRACE_MARK) else stored

    def _payload(self, content: bytes, payload: Body, name: str) -> bytes:
        """Return a body, or one of its items, in bytes."""
        stored, topic = payload_bytes(payload, name), self.topic
        if len(stored) > topic.max_body_bytes:
            rule = f"on topic {topic.name} it must have at most {topic.max_body_bytes}"
            raise self._error(f"{name} of {content!r:.80} has {len(stored)} bytes; {rule}")
        return stored

    def record(self, content: bytes, body: Body, version: int | None, weight: int) -> bytes:
        """Return the record of a message, without times, which the script adds.

        Raises:
            InvalidMessageError: The topic's reducer does not take this version, weight or body.
        """
        if type(weight) is not int or not 1 <= weight <= MAX_COUNT:
            raise self._wrong("weight", content, weight, f"; it must be a whole number from 1 to {MAX_COUNT}")
        kind = self._merge.kind
        number = 0 if version is None and kind != "N" else self._version(content, version, kind)
        if kind in BODIES:
            stored = self._body(content, body)
            value = b"" if stored is None else b"=" + stored
        elif kind in ITEMS:
            items = body if isinstance(body, tuple | list) else (body,)
            number, value = self._collected(content, items)
        else:
            number, value = self._number(content, body, kind), b""
        return new_record(kind, value, number, weight)

    def join(self, content: bytes, part: Payload, of: int) -> bytes:
        """Return the record of one part of a join, without times; raises as `record`."""
        most = cast("Collect", self._merge.reduce).max_items
        if of > most:
            rule = f"on topic {self.topic.name} it must be at most max_items, which is {most}"
            raise self._error(f"of= for {content!r:.80} is {of}; {rule}")
        number, value = self._collected(content, (part,))
        return new_record("J", wanting(of) + value, number)

    def _version(self, content: bytes, version: int | None, kind: str) -> int:
        if kind != "N":
            rule = f"topic {self.topic.name} takes no version; only topics with merge=Merge(Newest()) take one"
        elif type(version) is int and 0 <= version <= MAX_WHOLE:
            return version
        else:
            rule = f"on topic {self.topic.name} it must be a whole number from 0 to 2^53 - 1"
        raise self._wrong("version", content, version, f"; {rule}")

    def _number(self, content: bytes, body: Body, kind: str) -> int | float:
        if type(body) is int and -MAX_WHOLE <= body <= MAX_WHOLE:
            return body
        if is_number(body):
            if abs(body) <= MAX_WHOLE or (isinstance(body, float) and kind != "S" and isfinite(body)):
                return body
        most = "from -(2^53 - 1) to 2^53 - 1" + ("" if kind == "S" else ", or any finite float")
        raise self._wrong("body", content, body, f"; on topic {self.topic.name} it must be a number {most}")

    def _collected(self, content: bytes, items: Sequence[Body]) -> tuple[int, bytes]:
        """Return the number of items, and the items in the form of a record's value."""
        bounds = cast("Collect", self._merge.reduce)
        if not items or None in items:
            rule = f"on topic {self.topic.name}, which collects items, it must be an item or a non-empty tuple of items"
            raise self._wrong("body", content, None if [*items] == [None] else tuple(items), f"; {rule}")
        name = "part" if self._merge.joins else "item"
        stored = [self._payload(content, item, name) for item in items]
        if bounds.unique:
            stored = list(dict.fromkeys(stored))
        value = framed(stored)
        if len(stored) > bounds.max_items or len(value) > bounds.max_bytes:
            raise self._error(
                f"body of {content!r:.80} has {counted(len(stored), 'item')}, {len(value)} bytes including 4 per item; "
                f"topic {self.topic.name} collects up to max_items={bounds.max_items}, max_bytes={bounds.max_bytes}"
            )
        return len(stored), value

    def columns(
        self,
        contents: Column,
        values: Mapping[str, Any],
        bodies: Column | None = None,
        slot_bases: Column | None = None,
    ) -> Rows:
        """Check columns of messages as a whole, before any is sent, and return them encoded.

        Args:
            contents: Contents.
            values: `time_range`, `priorities`, `fixed_times` and `delays`. The one for the topic's type (one of the
                last two for FIXED_TIME) is a column, or one value for all rows; the others are `None`.
            bodies: Bodies, `None` for a row without one.
            slot_bases: Slot bases, `None` for a row whose slot comes from its content.

        Raises:
            InvalidBatchError: A row breaks a rule of its message.
            InvalidValueError: A column is invalid, has another length, is missing, or is for another type of topic.
        """
        column = list_of("contents", contents)
        name, value = self._value_of(values, len(column))
        with_bodies = None if bodies is None else list_of("bodies", bodies, len(column))
        bases = None if slot_bases is None else list_of("slot_bases", slot_bases, len(column))
        plain = None if self.topic.merge is not None else self._values(name, value, len(column))
        rows = None if plain is None else self._plain_columns(column, plain, with_bodies, bases)
        return Rows.of(list(self._each(column, name, value, with_bodies, bases))) if rows is None else rows

    def _value_of(self, values: Mapping[str, Any], number: int) -> tuple[str, Any]:
        """Return the parameter for the topic's type, and its column as a list, or its one value for all rows."""
        topic = self.topic
        taken = _PARAMETERS[topic.type]
        given = {name: value for name, value in values.items() if value is not None}
        if wrong := [name for name in given if name not in taken] or list(given)[1:]:
            takes = f"{'either ' * (len(taken) > 1)}{' or '.join(taken)}" or "no such column"
            raise InvalidValueError(
                f"{wrong[0]} is {given[wrong[0]]!r:.80}; topic {topic.name} is {topic.type.name} and takes {takes}"
            )
        if not given and taken and topic.type is not TopicType.RANGE_MERGE:  # that one may have a window of its own
            missing = " and ".join(f"{name} is None" for name in taken)
            needs = "it" if len(taken) == 1 else "one of them"
            raise InvalidValueError(f"{missing}; topic {topic.name} is {topic.type.name} and needs {needs}")
        if not given:
            return "", None
        ((name, value),) = given.items()
        if _is_several(value):
            return name, list_of(name, value, number)
        if topic.type is TopicType.PRIORITY:
            return name, value
        return name, due_ms(value, name) if name == "fixed_times" else duration_ms(value, name)

    def _plain_columns(
        self, contents: Sequence[Any], values: Sequence[int], bodies: Sequence[Any] | None, bases: Sequence[Any] | None
    ) -> Rows | None:
        """Return the rows if a check of whole columns shows that they are valid, else `None`."""
        topic = self.topic
        payloads = _payloads(contents, 1, topic.max_content_bytes)
        stored, keys = _present(bodies, topic.max_body_bytes, marked=True), _present(bases, 2**62)
        if payloads is None or stored is None or keys is None:
            return None
        keys = [c if basis is None else basis for c, basis in zip(payloads, keys, strict=True)] if keys else payloads
        slots = slots_of(keys, topic.slots) if topic.slots > 1 else [0] * len(payloads)
        return Rows(slots, payloads, values, stored)

    def _values(self, name: str, value: Any, number: int) -> Sequence[int] | None:
        """Return the values of a number of rows; `None` if some are not whole numbers within their bounds."""
        if self.topic.type is TopicType.STREAM:
            return [0] * number
        lowest, highest = (0, MAX_DURATION_MS) if name == "delays" else self.bounds
        values: list[Any] | tuple[Any, ...] = value if _is_column(value) else (value,)
        if values and (set(map(type, values)) != {int} or not lowest <= min(values) <= max(values) <= highest):
            return None
        if name == "delays":
            values = [-(delay_ms or 1) for delay_ms in values]
        return values if _is_column(value) else values * number

    def _each(
        self, contents: Sequence[Any], name: str, value: Any, bodies: Sequence[Any] | None, bases: Sequence[Any] | None
    ) -> Iterator[EncodedMessage]:
        """Check each row as a message, and yield it encoded; `name` is the parameter that has the values."""
        merge = self.topic.merge
        kind = cast("Any", MESSAGE_TYPES[self.topic.type])
        if merge is not None and (merge.joins or merge.kind == "N"):
            needs = "takes JoinMessage" if merge.joins else "merges by Newest and needs a version"
            raise InvalidValueError(f"topic {self.topic.name} {needs}, for which there is no column; use send_many")
        keyword = _KEYWORDS.get(name)
        values = value if _is_column(value) else repeat(value)
        rows = zip(contents, values, bases or repeat(None), bodies or repeat(None), strict=False)
        for number, (content, value, basis, body) in enumerate(rows):
            try:
                numeric = type(value) is int or isinstance(value, Number)
                if name == "delays":
                    delay = timedelta(milliseconds=number_ms(cast("float", value), "delay")) if numeric else value
                    message = kind(content, None, basis, body, delay=delay)
                elif numeric and keyword is not None:
                    message = kind(content, None, basis, body, **{keyword: value})
                elif self.topic.type is not TopicType.STREAM:
                    message = kind(content, value, basis, body)
                else:
                    message = kind(content, slot_basis=basis, body=body)
                yield self.one(message)
            except InvalidValueError as error:
                if name == "priorities":
                    error = _error_of_priority(self.topic, value) or error
                raise InvalidBatchError(f"row {number} of send_columns: {error}", topic=self.topic.name) from error


def _plain_bytes(payload: Any, most: int) -> bytes:
    """Return a text or bytes as it is stored; raises `TypeError` if that needs the checks of `_checked`."""
    stored = payload if type(payload) is bytes else str.encode(payload)
    if len(stored) > most or stored.startswith(TRACE_MARK):
        raise TypeError
    return stored


def checked_priority(topic: Topic, priority: object) -> int:
    """Return a priority if it is valid for a message of this topic.

    Raises:
        InvalidMessageError: The priority is not a whole number, or is out of the topic's bounds.
    """
    if error := _error_of_priority(topic, priority):
        raise error
    return int(cast("int", priority))


def _error_of_priority(topic: Topic, priority: object) -> InvalidMessageError | None:
    lowest, highest = topic.priorities
    if isinstance(priority, int) and not isinstance(priority, bool) and lowest <= priority <= highest:
        return None
    rule = f"from {lowest} to max_priority, which is {highest}"
    if topic.max_priority is None:
        rule = f"above max_retries, which is {topic.max_retries}, and below 2^53"
    return InvalidMessageError(
        f"priority is {priority!r}; on topic {topic.name} it must be a whole number {rule}", topic=topic.name
    )


def list_of(name: str, column: Column, number: int | None = None) -> Sequence[Any]:
    """Return a column as a list or a tuple.

    Args:
        name: Name of the column in errors.
        column: A list, a tuple or an Arrow array.
        number: Required number of values; `None` for any.

    Raises:
        InvalidValueError: `column` is not a column, or has another number of values.
    """
    if isinstance(column, ArrowArray):
        column = column.to_pylist()
    if not isinstance(column, list | tuple):
        raise InvalidValueError(f"{name} is {column!r:.80}; it must be a list, a tuple or an Arrow array")
    if number is not None and len(column) != number:
        raise InvalidValueError(
            f"{name} has {counted(len(column), 'value')} and contents has {number:,}; they must have the same length"
        )
    return column


def _payloads(values: Sequence[Any], least: int, most: int, marked: bool = False) -> Sequence[bytes] | None:
    """Return payloads as bytes; `None` unless all are text or all are bytes, of `least` to `most` bytes each.

    With `marked`, also `None` if one looks like RMQ's envelope.
    """
    kinds = set(map(type, values))
    if kinds == {str}:
        try:
            values = list(map(str.encode, values))
        except UnicodeEncodeError:
            return None
    elif not kinds <= {bytes}:
        return None
    lengths = list(map(len, values))
    fits = not lengths or (min(lengths) >= least and max(lengths) <= most)
    return values if fits and not (marked and any([body.startswith(TRACE_MARK) for body in values])) else None


def _present(values: Sequence[Any] | None, most: int, marked: bool = False) -> Sequence[bytes | None] | None:
    """Return payloads of rows as `_payloads` does, `None` for a row without one; empty if no row has one."""
    if values is None or values.count(None) == len(values):
        return ()
    present = _payloads([value for value in values if value is not None], 0, most, marked)
    if present is None or len(present) == len(values):
        return present
    following = iter(present)
    return [None if value is None else next(following) for value in values]


def _is_several(value: object) -> bool:
    """Return whether a value is meant as a column, even if it is not a valid one."""
    return isinstance(value, Iterable | ArrowArray) and not isinstance(value, str | bytes)


def _is_column(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(value, list | tuple)
