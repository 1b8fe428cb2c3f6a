"""Messages as operators see them, and what the scores, records and failures mean that scripts store of them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, cast

from rmq._model.entries import fields_of
from rmq._model.records import BODIES, ITEMS, read_record, unwrap
from rmq._model.scores import ages_for, lease_end_ms, retries_left_of, stamp_of
from rmq._model.times import moment_of
from rmq._model.topics import Topic, TopicType

Place = Literal["store", "prepare", "retry"]
AnyPlace = Literal["store", "prepare", "retry", "dead"]
SECTIONS: tuple[AnyPlace, ...] = ("store", "prepare", "retry", "dead")

_MOST_WHOLE = 2**53


@dataclass(frozen=True, slots=True)
class _InSlot:
    """A content in a slot of a topic, with figures about the sends that it combines: see `PeekedMessage`.

    Without the topic's `merge` sends are not counted: the figures are those of one send of unknown time.
    """

    topic: str
    slot: int
    content: bytes
    number: int | float | None = field(default=None, kw_only=True)
    items: tuple[bytes, ...] = field(default=(), kw_only=True)
    item_count: int = field(default=0, kw_only=True)
    merged: int = field(default=1, kw_only=True)
    first_sent_ms: int | None = field(default=None, kw_only=True)
    last_sent_ms: int | None = field(default=None, kw_only=True)
    wanted: int = field(default=0, kw_only=True)
    version: int | None = field(default=None, kw_only=True)

    @property
    def text(self) -> str:
        """The content as text; bytes that are not UTF-8 show as backslash escapes."""
        return self.content.decode(errors="backslashreplace")

    @property
    def value(self) -> Any:
        """Combined value of sends: a number for `Max`, `Min`, `Sum`; items for `Collect` and joins; else the body."""
        if self.number is not None:
            return self.number
        return self.items if self.item_count else cast("PeekedMessage", self).body  # all kinds have one

    @property
    def first_sent(self) -> datetime | None:
        """Time at which the message's first send arrived, in UTC by Redis' clock; `None` if that is unknown."""
        return moment_of(self.first_sent_ms)

    @property
    def last_sent(self) -> datetime | None:
        """Time at which the message's last send arrived, in UTC by Redis' clock; `None` if that is unknown."""
        return moment_of(self.last_sent_ms)

    @property
    def claimed_ms(self) -> int | None:
        """Time of the claim, or of the last renewal of the lease, epoch ms; `None` if the message is not in flight."""
        message = cast("PeekedMessage", self)
        in_flight = getattr(self, "place", "") == "prepare"  # what is dead has no place
        return min(stamp_of(message.score), message.now_ms) if in_flight else None

    @property
    def complete(self) -> bool:
        """True if all parts of a join have arrived, or if the message is not a join."""
        return self.item_count >= self.wanted


@dataclass(frozen=True, slots=True)
class PeekedMessage(_InSlot):
    """A message in its slot, seen without claiming it.

    Attributes:
        body: The body; `None` without one. With the topic's `merge`: a number as text, `None` for items.
        place: `store` (the backlog), `prepare` (in flight) or `retry` (waiting).
        due_ms: Time at which the message or its retry is due, or its lease ends, epoch ms; `None` in the backlog of a
            PRIORITY topic, and for a rolled-back message; both are due at once.
        retries_left: Retries left; `None` for a fresh message, which has them all.
        now_ms: Redis' time of the reading, epoch ms.
        priority: Its priority in the backlog of a PRIORITY topic; else, and after a rollback, `None`.
        handled_by: In flight: the worker whose handler has it, by its last report; `None` if no worker reports it. A
            worker reports only the first message of a batch, and no message of a handler with `columns=True`.
        handled_ms: Running time of this handler, ms; `None` if no worker reports it.
        number: The result of `Max`, `Min` or `Sum`; otherwise `None`.
        items: The items of a `Collect`, or the parts of a join, in the order of sending; otherwise empty.
        item_count: Number of items.
        merged: Number of sends that it combines; always 1 without the topic's `merge`.
        first_sent_ms: Time at which its first send arrived, epoch ms by Redis' clock; `None` if that is unknown.
        last_sent_ms: Time at which its last send arrived, epoch ms by Redis' clock; `None` if that is unknown.
        wanted: Number of parts that a join waits for; 0 if it is not a join.
        version: The largest version of its sends; `None` unless the topic merges by `Newest`.

    Examples:
        >>> jobs = Topic("jobs", TopicType.PRIORITY)
        >>> _ = client.producer(jobs).send(PriorityMessage("job:1", 5))
        >>> [(message.text, message.priority) for message in client.inspect(jobs).peek()]
        [('job:1', 5)]
    """

    body: bytes | None
    place: Place
    score: int
    due_ms: int | None
    retries_left: int | None
    now_ms: int = 0
    priority: int | None = None
    handled_by: str | None = None
    handled_ms: int | None = None

    @property
    def lease_left_ms(self) -> int:
        """Time until the lease expires, ms; 0 if it has expired or the message is not in flight."""
        return max(0, (self.due_ms or 0) - self.now_ms) if self.place == "prepare" else 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """A failed attempt to handle a message, kept on topics with `keep_attempts`.

    Attributes:
        failed_ms: Time of the failure, epoch ms.
        error_type: Type of the error, such as `ValueError`; empty for an error given as text.
        error_message: Text of the error, at most 200 characters.
        worker: Host and process that handled the message: `host:pid`.

    Examples:
        >>> jobs = Topic("jobs", TopicType.PRIORITY, keep_attempts=5)
        >>> _ = client.producer(jobs).send(PriorityMessage("job:1", 5))
        >>> [delivery.bury(ValueError("no photo")) for delivery in client.consumer(jobs).poll(timeout=5)]
        [True]
        >>> [attempt.error_message for message in client.dead(jobs).list() for attempt in message.history]
        ['no photo']
    """

    failed_ms: int
    error_type: str
    error_message: str
    worker: str


@dataclass(frozen=True, slots=True)
class Failure:
    """The last failure of a message.

    Attributes:
        type: Type of the error, such as `ValueError`; empty for an error given as text.
        message: Text of the error, at most 1,000 characters.
        first_ms: Time of the first failure of this message, epoch ms.
        last_ms: Time of its last failure, epoch ms.
        traceback: With `keep_attempts`: the end of the last error's traceback; otherwise empty.
        history: With `keep_attempts`: the last failed attempts, the newest first.

    Examples:
        >>> jobs = Topic("jobs", TopicType.PRIORITY)
        >>> _ = client.producer(jobs).send(PriorityMessage("job:1", 5))
        >>> [delivery.nack(delay="1m", error="no photo") for delivery in client.consumer(jobs).poll(timeout=5)]
        [True]
        >>> client.inspect(jobs).find("job:1").failure.message
        'no photo'
    """

    type: str
    message: str
    first_ms: int
    last_ms: int
    traceback: str = ""
    history: tuple[Attempt, ...] = ()


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The sections that a content is in. It can be in several: in flight, and sent again in the meantime.

    Attributes:
        now_ms: Redis' time of the reading, epoch ms.
        stored: The message in the backlog. `stored`, `in_flight`, `waiting` and `dead` are `None` if the content is
            not in that section.
        in_flight: The message in flight; `due_ms` is the end of its lease.
        waiting: The message that waits for its retry.
        dead: The dead message.
        failure: The last failure of a message that is not dead; `None` without one.
        holders: In flight: names of the workers that hold messages of this slot, by their last reports.

    Examples:
        >>> jobs = Topic("jobs", TopicType.PRIORITY)
        >>> _ = client.producer(jobs).send(PriorityMessage("job:1", 5))
        >>> found = client.inspect(jobs).find("job:1")
        >>> found.gone, found.stored.priority, found.in_flight
        (False, 5, None)
    """

    topic: str
    slot: int
    content: bytes
    now_ms: int
    stored: PeekedMessage | None = None
    in_flight: PeekedMessage | None = None
    waiting: PeekedMessage | None = None
    dead: DeadMessage | None = None
    failure: Failure | None = None
    holders: tuple[str, ...] = ()

    @property
    def gone(self) -> bool:
        """Whether the content is in no section of the slot: it was acked or removed, or never sent to the slot."""
        return (self.stored, self.in_flight, self.waiting, self.dead) == (None, None, None, None)


@dataclass(frozen=True, slots=True)
class FoundMessage(_InSlot):
    """A message found by a search. Only the beginning of a long body or list of items is returned.

    Attributes that are not listed have the meaning that they have in `PeekedMessage`.

    Attributes:
        place: `store` (the backlog), `prepare` (in flight), `retry` (waiting) or `dead`.
        due_ms: As in `PeekedMessage`; for a dead message its time of death.
        retries_left: As in `PeekedMessage`; `None` for a dead message.
        error_type: For a dead message the type of its last error, otherwise empty.
        error_message: For a dead message the text of its last error, otherwise empty.
        body: The beginning of its body, at most 1,024 bytes; `None` without one, and empty if the page has reached its
            limit of bytes.
        body_bytes: Size of the whole body in bytes, 0 without one; for items, their total size plus 4 bytes each.
        merged: As in `PeekedMessage`; 0 if the page has reached its limit of bytes.
        now_ms: Redis' time of the reading, epoch ms.
        priority: As in `PeekedMessage`.

    Examples:
        >>> jobs = Topic("jobs", TopicType.PRIORITY)
        >>> _ = client.producer(jobs).send(PriorityMessage("job:1", 5))
        >>> [found.text for found in client.inspect(jobs).search("job:*").messages]
        ['job:1']
    """

    place: AnyPlace
    score: int
    due_ms: int | None
    retries_left: int | None
    error_type: str
    error_message: str
    body: bytes | None
    body_bytes: int
    now_ms: int
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class SearchPage:
    """One page of the results of a search.

    Attributes:
        messages: The messages found, in no particular order.
        cursor: Position from which the next call continues; `None` at the end.
        looked_at: Approximate number of messages that this call examined.

    Examples:
        >>> jobs = Topic("jobs", TopicType.PRIORITY)
        >>> _ = client.producer(jobs).send(PriorityMessage("job:1", 5))
        >>> len(client.inspect(jobs).search("job:*").messages)
        1
    """

    messages: tuple[FoundMessage, ...]
    cursor: str | None
    looked_at: int


@dataclass(frozen=True, slots=True)
class DeadReasons:
    """Dead messages by the type of their error.

    Attributes:
        total: Number of dead messages.
        sampled: Number of dead messages that were examined.
        counts: Type of error -> number of examined messages, most frequent first.

    Examples:
        >>> jobs = Topic("jobs", TopicType.PRIORITY)
        >>> _ = client.producer(jobs).send(PriorityMessage("job:1", 5))
        >>> [delivery.bury(KeyError("job:1")) for delivery in client.consumer(jobs).poll(timeout=5)]
        [True]
        >>> dict(client.inspect(jobs).dead_reasons().counts)
        {'KeyError': 1}
    """

    total: int
    sampled: int
    counts: Mapping[str, int]

    @property
    def exact(self) -> bool:
        """Whether all dead messages were examined."""
        return self.sampled == self.total

    def estimate(self, error_type: str) -> int:
        """Return the estimated number of dead messages with this type of error."""
        return round(self.counts.get(error_type, 0) * self.total / self.sampled) if self.sampled else 0


@dataclass(frozen=True, slots=True)
class AuditLine:
    """An entry of the audit log: an administrative action, who did it, and when.

    Attributes:
        slot: Slot whose log has the entry. A pause of several slots is logged in the first of them, an action on many
            messages in slot 0.
        time_ms: Time of the action, epoch ms.
        action: The action, such as cancel, reschedule, promote, redrive, purge dead, pause, resume or purge.
        content: Content of the message; `None` for an action on several messages.
        detail: The messages concerned, or the value that was set.
        outcome: The result, such as done, in_flight, absent, merged, unchanged, or a count; begun for the entry that is
            written before an action on many messages.

    Examples:
        >>> jobs = client.producer(Topic("jobs", TopicType.PRIORITY)).topic
        >>> client.control(jobs, actor="ann").pause()
        1
        >>> [(line.actor, line.action) for line in client.inspect(jobs).audit()]
        [('ann', 'pause')]
    """

    topic: str
    slot: int
    id: str
    time_ms: int
    actor: str
    action: str
    content: bytes | None
    detail: str
    outcome: str


@dataclass(frozen=True, slots=True)
class DeadMessage(_InSlot):
    """A dead message and why it died.

    Attributes that are not listed have the meaning that they have in `PeekedMessage`.

    Attributes:
        died_ms: Time of death, epoch ms.
        error_type: Type of the last error, such as `ValueError`; `LeaseExpired` if a lease expired, `Expired` if the
            message outlived its time to live.
        error_message: Text of the last error, at most 1,000 characters.
        attempts: Number of its deliveries; 0 for `Expired`.
        first_failed_ms: Time of its first failure, epoch ms; for `Expired` the time of death.
        last_failed_ms: Time of its last failure, epoch ms; for `Expired` the time of death.
        traceback: With `keep_attempts`: the end of the last error's traceback; otherwise empty.
        history: With `keep_attempts`: the last failed attempts, the newest first, without expired leases.

    Examples:
        >>> jobs = Topic("jobs", TopicType.PRIORITY)
        >>> _ = client.producer(jobs).send(PriorityMessage("job:1", 5))
        >>> [delivery.bury("no photo") for delivery in client.consumer(jobs).poll(timeout=5)]
        [True]
        >>> [(message.text, message.error_message) for message in client.dead(jobs).list()]
        [('job:1', 'no photo')]
    """

    body: bytes | None
    died_ms: int
    error_type: str
    error_message: str
    attempts: int
    first_failed_ms: int
    last_failed_ms: int
    traceback: str = field(default="", kw_only=True)
    history: tuple[Attempt, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True, slots=True)
class DeadEntry(DeadMessage):
    """An entry that is dead in a group; `flat` has its fields as Redis returned them: name, value, name, value ...

    Examples:
        >>> clicks = Topic("clicks", TopicType.STREAM)
        >>> consumer = client.consumer(clicks, group="billing", start="all")
        >>> _ = client.producer(clicks).send(StreamMessage("page:1"))
        >>> [delivery.bury("no such page") for delivery in consumer.poll(timeout=5)]
        [True]
        >>> [entry.error_message for entry in client.stream(clicks).dead("billing").list()]
        ['no such page']
    """

    id: str = ""
    group: str = ""
    flat: tuple[bytes, ...] = ()

    @property
    def fields(self) -> dict[str, bytes]:
        """The entry's fields by name."""
        return fields_of(self.flat)


def read_failure(data: bytes | None, unknown_ms: int = 0) -> tuple[Failure, int]:
    """Parse the record of a failure; return the failure and the number of deliveries, 0 if that is unknown.

    Fields that cannot be read are empty, and times `unknown_ms`; for a record that is not JSON the message says so.
    """
    if not data:
        return Failure("", "", unknown_ms, unknown_ms), 0
    try:
        value: Any = json.loads(data.decode(errors="replace"))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        return Failure("", "(the record of the failure cannot be read)", unknown_ms, unknown_ms), 0
    found = cast("dict[str, Any]", value)
    kind, message, trace = (_text(found.get(name)) for name in ("type", "message", "trace"))
    first_ms, last_ms = (_whole(found.get(name), unknown_ms) for name in ("first_ms", "last_ms"))
    lines = _text(found.get("history")).split("\n") if found.get("history") else []
    history = tuple(filter(None, map(_read_attempt, lines)))
    return Failure(kind, message, first_ms, last_ms, trace, history), _whole(found.get("attempts"), 0)


def _read_attempt(line: str) -> Attempt | None:
    """Parse a line of the history; `None` for one that is not a time and a JSON object."""
    time_ms, _, text = line.partition(" ")
    try:
        value: Any = json.loads(text)
        return Attempt(_whole(time_ms, 0), *(_text(value[name]) for name in ("type", "message", "worker")))
    except (KeyError, RecursionError, TypeError, ValueError):
        return None


def why_dead(data: bytes | None, died_ms: int) -> dict[str, Any]:
    """Return the fields of a `DeadMessage` from `died_ms` on. Unknown times are replaced by the time of death."""
    failure, attempts = read_failure(data, died_ms)
    return {
        "died_ms": died_ms, "error_type": failure.type, "error_message": failure.message, "attempts": attempts,
        "first_failed_ms": failure.first_ms, "last_failed_ms": failure.last_ms,
        "traceback": failure.traceback, "history": failure.history,
    }  # fmt: skip


def _text(value: object) -> str:
    # half a pair of surrogates can stand in JSON, but be neither printed nor sent
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else ""


def _whole(value: object, otherwise: int) -> int:
    """Return a whole number that Lua has written as a number or as text; `otherwise` for other values."""
    try:
        number = int(value) if isinstance(value, (int, float, str)) and len(str(value)) < 32 else -1
    except (ValueError, OverflowError):
        return otherwise
    return number if 0 <= number < _MOST_WHOLE else otherwise


def meaning_of(topic: Topic, place: Place, score: int) -> tuple[int | None, int | None]:
    """Return the time in a score (see `PeekedMessage.due_ms`) and the retries left."""
    if place == "prepare":
        return lease_end_ms(score, topic.lease_ms), min(retries_left_of(score), topic.max_retries)
    if place == "retry":
        return stamp_of(score) * 1000, min(retries_left_of(score), topic.max_retries)
    if score <= topic.max_retries:
        return None, max(0, score - 1)
    return (score if topic.type.timed else None), None


def priority_of(topic: Topic, place: AnyPlace, score: int) -> int | None:
    """Return the priority in a score; see `PeekedMessage.priority`."""
    ranked = topic.type is TopicType.PRIORITY and place == "store" and score > topic.max_retries
    return ages_for(topic.max_priority).priority_of(score) if ranked else None


def told(topic: Topic, stored: bytes | None) -> tuple[bytes | None, dict[str, Any]]:
    """Return the body in a stored value, without its trace context, and the figures about its sends by name.

    The names are those of a message's attributes; there are no figures without the topic's `merge`.
    The body of a number is its text; items have none. The value may be truncated after its head.
    """
    if topic.merge is None:
        return unwrap(stored)[0], {}
    record = read_record(stored)
    return record.unwrapped[0], {
        "number": None if record.kind in BODIES | ITEMS else record.number,
        "items": record.items,
        "item_count": record.item_count,
        "merged": record.count,
        "first_sent_ms": record.first_ms or None,
        "last_sent_ms": record.last_ms or None,
        "wanted": record.wanted,
        "version": record.version,
    }
