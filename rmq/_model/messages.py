"""Messages as senders create them: immutable objects, checked on creation.

A message does not know its topic: rules of the topic, such as its priorities and its reducer, are checked by the
`Encoder`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from numbers import Number
from typing import Any, TypeAlias, cast

from rmq._model.display import brief
from rmq._model.records import setters_of
from rmq._model.settings import TopicType
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
from rmq.errors import InvalidMessageError, InvalidValueError

Payload: TypeAlias = str | bytes
"""Content, slot basis or body: text is sent as UTF-8."""

Body: TypeAlias = Payload | float | tuple[Payload, ...] | list[Payload] | None
"""Body of a message: without `merge=` a payload or `None`; with it a value that the topic's reducer takes."""

CONTENT, BODY = b"content", b"body"
"""The fields of an entry that was sent with a content."""

ID = b"rmq:id"
"""Precedes an entry's id, if it is given, among the values that are sent to Redis."""

_ID = re.compile(r"(0|[1-9][0-9]{0,15})-(?:(0|[1-9][0-9]{0,15})|\*)")

MAX_FIELDS = 500
"""Maximum number of fields of an entry."""


def payload_bytes(value: Body, name: str) -> bytes:
    """Return a content, slot basis or body as the bytes that are stored.

    Raises:
        InvalidMessageError: It is neither `str` nor `bytes`, or is text that UTF-8 cannot encode (a lone surrogate).
    """
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidMessageError(f"{name} {value!r:.80} cannot be written as UTF-8: {error.reason}") from None
    if isinstance(value, bytes):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
        return value
    raise InvalidMessageError(f"{name} is {value!r:.80}; it must be str or bytes")


class _Ranged:
    """A message that is due a time range after the first send."""

    __slots__ = ()
    time_range_ms: int | None

    @property
    def time_range(self) -> timedelta | None:
        """The time range; `None` for the window of the topic's `merge`."""
        return None if self.time_range_ms is None else timedelta(milliseconds=self.time_range_ms)

    def score_ms(self) -> int:
        """Return the time range in ms; 0 if the topic's default applies."""
        return self.time_range_ms or 0


@dataclass(frozen=True, slots=True, init=False)
class RangeMergeMessage(_Ranged):
    """A message that is due `time_range` after the first send of its content; sends merge into it until it is claimed.

    The window, the `max_count` or a full `Collect` of the topic's `merge` can make it due at another time.

    Args:
        content: Identifies the message; messages of equal content merge; not empty.
        time_range: The merge window: a `timedelta` or a text such as "5s", > 0, at most 100 years; `None` for that of
            the topic's `merge`.
        slot_basis: The slot is computed from it instead of the content; equal contents need equal bases.
        body: Optional payload; the newest is kept. With the topic's `merge`: a number for `Max`, `Min` and `Sum`, an
            item or a tuple of items for `Collect`.
        time_range_ms: The merge window as a number of milliseconds, instead of `time_range`.
        version: Required with `Newest`, and only allowed there: a whole number from 0 to 2^53 - 1.
        weight: Topics with `merge`: number of sends that it counts as, 1 to 2^31.

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


_RANGE_MERGE = setters_of(RangeMergeMessage)


@dataclass(frozen=True, slots=True, init=False)
class JoinMessage(_Ranged):
    """A part of a whole; the whole is due when all its parts have arrived, or after `time_range`.

    Only for topics with `max_count=PER_MESSAGE`.

    Args:
        content: Identifies the whole; not empty.
        part: The part, an item of the delivery: a payload that is not empty. A repeated part counts once.
        of: Number of different parts of the whole, 1 to `max_items` of the topic's `Collect`; that of the last send
            counts.
        time_range: Time that the whole waits for its parts: a `timedelta` or a text such as "5s", > 0, at most 100
            years; `None` for that of the topic's `merge`.
        slot_basis: The slot is computed from it instead of the content; equal contents need equal bases.
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
            raise InvalidMessageError(f"the argument of= is {of!r}; it must be a whole number of 1 or more")
        values = (content, part, of, _range_ms(time_range, time_range_ms), slot_basis)
        for name, value in zip(("content", "part", "of", "time_range_ms", "slot_basis"), values, strict=True):
            object.__setattr__(self, name, value)


def _range_ms(time_range: Duration | None, time_range_ms: float | None) -> int | None:
    """Return the time range of a message, ms, from whichever of the two arguments is given, if any."""
    name, value = "time_range", time_range
    if time_range_ms is not None:
        name, value = _only_one(time_range=time_range, time_range_ms=time_range_ms)
    elif time_range is None:
        return None
    range_ms = _checked_ms(duration_ms if time_range_ms is None else number_ms, value, name)
    if range_ms == 0:
        raise InvalidMessageError(f"{name} is {value!r}; it must be more than 0")
    return range_ms


def _only_one(**given: Any) -> tuple[str, Any]:
    """Return the name and the value of the argument that is given: at least one is."""
    known = [(name, value) for name, value in given.items() if value is not None]
    if len(known) > 1:
        raise InvalidMessageError(
            " and ".join(f"{name} is {brief(value)}" for name, value in known) + "; give only one"
        )
    return known[0]


@dataclass(frozen=True, slots=True, init=False)
class PriorityMessage:
    """A message that is delivered before those of smaller priority.

    The last send of a content determines its priority, unless the topic's `merge` has another `PriorityRule`.

    Args:
        content: Identifies the message; messages of equal content merge; not empty.
        priority: Whole number, larger first: 1 to the topic's `max_priority`; with `ties="any"` above its
            `max_retries` and below 2^53.
        slot_basis: The slot is computed from it instead of the content; equal contents need equal bases.
        body: Optional payload; the newest is kept. With the topic's `merge`: a number for `Max`, `Min` and `Sum`, an
            item or a tuple of items for `Collect`.
        version: Required with `Newest`, and only allowed there: a whole number from 0 to 2^53 - 1.
        weight: Topics with `merge`: number of sends that it counts as, 1 to 2^31.

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
    """A message that is due at a given time, or after a delay; the last send of a content determines its due time.

    It takes exactly one of `fixed_time`, `fixed_time_ms` and `delay`.

    Args:
        content: Identifies the message; messages of equal content merge; not empty.
        fixed_time: Time at which it is due: an aware `datetime`, in the future by Redis' clock on arrival, at most 100
            years from now.
        slot_basis: The slot is computed from it instead of the content; equal contents need equal bases.
        body: Optional payload; the newest is kept. With the topic's `merge`: a number for `Max`, `Min` and `Sum`, an
            item or a tuple of items for `Collect`.
        version: Required with `Newest`, and only allowed there: a whole number from 0 to 2^53 - 1.
        weight: Topics with `merge`: number of sends that it counts as, 1 to 2^31.
        fixed_time_ms: The time at which it is due in milliseconds since 1970-01-01 UTC, instead of `fixed_time`.
        delay: Time from its arrival until it is due, by Redis' clock: a `timedelta` or a text such as "10s", at most
            100 years, rounded up to milliseconds; "0s" for at once. If the send is repeated after a lost reply, the
            delay counts from the repeat.

    Raises:
        InvalidMessageError: A value breaks its rule.

    Examples:
        >>> closing = client.producer(Topic("closing", TopicType.FIXED_TIME))
        >>> closing.send(FixedTimeMessage("order:7", datetime.now(UTC) + timedelta(minutes=30))).new
        1
        >>> closing.send(FixedTimeMessage("order:8", delay="30m")).new
        1
        >>> client.control("closing").cancel("order:7").name  # it was paid
        'DONE'
    """

    content: Payload
    fixed_time_ms: int | None = None
    slot_basis: Payload | None = None
    body: Body = None
    delay: timedelta | None = field(default=None, kw_only=True)
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
        delay: Duration | None = None,
        version: int | None = None,
        weight: int = 1,
    ) -> None:
        if delay is None and fixed_time is None and type(fixed_time_ms) is int:
            if not 0 < fixed_time_ms <= MAX_DUE_MS:
                fixed_time_ms = _checked_ms(due_number_ms, fixed_time_ms, "fixed_time_ms")
        elif fixed_time is None and fixed_time_ms is None and type(delay) in (timedelta, str):
            delay = _delay(cast("Duration", delay))[0]
        else:
            fixed_time_ms, delay = _due(fixed_time, fixed_time_ms, delay)
        set_content, set_fixed_time, set_basis, set_body, set_delay, set_version, set_weight = _FIXED_TIME
        set_content(self, content)
        set_fixed_time(self, fixed_time_ms)
        set_basis(self, slot_basis)
        set_body(self, body)
        set_delay(self, delay)
        set_version(self, version)
        set_weight(self, weight)

    @property
    def fixed_time(self) -> datetime | None:
        """Time at which it is due, in UTC; `None` with a delay."""
        return moment_of(self.fixed_time_ms)

    def score_ms(self) -> int:
        """Return the fixed time as epoch ms; for a delay, its ms as a negative number, -1 for "0s"."""
        return self.fixed_time_ms or _delay(cast("timedelta", self.delay))[1]


_FIXED_TIME = setters_of(FixedTimeMessage)


def _due(
    fixed_time: Instant | None, fixed_time_ms: float | None, delay: Duration | None
) -> tuple[int | None, timedelta | None]:
    """Return the due time of a message, epoch ms, or its delay, from whichever of the three arguments is given."""
    name, value = "fixed_time", fixed_time
    if delay is not None or fixed_time_ms is not None:
        name, value = _only_one(fixed_time=fixed_time, fixed_time_ms=fixed_time_ms, delay=delay)
    elif fixed_time is None:
        raise InvalidMessageError(
            "fixed_time and delay are None; give one of them: an aware datetime (or fixed_time_ms), or a duration such "
            "as '10s'"
        )
    if name == "delay":  # of a subclass, whose hash and equality may be its own
        return None, timedelta(milliseconds=_checked_ms(duration_ms, value, name))
    if name == "fixed_time" and isinstance(value, Number):
        raise InvalidMessageError(
            f"fixed_time is {brief(value)}; it must be an aware datetime. Milliseconds since 1970 are passed as "
            "fixed_time_ms"
        )
    return _checked_ms(due_ms if name == "fixed_time" else due_number_ms, value, name), None


@lru_cache(maxsize=4_096)
def _delay(delay: Duration) -> tuple[timedelta, int]:
    """Return a delay in whole milliseconds, and its score. Cached: a program uses few different delays."""
    delay_ms = _checked_ms(duration_ms, delay, "delay")
    return timedelta(milliseconds=delay_ms), -max(1, delay_ms)


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """An entry of a stream topic: delivered in the order of sending within its slot, to every group; never merged.

    Args:
        content: A content like that of other messages, or the entry's 1 to 500 fields: name -> value.
        slot_basis: The slot is computed from it instead of the content or the fields; messages with one basis keep
            their order.
        body: Optional payload; only with a content, not with fields.
        id: Id of the entry, above all others of its slot: `<number>-<number>`, or `<number>-*` to let Redis choose the
            second number; each below 2^53. By default Redis chooses both. A send with `5-*` whose reply was lost is not
            repeated automatically: it raises `ReplyLostError`.

    Raises:
        InvalidMessageError: A value breaks its rule.

    Examples:
        >>> clicks = client.producer(Topic("clicks", TopicType.STREAM))
        >>> clicks.send_many(StreamMessage(f"page:{number}") for number in range(3)).new
        3
    """

    content: Payload | Mapping[str, Payload]
    slot_basis: Payload | None = None
    body: Payload | None = None
    id: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.content, Mapping):
            if not 0 < len(self.content) <= MAX_FIELDS:
                raise InvalidMessageError(f"an entry has {len(self.content)} fields; it must have 1 to {MAX_FIELDS}")
            if self.body is not None:
                raise InvalidMessageError("an entry with fields takes no body; send the body as a field")
        if self.id is not None and not is_full_id(self.id):
            raise InvalidMessageError(
                f"id is {self.id!r:.80}; it must be two whole numbers below 2^53 with a hyphen between them, above "
                "0-0, or one such number followed by -*, as in 5-*"
            )

    def flat(self) -> tuple[bytes, ...]:
        """Return the fields as Redis takes them: name, value, name, value ...; empty for a message with a content.

        Raises:
            InvalidMessageError: A name or value is neither `str` nor `bytes`, or a name is empty or begins with `rmq:`.
        """
        if not isinstance(self.content, Mapping):
            return ()
        flat: list[bytes] = []
        for name, value in self.content.items():
            flat.append(payload_bytes(name, "name of a field"))
            if not flat[-1] or flat[-1].startswith(b"rmq:"):
                raise InvalidMessageError(
                    f"field name {name!r:.80} is invalid; it must not be empty or begin with 'rmq:'"
                )
            flat.append(payload_bytes(value, f"field {name!r:.80}"))
        return tuple(flat)


def is_full_id(text: object) -> bool:
    """Return whether an entry may be sent with this id: `<number>-<number>` or `<number>-*`."""
    found = _ID.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return False
    numbers = [int(each) for each in found.groups("1")]  # 0-* is 0-1 at least
    return any(numbers) and max(numbers) < 2**53


def is_open_id(flat: tuple[bytes, ...]) -> bool:
    """Return whether an encoded entry lets Redis choose the second number of its id."""
    return flat[0] == ID and flat[1].endswith(b"*")


PlainMessage: TypeAlias = RangeMergeMessage | PriorityMessage | FixedTimeMessage
Message: TypeAlias = PlainMessage | StreamMessage | JoinMessage

MESSAGE_TYPES: dict[
    TopicType, type[RangeMergeMessage] | type[PriorityMessage] | type[FixedTimeMessage] | type[StreamMessage]
] = {
    TopicType.RANGE_MERGE: RangeMergeMessage,
    TopicType.PRIORITY: PriorityMessage,
    TopicType.FIXED_TIME: FixedTimeMessage,
    TopicType.STREAM: StreamMessage,
}


def _checked_ms(convert: object, value: object, name: str) -> int:
    try:
        return convert(value, name)  # type: ignore[operator]
    except InvalidValueError as error:
        raise InvalidMessageError(str(error)) from None
