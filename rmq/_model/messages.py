"""Messages as senders make them: small frozen values, checked when made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias, cast

from rmq._model.envelope import MARK, wrap
from rmq._model.times import MAX_SCORE, Duration, Instant, duration_ms, instant_ms
from rmq._model.topics import Topic, TopicType, slot_of
from rmq.errors import InvalidMessageError, InvalidValueError

Payload: TypeAlias = str | bytes
"""Content, slot basis or body: text is sent as UTF-8."""


@dataclass(frozen=True, slots=True)
class RangeMergeMessage:
    """Due `time_range` after the first send of this content; sends until it is claimed merge into it.

    Args:
        content: What identifies the message and merges duplicates; not empty.
        time_range: The merge window: `timedelta` or ms, > 0, at most 100 years.
        slot_basis: What the slot is computed from instead of the content; equal contents need equal bases.
        body: Optional payload. When a send merges, the body already there stays.

    Raises:
        InvalidMessageError: A value breaks its rule.
    """

    content: Payload
    time_range: Duration
    slot_basis: Payload | None = None
    body: Payload | None = None

    def __post_init__(self) -> None:
        time_range = self.time_range
        if type(time_range) is not int or not 0 < time_range <= 86_400_000:
            if _checked_ms(duration_ms, time_range, "time_range") == 0:
                raise InvalidMessageError(f"time_range is {time_range!r}; it must be more than 0")

    def score_ms(self) -> int:
        """Return the time range in whole ms, rounded up."""
        time_range = self.time_range
        return time_range if type(time_range) is int else duration_ms(time_range, "time_range")


@dataclass(frozen=True, slots=True)
class PriorityMessage:
    """Delivered before all messages of a smaller priority; the last send of a content decides on its priority.

    Args:
        content: What identifies the message and merges duplicates; not empty.
        priority: Whole number, larger first: 1 to the topic's `max_priority`; with `ties="any"` above its
            `max_retries` and below 2^53.
        slot_basis: What the slot is computed from instead of the content; equal contents need equal bases.
        body: Optional payload; the last send's stands.

    Raises:
        InvalidMessageError: A value breaks its rule.
    """

    content: Payload
    priority: int
    slot_basis: Payload | None = None
    body: Payload | None = None

    def __post_init__(self) -> None:
        # an IntEnum is how many people write tiers; a bool is a mistake
        whole = isinstance(self.priority, int) and not isinstance(self.priority, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not whole or not 0 < self.priority <= MAX_SCORE:
            raise InvalidMessageError(f"priority is {self.priority!r}; it must be a whole number from 1 to 2^53 - 1")


@dataclass(frozen=True, slots=True)
class FixedTimeMessage:
    """Due at a given time; the last send of a content decides.

    Args:
        content: What identifies the message and merges duplicates; not empty.
        fixed_time: When it is due: aware `datetime` or epoch ms; ahead of Redis' time on arrival.
        slot_basis: What the slot is computed from instead of the content; equal contents need equal bases.
        body: Optional payload; the last send's stands.

    Raises:
        InvalidMessageError: A value breaks its rule.
    """

    content: Payload
    fixed_time: Instant
    slot_basis: Payload | None = None
    body: Payload | None = None

    def __post_init__(self) -> None:
        if type(self.fixed_time) is not int or not 0 < self.fixed_time <= MAX_SCORE:
            _checked_ms(instant_ms, self.fixed_time, "fixed_time")

    def score_ms(self) -> int:
        """Return the fixed time as epoch ms, rounded up."""
        fixed_time = self.fixed_time
        return fixed_time if type(fixed_time) is int else instant_ms(fixed_time, "fixed_time")


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """An entry of a log: delivered in the order of sending within its slot, to every group, and never merged.

    Args:
        content: A content like that of other messages, or the entry's fields, name -> value: 1 to 500 of them.
        slot_basis: What the slot is computed from instead of the content or the fields: messages of one basis keep
            their order.
        body: Optional payload beside a content; not beside fields.

    Raises:
        InvalidMessageError: A value breaks its rule.
    """

    content: Payload | Mapping[str, Payload]
    slot_basis: Payload | None = None
    body: Payload | None = None

    def __post_init__(self) -> None:
        if isinstance(self.content, Mapping):
            if not 0 < len(self.content) <= MAX_FIELDS:
                raise InvalidMessageError(f"an entry has {len(self.content)} fields; it must have 1 to {MAX_FIELDS}")
            if self.body is not None:
                raise InvalidMessageError("an entry made of fields has no body; put it into a field")

    def flat(self) -> tuple[bytes, ...]:
        """Return the fields as Redis takes them: name, value, name, value ...; none for a message with a content."""
        if not isinstance(self.content, Mapping):
            return ()
        flat: list[bytes] = []
        for name, value in self.content.items():
            flat.append(payload_bytes(name, "name of a field"))
            if not flat[-1] or flat[-1].startswith(b"rmq:"):
                raise InvalidMessageError(f"field {name!r:.80} must have a name that does not begin with 'rmq:'")
            flat.append(payload_bytes(value, f"field {name!r:.80}"))
        return tuple(flat)


Message: TypeAlias = RangeMergeMessage | PriorityMessage | FixedTimeMessage | StreamMessage

MESSAGE_TYPES: dict[
    TopicType, type[RangeMergeMessage] | type[PriorityMessage] | type[FixedTimeMessage] | type[StreamMessage]
] = {
    TopicType.RANGE_MERGE: RangeMergeMessage,
    TopicType.PRIORITY: PriorityMessage,
    TopicType.FIXED_TIME: FixedTimeMessage,
    TopicType.STREAM: StreamMessage,
}

_TOPIC_TYPES = {kind: topic_type for topic_type, kind in MESSAGE_TYPES.items()}  # by class: an enum hashes slowly

MAX_FIELDS = 500
"""Most fields of an entry."""


def _checked_ms(convert: object, value: object, name: str) -> int:
    try:
        return convert(value, name)  # type: ignore[operator]
    except InvalidValueError as error:
        raise InvalidMessageError(str(error)) from None


def payload_bytes(value: Payload, name: str) -> bytes:
    """Return a content, slot basis or body as the bytes that are stored.

    Raises:
        InvalidMessageError: Neither `str` nor `bytes`, or text that UTF-8 cannot hold (a lone surrogate).
    """
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidMessageError(f"{name} {value!r:.80} cannot be written as UTF-8: {error.reason}") from None
    if isinstance(value, bytes):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
        return value
    raise InvalidMessageError(f"{name} is {value!r:.80}; it must be str or bytes")


class Encoded(NamedTuple):
    """A message ready for its slot.

    Attributes:
        slot: Number of the slot.
        content: Content in bytes.
        score: Time range in ms, priority, or due time in ms, by the topic's type.
        body: Body in bytes, or `None`.
        flat: Fields of a stream entry that was made of fields; the content is then all of them in a row.
    """

    slot: int
    content: bytes
    score: int
    body: bytes | None
    flat: tuple[bytes, ...] = ()


_encoded = cast(
    "Callable[[tuple[int, bytes, int, bytes | None, tuple[bytes, ...]]], Encoded]",
    partial(tuple.__new__, Encoded),  # pyright: ignore[reportUnknownMemberType] - costs half of a call of the class
)


def encode(topic: Topic, message: Message) -> Encoded:
    """Check a message against its topic and turn it into what the send script takes.

    Raises:
        InvalidMessageError: Of another topic type, too long, empty, or a priority within the retry counts.
    """
    kind = type(message)
    if _TOPIC_TYPES.get(kind) is not topic.type:
        raise InvalidMessageError(
            f"topic {topic.name} is {topic.type.name} and takes {MESSAGE_TYPES[topic.type].__name__}, "
            f"not {kind.__name__}",
            topic=topic.name,
        )
    if isinstance(message, StreamMessage):
        return _encode_entry(topic, message)
    content = message.content if type(message.content) is bytes else payload_bytes(message.content, "content")
    if not 0 < len(content) <= topic.max_content_bytes:
        raise InvalidMessageError(
            f"content {content!r:.80} has {len(content)} bytes; "
            f"topic {topic.name} takes 1 to {topic.max_content_bytes}",
            topic=topic.name,
        )
    if isinstance(message, PriorityMessage):
        score = int(message.priority)
        lowest, highest = topic.priorities
        if not lowest <= score <= highest:
            raise InvalidMessageError(_wrong_priority(topic, score), topic=topic.name)
    else:
        score = message.score_ms()
    basis = content if message.slot_basis is None else payload_bytes(message.slot_basis, "slot_basis")
    body = None if message.body is None else _checked_body(topic, content, message.body)
    return _encoded((slot_of(basis, topic.slots), content, score, body, ()))


def _wrong_priority(topic: Topic, priority: object) -> str:
    lowest, highest = topic.priorities
    if topic.max_priority is None:
        rule = f"above max_retries, which is {topic.max_retries}, and below 2^53"
    else:
        rule = f"from {lowest} to max_priority, which is {highest}"
    return f"priority is {priority!r}; on topic {topic.name} it must be a whole number {rule}"


def checked_priority(topic: Topic, priority: object) -> int:
    """Return a priority that a message of this topic may have.

    Raises:
        InvalidValueError: It may not.
    """
    lowest, highest = topic.priorities
    if type(priority) is not int or not lowest <= priority <= highest:
        raise InvalidValueError(_wrong_priority(topic, priority))
    return priority


def _checked_body(topic: Topic, content: bytes, payload: Payload | None) -> bytes | None:
    body = None if payload is None else payload_bytes(payload, "body")
    if body is not None and len(body) > topic.max_body_bytes:
        raise InvalidMessageError(
            f"body of {content!r:.80} has {len(body)} bytes; topic {topic.name} takes up to {topic.max_body_bytes}",
            topic=topic.name,
        )
    if body is not None and body.startswith(MARK):
        return wrap(body, "")
    return body


def _encode_entry(topic: Topic, message: StreamMessage) -> Encoded:
    flat = message.flat()
    content = b"".join(flat) if flat else payload_bytes(cast("Payload", message.content), "content")
    most, what = (topic.max_body_bytes, "entry") if flat else (topic.max_content_bytes, "content")
    if not 0 < len(content) <= most:
        raise InvalidMessageError(
            f"{what} {content!r:.80} has {len(content)} bytes; topic {topic.name} takes 1 to {most}", topic=topic.name
        )
    basis = content if message.slot_basis is None else payload_bytes(message.slot_basis, "slot_basis")
    return Encoded(topic.slot_of(basis), content, 0, _checked_body(topic, content, message.body), flat)
