"""Topics: the definitions that all processes share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, Generic, Unpack, cast
from zlib import crc32

from rmq._model import typed as payloads
from rmq._model.codecs import Codec
from rmq._model.display import brief
from rmq._model.merging import Collect, Merge, check_change, check_merge
from rmq._model.messages import Message
from rmq._model.retry import ExponentialRetry, ImmediateRetry, LadderRetry, RetryPolicy, retry_from_json
from rmq._model.schema import SCHEMA_VERSION, Document, new_document, read_document
from rmq._model.scores import MAX_AGED_PRIORITY, MAX_SCORE, STAMP, Ties
from rmq._model.settings import TopicType, WhenFull, check_flag, is_number, json_of, set_duration, settings_of
from rmq._model.times import MAX_DURATION_MS, Duration, duration_ms
from rmq._model.typed import MessageOptions, OtherT, PayloadClass, PayloadT, Typed
from rmq.errors import InvalidTopicError, InvalidValueError, UnreadableDocumentError, UnreadableTopicError


@dataclass(frozen=True, slots=True)
class Retention:
    """Rules by which entries of a stream topic are trimmed. Part of the topic's definition.

    Args:
        max_length: Maximum number of entries to keep in the topic, from 0; each slot keeps an equal share, rounded up.
            `None` for no bound.
        max_age: Time for which to keep entries: a `timedelta` or a text such as "7d"; `None` for no bound.
        shrink: At each clean-up, drop the entries that were there at the previous one, and keep newer ones.
        every: Time between two clean-ups of a slot: a `timedelta` or a text such as "1m", 1 s to 24 h. Listeners and
            polls run the clean-ups.
        approximate: Drop only whole nodes of Redis' stream (`~`). This is cheaper, but keeps some more entries, usually
            fewer than 100.
        unacked: Drop entries that a group has not acked, too. Otherwise they are kept, whatever the bounds.

    Raises:
        InvalidValueError: A value breaks its rule.

    Examples:
        >>> kept = Retention(max_length=100_000, max_age=timedelta(days=7))
        >>> Topic("clicks", TopicType.STREAM, retention=kept).retention.max_age_ms
        604800000
    """

    max_length: int | None = 1_000_000
    max_age: Duration | None = None
    shrink: bool = False
    every: Duration = timedelta(minutes=1)
    approximate: bool = True
    unacked: bool = False

    def __post_init__(self) -> None:
        if self.max_length is not None and (type(self.max_length) is not int or not 0 <= self.max_length < 2**53):
            raise InvalidValueError(
                f"max_length is {self.max_length!r}; it must be a whole number from 0 to 2^53 - 1, or None"
            )
        for name in ("shrink", "approximate", "unacked"):
            check_flag(name, getattr(self, name))
        if self.max_age is not None:
            set_duration(self, "max_age", "max_age")
        every = self.every
        if not 1_000 <= set_duration(self, "every", "every") <= 86_400_000:
            raise InvalidValueError(f"every is {every!r}; it must lie between 1 s and 24 h")

    @property
    def every_ms(self) -> int:
        """Time between two clean-ups of a slot, ms."""
        return duration_ms(self.every, "every")

    @property
    def max_age_ms(self) -> int | None:
        """Time for which entries are kept, ms; `None` for no bound."""
        return None if self.max_age is None else duration_ms(self.max_age, "max_age")

    @property
    def bounded(self) -> bool:
        """Whether a clean-up can ever drop entries."""
        return self.max_length is not None or self.max_age is not None or self.shrink

    def max_length_of_slot(self, slots: int) -> int | None:
        """Return each slot's share of `max_length`, rounded up; `None` for no bound."""
        return None if self.max_length is None else -(-self.max_length // slots)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON values, for the topic's definition."""
        return json_of(self) | {"max_age_ms": self.max_age_ms}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Retention:
        """Rebuild the settings from a topic's definition.

        Raises:
            KeyError: A setting is missing.
            ValueError: A setting has an unknown or invalid value. Likewise AttributeError, OverflowError and TypeError.
        """
        return settings_of(cls, value)


FULL_TIMEOUT_MS = 10_000

MAX_KEPT_ATTEMPTS = 20

MAX_SLOTS = 16_384
"""The number of hash slots of Redis Cluster: more slots would not spread a topic any further."""

_S, _MS = timedelta(seconds=1), timedelta(milliseconds=1)

_DURATIONS_MS = {
    "lease": (1_000, 86_400_000, "whole seconds, 1 s to 24 h"),
    "max_dead_age": (0, MAX_DURATION_MS, ""),
    "full_timeout": (1, 86_400_000, "from 1 ms to 24 h"),
    "ttl": (1, MAX_DURATION_MS, "at least 1 ms"),
}
"""Setting -> the shortest and the longest duration, ms, and the rule for errors."""

_IDENTITY, _SCORES = "part of its identity and can't be changed", "part of the stored scores and can't be changed"
_OWN = "not stored in Redis and cannot be changed there; pass it to Topic()"
UNCHANGEABLE = {
    "name": _IDENTITY, "type": _IDENTITY, "slots": _IDENTITY,
    "ties": _SCORES, "max_priority": _SCORES,
    "payload": _OWN, "codec": _OWN,
}  # fmt: skip
"""Settings that `Topic.changed` refuses, with the reason."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


def slot_of(basis: bytes, slots: int) -> int:
    """Return the slot, 0 to `slots` - 1, of a message.

    Args:
        basis: The message's slot basis, or its content if it has none.
        slots: The topic's number of slots, a power of two.

    Source: CRC-32/ISO-HDLC, the value of `zlib.crc32`, Java's `java.util.zip.CRC32` and Spark SQL's `crc32`.
    """
    return crc32(basis) & (slots - 1)


def is_name(value: object) -> bool:
    """Return whether a value can be a topic's name."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


@dataclass(frozen=True, slots=True)
class Topic(Generic[PayloadT]):
    """A topic's definition, which is registered at first use. Later ones must have the same type, slots and `merge`.

    The other settings of a later definition are ignored, except `payload` and `codec`, with a warning in the log: the
    registered ones apply. `RmqClient.change_topic` changes them.

    Args:
        name: 1 to 128 characters of `A-Z a-z 0-9 . _ -`.
        type: How messages are ordered and merged.
        slots: Number of slots, a power of two from 1 to 16,384. With owners, at most this many workers share the topic.
        max_retries: Number of redeliveries before a message is dead, 0 to 999.
        lease: Time after which an unsettled message may be redelivered: a `timedelta` or a text such as "90s", whole
            seconds, 1 s to 24 h.
        retry: Policy for the delay before a failed message is retried; `ExponentialRetry()` by default.
        max_content_bytes: Longest content, 1 to 65,536.
        max_body_bytes: Longest body, 0 to 16 MiB.
        max_backlog: Maximum number of messages in the topic's backlog, `None` for no limit; each slot has an equal
            share, rounded up.
        max_dead: Maximum number of dead messages kept in the topic; the oldest are removed first. Each slot has an
            equal share, rounded up.
        max_dead_age: Time for which dead messages are kept: a `timedelta` or a text such as "30d".
        retention: STREAM only: when entries are trimmed; by default, acked ones beyond a million in the topic.
        when_full: Behaviour of a send at `max_backlog`; not for STREAM.
        full_timeout: With `WhenFull.BLOCK`, time that a send waits without progress: a `timedelta` or a text such as
            "10s", 1 ms to 24 h.
        ttl: Messages older than this become dead instead of being delivered: a `timedelta` or a text such as "1h",
            from 1 ms; not for STREAM. The age counts from the due time, on PRIORITY topics from the last send. `None`
            for no limit.
        max_rate: Maximum number of deliveries per second in the whole cluster, more than 0 and up to 1,000,000; `None`
            for no limit.
        max_burst: Maximum number of deliveries at once after a pause, 1 to 1,000,000; by default `max_rate`, rounded
            up. Requires `max_rate`.
        keep_attempts: Number of failed attempts that are kept with a message until it is acked or sent again, 1 to 20:
            time, error, worker, and the traceback of the last one, at most about 15 kB a message. `None`: only the last
            error is kept.
        ties: PRIORITY only: order of delivery among messages of equal priority, a `Ties` or its value; by default the
            oldest is first. It cannot be changed once the topic is registered.
        max_priority: PRIORITY with `Ties.OLDEST`: largest priority, 1 to 8,388,607; 1,048,575 by default. It also sets
            the precision of the ages that decide ties: 1 ms up to 8,191, 10 ms up to 131,071, 100 ms up to the default,
            otherwise 1 s. It cannot be changed once the topic is registered.
        merge: Rules for the bodies and due times of merged messages; not for STREAM. `None`: the newest body is kept.
            Part of the topic's identity, except for windows and bounds.
        payload: Class of the payloads in bodies: a dataclass, a msgspec struct or a pydantic model. Each program
            chooses its own; Redis does not store it. See docs/guide/payloads.md.
        codec: How payloads become bytes; `JsonCodec()` by default.

    Raises:
        InvalidTopicError: A value breaks its rule.

    Source: the name's characters exclude braces, which would break the hash tag of Redis Cluster;
    16,384 is Redis Cluster's number of hash slots.

    Examples:
        >>> Topic("price-image", TopicType.RANGE_MERGE, slots=8, max_retries=3).slots
        8
    """

    name: str
    type: TopicType
    slots: int = 1
    max_retries: int = 16
    lease: Duration = timedelta(seconds=60)
    retry: RetryPolicy = field(default_factory=ExponentialRetry)
    max_content_bytes: int = 65_536
    max_body_bytes: int = 1_048_576
    max_backlog: int | None = None
    max_dead: int = 1_000_000
    max_dead_age: Duration = timedelta(days=30)
    retention: Retention | None = None
    when_full: WhenFull = WhenFull.REFUSE
    full_timeout: Duration = timedelta(milliseconds=FULL_TIMEOUT_MS)
    ttl: Duration | None = None
    max_rate: float | None = None
    max_burst: int | None = None
    keep_attempts: int | None = None
    ties: Ties | str | None = None
    max_priority: int | None = None
    merge: Merge | None = None
    payload: PayloadClass[PayloadT] | None = field(default=None, compare=False)
    codec: Codec | None = field(default=None, compare=False)
    typed: Typed | None = field(default=None, init=False, repr=False, compare=False)
    """Encoder and decoder of payloads; `None` without a payload class. Internal."""
    default_range_ms: int | None = field(default=None, init=False, repr=False, compare=False)
    """Time range of messages that name none, ms; `None` if each message must name one."""
    changes: frozenset[str] = field(default=frozenset(), init=False, repr=False, compare=False)
    """Names of the settings that `changed` has changed: `RmqClient.change_topic` stores only these."""

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise InvalidTopicError(f"topic name is {self.name!r}; it must be 1 to 128 characters of A-Z a-z 0-9 . _ -")
        if not isinstance(self.type, TopicType):  # pyright: ignore[reportUnnecessaryIsInstance]
            known = ", ".join(f"TopicType.{kind.name}" for kind in TopicType)
            raise InvalidTopicError(f"type of topic {self.name} is {self.type!r}; it must be one of {known}")
        self._check_range("slots", self.slots, 1, MAX_SLOTS)
        if self.slots & (self.slots - 1):
            raise InvalidTopicError(f"slots of topic {self.name} is {self.slots}; it must be a power of two")
        self._check_range("max_retries", self.max_retries, 0, STAMP - 1)
        self._check_range("max_content_bytes", self.max_content_bytes, 1, 65_536)
        self._check_range("max_body_bytes", self.max_body_bytes, 0, 16 * 1_048_576)
        if not isinstance(self.retry, (ImmediateRetry, ExponentialRetry, LadderRetry)):
            raise InvalidTopicError(
                f"retry of topic {self.name} is {self.retry!r}; it must be an ImmediateRetry, ExponentialRetry or "
                "LadderRetry, which every process can read from the registered definition"
            )
        if self.max_backlog is not None:
            self._check_range("max_backlog", self.max_backlog, 1, 2**53 - 1)
        self._check_range("max_dead", self.max_dead, 0, 2**53 - 1)
        self._set_durations()
        self._check_retention()
        self._check_limits()
        self._check_rate()
        self._check_ties()
        check_merge(self.name, self.type, self.merge)
        object.__setattr__(self, "typed", payloads.typed_of(self.name, self.payload, self.codec, self.type, self.merge))
        if self.merge is not None and self.merge.window is not None:
            object.__setattr__(self, "default_range_ms", self.merge.window.range_ms)

    def _set_durations(self) -> None:
        for name, (lowest, highest, rule) in _DURATIONS_MS.items():
            if (value := getattr(self, name)) is None and name == "ttl":
                continue
            try:
                value_ms = set_duration(self, name, name)
            except InvalidValueError as error:
                raise InvalidTopicError(f"topic {self.name}: {error}", topic=self.name) from None
            if not lowest <= value_ms <= highest or (name == "lease" and value_ms % 1000):
                raise InvalidTopicError(f"{name} of topic {self.name} is {value!r}; it must be {rule}")

    def _check_retention(self) -> None:
        if self.retention is not None and not isinstance(self.retention, Retention):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidTopicError(f"retention of topic {self.name} is {self.retention!r}; it must be a Retention")
        if self.type is TopicType.STREAM:
            object.__setattr__(self, "retention", self.retention or Retention())
        elif self.retention is not None:
            raise InvalidTopicError(f"topic {self.name} is {self.type.name}; only STREAM topics have a retention")

    def _check_limits(self) -> None:
        if not isinstance(self.when_full, WhenFull):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidTopicError(f"when_full of topic {self.name} is {self.when_full!r}; it must be a WhenFull")
        if self.type is TopicType.STREAM and (self.when_full is not WhenFull.REFUSE or self.ttl is not None):
            raise InvalidTopicError(f"topic {self.name} is STREAM; use retention instead of when_full and ttl")
        if self.keep_attempts is not None:
            self._check_range("keep_attempts", self.keep_attempts, 1, MAX_KEPT_ATTEMPTS)

    def _check_rate(self) -> None:
        rate = self.max_rate
        if rate is not None and not (is_number(rate) and 0 < rate <= 10**6):
            raise InvalidTopicError(f"max_rate of topic {self.name} is {rate!r}; it must be > 0 and at most 1,000,000")
        if self.max_burst is not None:
            self._check_range("max_burst", self.max_burst, 1, 10**6)
            if rate is None:
                raise InvalidTopicError(f"max_burst of topic {self.name} is {self.max_burst}; it needs a max_rate")

    def _check_ties(self) -> None:
        if self.type is not TopicType.PRIORITY:
            for name in ("ties", "max_priority"):
                if (found := getattr(self, name)) is not None:
                    value = found.value if isinstance(found, Ties) else found
                    rule = f"only PRIORITY topics have this setting, not {self.type.name}"
                    raise InvalidTopicError(f"{name} of topic {self.name} is {value!r}; {rule}")
            return
        try:
            ties = Ties.OLDEST if self.ties is None else Ties(self.ties)
        except ValueError:
            raise InvalidTopicError(f"ties of topic {self.name} is {self.ties!r}; it must be oldest or any") from None
        object.__setattr__(self, "ties", ties)
        if ties is Ties.OLDEST:
            object.__setattr__(self, "max_priority", 2**20 - 1 if self.max_priority is None else self.max_priority)
            self._check_range("max_priority", self.max_priority, 1, MAX_AGED_PRIORITY)
        elif self.max_priority is not None:
            found = self.max_priority
            raise InvalidTopicError(f"max_priority of topic {self.name} is {found!r}; it needs ties='oldest'")

    def _check_range(self, name: str, value: object, low: int, high: int) -> None:
        if type(value) is not int or not low <= value <= high:
            raise InvalidTopicError(
                f"{name} of topic {self.name} is {value!r}; it must be a whole number from {low} to {high}"
            )

    @property
    def lease_s(self) -> int:
        """The lease in whole seconds."""
        return self.lease_ms // 1000

    @property
    def lease_ms(self) -> int:
        """The lease, ms."""
        return cast("timedelta", self.lease) // _MS

    @property
    def max_backlog_per_slot(self) -> int:
        """Each slot's share of `max_backlog`, rounded up; 0 for no limit."""
        return -(-self.max_backlog // self.slots) if self.max_backlog else 0

    @property
    def collects(self) -> bool:
        """True if a delivery has several items or parts, and so several payloads."""
        return self.merge is not None and isinstance(self.merge.reduce, Collect)

    @property
    def drops(self) -> bool:
        """True if sends to a full backlog drop messages."""
        return self.when_full is WhenFull.DROP and self.max_backlog is not None

    @property
    def full_timeout_s(self) -> float:
        """Seconds that a blocking send waits without progress."""
        return cast("timedelta", self.full_timeout) / _S

    @property
    def ttl_ms(self) -> int | None:
        """The time to live, ms; `None` for no limit."""
        return None if self.ttl is None else cast("timedelta", self.ttl) // _MS

    @property
    def priorities(self) -> tuple[int, int]:
        """The smallest and the largest priority that a message of a PRIORITY topic can have."""
        return (self.max_retries + 1, MAX_SCORE) if self.max_priority is None else (1, self.max_priority)

    @property
    def rate_burst(self) -> int:
        """Maximum number of deliveries at once after a pause; 0 without a `max_rate`."""
        return self.max_burst or math.ceil(self.max_rate or 0)

    @property
    def max_dead_per_slot(self) -> int:
        """Each slot's share of `max_dead`, rounded up."""
        return -(-self.max_dead // self.slots)

    @property
    def max_dead_age_ms(self) -> int:
        """Time for which dead messages are kept, ms."""
        return cast("timedelta", self.max_dead_age) // _MS

    def slot_of(self, basis: bytes) -> int:
        """Return the slot, 0 to `slots` - 1, of a message with this slot basis (or content, if it has none)."""
        return slot_of(basis, self.slots)

    def message(self, content: str | bytes, payload: PayloadT, **options: Unpack[MessageOptions]) -> Message:
        """Return a message that carries a payload.

        Args:
            content: The content, which identifies the message: equal contents merge. It must not be empty.
            payload: The payload, of the topic's class.
            options: Further arguments of the topic's messages, such as `time_range`, `priority` or `slot_basis`.

        Raises:
            InvalidMessageError: The topic has no payload class, the payload is of another class or cannot be encoded,
                or the topic's messages do not take an option.
        """
        if (typed := self.typed) is None or not isinstance(payload, typed.kind):
            raise payloads.payload_trouble(typed, self.name, payload)
        try:
            body = typed.plain(payload)
            if typed.unchecked and b"null" in body:
                typed.decode(body)
            return typed.make(content, body=body, **options)
        except Exception as error:
            raise (trouble := payloads.message_trouble(typed, self.name, payload, error)) from trouble.__cause__

    def encode(self, payload: PayloadT) -> bytes:
        """Return the body of a message with this payload.

        Raises:
            InvalidMessageError: The topic has no payload class, or the payload is of another one or cannot be encoded.
        """
        return payloads.encode_payload(self.typed, self.name, payload)

    def decode(self, body: bytes | None) -> PayloadT:
        """Return the payload that a body holds.

        Raises:
            PayloadError: The body cannot be decoded.
            InvalidValueError: The topic has no payload class.
        """
        return payloads.decode_payload(self.typed, self.name, body)

    def changed(self, **settings: Any) -> Topic[PayloadT]:
        """Return this definition with some settings changed, for example for `RmqClient.change_topic`.

        Args:
            settings: The new values. `name`, `type`, `slots`, `ties`, `max_priority`, `payload` and `codec` cannot be
                changed; of `merge`, only windows and bounds.

        Raises:
            InvalidTopicError: A setting is unknown or cannot be changed, or a value breaks its rule.
        """
        known = [each.name for each in fields(self) if each.init]
        for name in settings:
            if name in UNCHANGEABLE:
                raise InvalidTopicError(f"{name} of topic {self.name} is {UNCHANGEABLE[name]}")
            if name not in known:
                changeable = ", ".join(each for each in known if each not in UNCHANGEABLE)
                raise InvalidTopicError(f"{name} is not a setting of a topic; changeable settings are {changeable}")
        changed = replace(self, **settings)
        check_change(self.name, self.merge, changed.merge)
        object.__setattr__(changed, "changes", self.changes | settings.keys())
        return changed

    def with_payload_of(self, other: Topic[OtherT]) -> Topic[OtherT]:
        """Return this definition with the payload class and the codec of `other`, which Redis does not store."""
        same = self.payload is other.payload and self.codec is other.codec
        return cast("Topic[OtherT]", self if same else replace(self, payload=other.payload, codec=other.codec))

    def to_fields(self) -> dict[str, Any]:
        """Return the definition as JSON values, without the version of the document."""
        stored = json_of(self) | {"lease_s": self.lease_s, "max_backlog": self.max_backlog}
        del stored["lease_ms"]
        if self.max_rate is not None:
            stored["max_burst"] = self.max_burst
        return stored

    def to_json(self) -> str:
        """Return the definition as JSON, in the form in which this version of RMQ registers it."""
        return new_document(self.to_fields()).to_json()

    @classmethod
    def from_json(cls, text: str | bytes) -> Topic:
        """Rebuild a registered definition.

        Raises:
            UnreadableTopicError: The text is not a definition, or is for newer versions of RMQ only.
        """
        try:
            return cls.from_document(read_document(text, "the registered definition"))
        except UnreadableTopicError:
            raise
        except UnreadableDocumentError as error:
            raise UnreadableTopicError(str(error), version=error.version, min_reader=error.min_reader) from None

    @classmethod
    def from_document(cls, document: Document) -> Topic:
        """Rebuild a registered definition from its document.

        Raises:
            UnreadableTopicError: The document lacks a setting, or has a value that this version does not know.
        """
        value = document.fields
        try:
            converted = {name: read(value[name]) for name, read in _READERS.items() if name in value}
            later = {"when_full": WhenFull.REFUSE, "full_timeout_ms": FULL_TIMEOUT_MS}  # may be missing
            return settings_of(cls, {**later, **value, **converted})
        except KeyError as error:
            trouble = f"it has no {error}"
        except (AttributeError, OverflowError, TypeError, ValueError) as error:
            trouble = str(error)
        raise UnreadableTopicError(
            f"the registered definition cannot be read: {trouble:.300} (written with version {document.version}; this "
            f"RMQ has schema version {SCHEMA_VERSION})",
            version=document.version,
            min_reader=document.min_reader,
        )


_READERS: dict[str, Callable[[Any], Any]] = {
    "type": TopicType, "when_full": WhenFull, "retry": retry_from_json, "retention": Retention.from_json,
    "merge": Merge.from_json,
}  # fmt: skip
"""Settings that a definition stores in a form of their own, with the function that reads it."""


def checked_slots(topic: Topic, slots: Iterable[int] | None) -> tuple[int, ...]:
    """Return the given slots without duplicates; all slots for `None`.

    Raises:
        InvalidValueError: A slot that the topic does not have.
    """
    if slots is None:
        return tuple(range(topic.slots))
    if not isinstance(slots, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValueError(f"slots is {brief(slots)}; it must be a list of slots, or None for all")
    chosen = list(slots)
    for slot in chosen:
        if type(slot) is not int or not 0 <= slot < topic.slots:
            raise InvalidValueError(
                f"topic {topic.name} has no slot {brief(slot)}; its slots are 0 to {topic.slots - 1}"
            )
    return tuple(dict.fromkeys(chosen))
