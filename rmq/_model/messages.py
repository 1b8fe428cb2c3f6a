"""Messages as senders make them: small frozen values, checked when made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from numbers import Number
from typing import NamedTuple, TypeAlias, cast

from rmq._model.display import brief
from rmq._model.payloads import Body, Payload, checked_body, payload_bytes
from rmq._model.recording import join_record, record_of, refuse_extras
from rmq._model.records import setters_of
from rmq._model.stream_messages import BODY, CONTENT, ID, StreamMessage
from rmq._model.times import (
    MAX_DUE_MS,
    MAX_DURATION_MS,
    MAX_SCORE,
    Duration,
    Instant,
    due_ms,
    due_number_ms,
    duration_ms,
    moment_of,
    number_ms,
)
from rmq._model.topics import Topic, TopicType, slot_of
from rmq.errors import InvalidMessageError, InvalidValueError


@dataclass(frozen=True, slots=True, init=False)
class RangeMergeMessage:
    """Due `time_range` after the first send of this content; sends until it is claimed merge into it.

    Args:
        content: What identifies the message and merges duplicates; not empty.
        time_range: The merge window: a `timedelta` or a text such as "5s", > 0, at most 100 years; `None` for that of
            the topic's `merge`.
        slot_basis: What the slot is computed from instead of the content; equal contents need equal bases.
        body: Optional payload; the newest stands, or what the topic's `merge` says: a number for `Max`, `Min` and
            `Sum`, an item or a tuple of items for `Collect`.
        time_range_ms: The merge window as a number of milliseconds, instead of `time_range`.
        version: For `Newest`, and only there: a whole number from 0 to 2^53 - 1.
        weight: Topics with `merge`: how many sends it stands for, 1 to 2^31.

    Raises:
        InvalidMessageError: A value breaks its rule.

    Examples:
        >>> pictures = client.producer(Topic("pictures", TopicType.RANGE_MERGE))
        >>> pictures.send_many([RangeMergeMessage("item:42", timedelta(seconds=5))] * 40)
        SendResult(new=1, merged=39, outcomes=(), ids=(), dropped=0)
    """

    content: Payload
    time_range_ms: int | None = None
    slot_basis: Payload | None = None
    body: Body = None
    version: int | None = field(default=None, kw_only=True)
    weight: int = field(default=1, kw_only=True)

    def __init__(
        self,
        content: Payload,
        time_range: Duration | None = None,
        slot_basis: Payload | None = None,
        body: Body = None,
        *,
        time_range_ms: float | None = None,
        version: int | None = None,
        weight: int = 1,
    ) -> None:
        if time_range is not None or type(time_range_ms) is not int or not 0 < time_range_ms <= MAX_DURATION_MS:
            time_range_ms = _range_ms(time_range, time_range_ms)
        set_content, set_time_range, set_basis, set_body, set_version, set_weight = _RANGE_MERGE
        set_content(self, content)
        set_time_range(self, time_range_ms)
        set_basis(self, slot_basis)
        set_body(self, body)
        set_version(self, version)
        set_weight(self, weight)

    @property
    def time_range(self) -> timedelta | None:
        """The merge window, `None` where that of the topic's `merge` counts."""
        return _span_of(self.time_range_ms)

    def score_ms(self) -> int:
        """Return the time range, ms; 0 where the topic's stands."""
        return self.time_range_ms or 0


_RANGE_MERGE = setters_of(RangeMergeMessage)


@dataclass(frozen=True, slots=True, init=False)
class JoinMessage:
    """A part of a whole, for topics with `max_count=PER_MESSAGE`: due when all parts are there, or at its time.

    Args:
        content: What identifies the whole; not empty.
        part: Which part it is, an item of the delivery: a payload that is not empty. Sent again, it counts once.
        of: How many different parts the whole has, 1 to `max_items` of the topic's `Collect`; the last send's stands.
        time_range: How long the whole waits for its parts: a `timedelta` or a text such as "5s", > 0, at most 100
            years; `None` for that of the topic's `merge`.
        slot_basis: What the slot is computed from instead of the content; equal contents need equal bases.
        time_range_ms: The same as a number of milliseconds, instead of `time_range`.

    Raises:
        InvalidMessageError: A value breaks its rule.

    Examples:
        >>> whole = Merge(Collect(unique=True), max_count=PER_MESSAGE, window=Fixed("9s"))
        >>> orders = Topic("orders", TopicType.RANGE_MERGE, merge=whole)
        >>> client.producer(orders).send_many(JoinMessage("order:7", part, of=2) for part in ("paid", "packed")).merged
        1
        >>> [delivery.items for delivery in client.consumer(orders).poll(timeout=5)]
        [(b'paid', b'packed')]
    """

    content: Payload
    part: Payload
    of: int
    time_range_ms: int | None = None
    slot_basis: Payload | None = None

    def __init__(
        self,
        content: Payload,
        part: Payload,
        of: int,
        time_range: Duration | None = None,
        slot_basis: Payload | None = None,
        *,
        time_range_ms: float | None = None,
    ) -> None:
        if not part:
            raise InvalidMessageError(f"part is {part!r}; it must not be empty")
        if type(of) is not int or of < 1:
            raise InvalidMessageError(f"of is {of!r}; it must be a whole number from 1")
        values = (content, part, of, _range_ms(time_range, time_range_ms), slot_basis)
        for name, value in zip(("content", "part", "of", "time_range_ms", "slot_basis"), values, strict=True):
            object.__setattr__(self, name, value)

    @property
    def time_range(self) -> timedelta | None:
        """How long the whole waits for its parts, `None` where that of the topic's `merge` counts."""
        return _span_of(self.time_range_ms)

    def score_ms(self) -> int:
        """Return the time range, ms; 0 where the topic's stands."""
        return self.time_range_ms or 0


def _range_ms(time_range: Duration | None, time_range_ms: float | None) -> int | None:
    """Return the time range of a message, ms, which is named in one way or in the other, or not at all."""
    name, value = "time_range", time_range
    if time_range is None:
        if time_range_ms is None:
            return None
        name, value = "time_range_ms", time_range_ms
    elif time_range_ms is not None:
        raise InvalidMessageError(f"time_range is {time_range!r} and time_range_ms is {time_range_ms!r}; name one")
    range_ms = _checked_ms(duration_ms if time_range_ms is None else number_ms, value, name)
    if range_ms == 0:
        raise InvalidMessageError(f"{name} is {value!r}; it must be more than 0")
    return range_ms


def _span_of(time_range_ms: int | None) -> timedelta | None:
    return None if time_range_ms is None else timedelta(milliseconds=time_range_ms)


@dataclass(frozen=True, slots=True, init=False)
class PriorityMessage:
    """Delivered before all messages of a smaller priority; the last send of a content decides on its priority.

    Args:
        content: What identifies the message and merges duplicates; not empty.
        priority: Whole number, larger first: 1 to the topic's `max_priority`; with `ties="any"` above its
            `max_retries` and below 2^53.
        slot_basis: What the slot is computed from instead of the content; equal contents need equal bases.
        body: Optional payload; the newest stands, or what the topic's `merge` says: a number for `Max`, `Min` and
            `Sum`, an item or a tuple of items for `Collect`.
        version: For `Newest`, and only there: a whole number from 0 to 2^53 - 1.
        weight: Topics with `merge`: how many sends it stands for, 1 to 2^31.

    Raises:
        InvalidMessageError: A value breaks its rule.

    Examples:
        >>> jobs = Topic("jobs", TopicType.PRIORITY)
        >>> client.producer(jobs).send_many([PriorityMessage("bronze", 1), PriorityMessage("gold", 3)]).new
        2
        >>> [delivery.text for delivery in client.consumer(jobs).poll(timeout=5)]
        ['gold', 'bronze']
    """

    content: Payload
    priority: int
    slot_basis: Payload | None = None
    body: Body = None
    version: int | None = field(default=None, kw_only=True)
    weight: int = field(default=1, kw_only=True)

    def __init__(
        self,
        content: Payload,
        priority: int,
        slot_basis: Payload | None = None,
        body: Body = None,
        *,
        version: int | None = None,
        weight: int = 1,
    ) -> None:
        # an IntEnum is how many people write tiers; a bool is a mistake
        whole = isinstance(priority, int) and not isinstance(priority, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not whole or not 0 < priority <= MAX_SCORE:
            rule = "a whole number from 1 to the topic's max_priority, by default 1,048,575"
            raise InvalidMessageError(f"priority is {priority!r}; it must be {rule}")
        set_content, set_priority, set_basis, set_body, set_version, set_weight = _PRIORITY
        set_content(self, content)
        set_priority(self, priority)
        set_basis(self, slot_basis)
        set_body(self, body)
        set_version(self, version)
        set_weight(self, weight)


_PRIORITY = setters_of(PriorityMessage)


@dataclass(frozen=True, slots=True, init=False)
class FixedTimeMessage:
    """Due at a given time; the last send of a content decides.

    Args:
        content: What identifies the message and merges duplicates; not empty.
        fixed_time: When it is due: an aware `datetime`, ahead of Redis' time on arrival, at most 100 years from now.
        slot_basis: What the slot is computed from instead of the content; equal contents need equal bases.
        body: Optional payload; the newest stands, or what the topic's `merge` says: a number for `Max`, `Min` and
            `Sum`, an item or a tuple of items for `Collect`.
        version: For `Newest`, and only there: a whole number from 0 to 2^53 - 1.
        weight: Topics with `merge`: how many sends it stands for, 1 to 2^31.
        fixed_time_ms: When it is due as milliseconds since 1970-01-01 UTC, instead of `fixed_time`.

    Raises:
        InvalidMessageError: A value breaks its rule.

    Examples:
        >>> closing = client.producer(Topic("closing", TopicType.FIXED_TIME))
        >>> closing.send(FixedTimeMessage("order:7", datetime.now(UTC) + timedelta(minutes=30))).new
        1
        >>> client.control("closing").cancel("order:7").name  # it was paid
        'DONE'
    """

    content: Payload
    fixed_time_ms: int
    slot_basis: Payload | None = None
    body: Body = None
    version: int | None = field(default=None, kw_only=True)
    weight: int = field(default=1, kw_only=True)

    def __init__(
        self,
        content: Payload,
        fixed_time: Instant | None = None,
        slot_basis: Payload | None = None,
        body: Body = None,
        *,
        fixed_time_ms: float | None = None,
        version: int | None = None,
        weight: int = 1,
    ) -> None:
        if fixed_time is not None or type(fixed_time_ms) is not int or not 0 < fixed_time_ms <= MAX_DUE_MS:
            fixed_time_ms = _time_ms(fixed_time, fixed_time_ms)
        set_content, set_fixed_time, set_basis, set_body, set_version, set_weight = _FIXED_TIME
        set_content(self, content)
        set_fixed_time(self, fixed_time_ms)
        set_basis(self, slot_basis)
        set_body(self, body)
        set_version(self, version)
        set_weight(self, weight)

    @property
    def fixed_time(self) -> datetime:
        """When it is due, in UTC."""
        return cast("datetime", moment_of(self.fixed_time_ms))

    def score_ms(self) -> int:
        """Return the fixed time as epoch ms."""
        return self.fixed_time_ms


_FIXED_TIME = setters_of(FixedTimeMessage)


def _time_ms(fixed_time: Instant | None, fixed_time_ms: float | None) -> int:
    """Return when a message is due, epoch ms, which is named in one way or in the other."""
    if fixed_time is None and fixed_time_ms is None:
        raise InvalidMessageError("fixed_time is None; it must be an aware datetime, or name fixed_time_ms")
    if fixed_time is not None and fixed_time_ms is not None:
        raise InvalidMessageError(f"fixed_time is {fixed_time!r} and fixed_time_ms is {fixed_time_ms!r}; name one")
    if fixed_time is None:
        return _checked_ms(due_number_ms, fixed_time_ms, "fixed_time_ms")
    if isinstance(fixed_time, Number):
        raise InvalidMessageError(
            f"fixed_time is {brief(fixed_time)}; it must be an aware datetime. A number of milliseconds since 1970 is "
            "fixed_time_ms"
        )
    return _checked_ms(due_ms, fixed_time, "fixed_time")


_Plain: TypeAlias = RangeMergeMessage | PriorityMessage | FixedTimeMessage
Message: TypeAlias = _Plain | StreamMessage | JoinMessage

MESSAGE_TYPES: dict[
    TopicType, type[RangeMergeMessage] | type[PriorityMessage] | type[FixedTimeMessage] | type[StreamMessage]
] = {
    TopicType.RANGE_MERGE: RangeMergeMessage,
    TopicType.PRIORITY: PriorityMessage,
    TopicType.FIXED_TIME: FixedTimeMessage,
    TopicType.STREAM: StreamMessage,
}

_TOPIC_TYPES: dict[type[Message], TopicType] = {kind: topic_type for topic_type, kind in MESSAGE_TYPES.items()}
"""By class: an enum hashes slowly."""


def _checked_ms(convert: object, value: object, name: str) -> int:
    try:
        return convert(value, name)  # type: ignore[operator]
    except InvalidValueError as error:
        raise InvalidMessageError(str(error)) from None


class Encoded(NamedTuple):
    """A message ready for its slot.

    Attributes:
        slot: Number of the slot.
        content: Content in bytes.
        score: Time range in ms, priority, or due time in ms, by the topic's type.
        body: Body in bytes, or `None`; a record on topics with `merge`.
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
        _check_joins(topic, kind)
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
        score = message.score_ms() or _default_range_ms(topic)
    basis = content if message.slot_basis is None else payload_bytes(message.slot_basis, "slot_basis")
    if topic.merge is not None:
        body = _recorded(topic, content, message)
    else:
        sent: _Plain = message  # pyright: ignore[reportAssignmentType] - the type of the topic was checked above
        body = None if sent.body is None else checked_body(topic, content, sent.body)
        if sent.weight != 1 or sent.version is not None:
            refuse_extras(topic, content, sent.version, sent.weight)
    return _encoded((slot_of(basis, topic.slots), content, score, body, ()))


def _recorded(topic: Topic, content: bytes, message: _Plain | JoinMessage) -> bytes:
    if isinstance(message, JoinMessage):
        return join_record(topic, content, message.part, message.of)
    if topic.merge is not None and topic.merge.joins:
        _check_joins(topic, type(message))
    return record_of(topic, content, message.body, message.version, message.weight)


def _check_joins(topic: Topic, kind: type[Message]) -> None:
    """Refuse a message that is not of the class that the topic takes."""
    joins = topic.merge is not None and topic.merge.joins
    taken = JoinMessage if joins else MESSAGE_TYPES[topic.type]
    if kind is not taken:
        what = "joins parts" if joins else f"is {topic.type.name}"
        raise InvalidMessageError(
            f"topic {topic.name} {what} and takes {taken.__name__}, not {kind.__name__}", topic=topic.name
        )


def _default_range_ms(topic: Topic) -> int:
    if topic.default_range_ms is not None:
        return topic.default_range_ms
    raise InvalidMessageError(
        f"time_range is None; topic {topic.name} has no window in its merge, so each message must name one",
        topic=topic.name,
    )


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


def _encode_entry(topic: Topic, message: StreamMessage) -> Encoded:
    flat = message.flat()
    content = b"".join(flat) if flat else payload_bytes(cast("Payload", message.content), "content")
    most, what = (topic.max_body_bytes, "entry") if flat else (topic.max_content_bytes, "content")
    if not 0 < len(content) <= most:
        raise InvalidMessageError(
            f"{what} {content!r:.80} has {len(content)} bytes; topic {topic.name} takes 1 to {most}", topic=topic.name
        )
    basis = content if message.slot_basis is None else payload_bytes(message.slot_basis, "slot_basis")
    body = checked_body(topic, content, message.body)
    if message.id is not None:
        own = flat or ((CONTENT, content) if body is None else (CONTENT, content, BODY, body))
        flat = (ID, message.id.encode(), *own)
    return Encoded(topic.slot_of(basis), content, 0, body, flat)
