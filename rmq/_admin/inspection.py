"""Read-only views of a topic. Bounded, and safe on a loaded server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rmq import calls, view_calls
from rmq.calls import MAX_BATCH, Call
from rmq.connections import Connections
from rmq.errors import InvalidValueError, ScriptFailedError
from rmq.exchange import raise_first
from rmq.findings import (
    PLACES,
    AnyPlace,
    AuditLine,
    DeadReasons,
    PeekedMessage,
    Place,
    Rates,
    SearchPage,
    Whereabouts,
    meaning_of,
    rates_between,
)
from rmq.messages import Payload, payload_bytes
from rmq.results import SlotStats
from rmq.search import Search, literal
from rmq.topics import Topic

__all__ = ["Inspection", "PeekedMessage", "Place", "TopicStats"]
T = TypeVar("T")

_ROUND = 64
"""Slots asked for in one round trip."""

_MOST_SAMPLED_SLOTS = 64


@dataclass(frozen=True, slots=True)
class TopicStats:
    """A topic as the sum of its slots, each read at one instant of its own.

    Attributes:
        topic: The definition.
        slots: Its slots' figures.
    """

    topic: Topic
    slots: tuple[SlotStats, ...]

    @property
    def backlog(self) -> int:
        """Messages in store."""
        return sum(slot.backlog for slot in self.slots)

    @property
    def due_now(self) -> int:
        """Messages in store that may be delivered now."""
        return sum(slot.due_now for slot in self.slots)

    @property
    def in_flight(self) -> int:
        """Claimed messages."""
        return sum(slot.in_flight for slot in self.slots)

    @property
    def waiting(self) -> int:
        """Failed messages waiting for their retry."""
        return sum(slot.waiting for slot in self.slots)

    @property
    def dead(self) -> int:
        """Dead messages."""
        return sum(slot.dead for slot in self.slots)

    @property
    def oldest_due_ms(self) -> int | None:
        """Earliest due time in store, epoch ms; `None` with an empty backlog."""
        times = [slot.oldest_due_ms for slot in self.slots if slot.oldest_due_ms is not None]
        return min(times) if times else None

    @property
    def lateness_ms(self) -> int:
        """How long the oldest due message has been due, ms; 0 when nothing is due."""
        late = [slot.now_ms - slot.oldest_due_ms for slot in self.slots if slot.oldest_due_ms is not None]
        return max([0, *late])

    @property
    def unaccounted(self) -> int:
        """0, always; see `SlotStats.unaccounted`."""
        return sum(slot.unaccounted for slot in self.slots)

    def total(self, name: str) -> int:
        """Return a counter summed over the slots: accepted, merged, delivered, acked, retried, buried ..."""
        return sum(slot.totals.get(name, 0) for slot in self.slots)

    @property
    def now_ms(self) -> int:
        """Redis' time of the reading, epoch ms: of its last slot."""
        return max((slot.now_ms for slot in self.slots), default=0)

    def rates_since(self, earlier: TopicStats) -> Rates:
        """Return what happened per second since an earlier look at the same slots."""
        first, last = (sum((Counter(slot.totals) for slot in each.slots), Counter[str]()) for each in (earlier, self))
        return rates_between(first, last, self.now_ms - earlier.now_ms)


class Inspection:
    """Reads one topic.

    Args:
        connections: Where its slots are.
        topic: The registered definition.
    """

    def __init__(self, connections: Connections, topic: Topic) -> None:
        self._connections = connections
        self.topic = topic

    def stats(self, slots: Sequence[int] | None = None) -> TopicStats:
        """Return sizes and totals of all slots, or of the given ones.

        Raises:
            InvalidValueError: A slot that the topic does not have.
        """
        found = self._each(self._wanted(slots), lambda slot: calls.stats(self.topic, slot))
        return TopicStats(self.topic, tuple(found))

    def peek(self, place: Place = "store", limit: int = 10, slots: Sequence[int] | None = None) -> list[PeekedMessage]:
        """Return up to `limit` messages per slot, the next to be delivered first, without claiming them.

        Args:
            place: `store`, `prepare` (in flight) or `retry` (waiting).
            limit: Most messages per slot, 1 to 1,000.
            slots: Only these slots.

        Raises:
            InvalidValueError: A slot that the topic does not have, an unknown place, or a limit out of range.
        """
        wanted = self._wanted(slots)
        if place not in ("store", "prepare", "retry"):
            raise InvalidValueError(f"place is {place!r}; it must be store, prepare or retry")
        _check_whole("limit", limit, MAX_BATCH)
        answers = self._each(wanted, lambda slot: calls.peek(self.topic, slot, place, 0, limit))
        return [
            self._peeked(slot, place, now_ms, *row)
            for slot, (now_ms, rows) in zip(wanted, answers, strict=True)
            for row in rows
        ]

    def pages(self, slot: int, place: Place, page: int = 1_000) -> Iterator[PeekedMessage]:
        """Yield all messages of one place of a slot, page by page; those that move meanwhile may be missed."""
        start = 0
        while True:
            now_ms, rows = self._connections.run(calls.peek(self.topic, slot, place, start, page))
            yield from (self._peeked(slot, place, now_ms, *row) for row in rows)
            if len(rows) < page:
                return
            start += page

    def find(self, content: Payload, slot_basis: Payload | None = None, everywhere: bool = False) -> Whereabouts:
        """Return where a content is right now.

        Args:
            content: Content of the message.
            slot_basis: Slot basis it was sent with, if any.
            everywhere: Look through all slots, for one whose slot basis is not known.
        """
        name = payload_bytes(content, "content")
        home = self.topic.slot_of(name if slot_basis is None else payload_bytes(slot_basis, "slot_basis"))
        found = self._connections.run(view_calls.find(self.topic, home, name))
        if found.gone and everywhere:
            others = [slot for slot in range(self.topic.slots) if slot != home]
            answers = self._each(others, lambda slot: view_calls.find(self.topic, slot, name))
            found = next((each for each in answers if not each.gone), found)
        return found if found.in_flight is None else replace(found, holders=self._holders(found.slot))

    def search(
        self,
        pattern: Payload | None = None,
        *,
        prefix: Payload | None = None,
        places: Collection[AnyPlace] = PLACES,
        slots: Sequence[int] | None = None,
        cursor: str | None = None,
        limit: int = 50,
        budget: int = 10_000,
    ) -> SearchPage:
        """Search messages by content, one page at a time.

        Args:
            pattern: What the content has to match, with Redis' `*`, `?` and `[...]`; everything by default.
            prefix: Instead: how the content begins, literally.
            places: Where to look: `store`, `prepare` (in flight), `retry`, `dead`; all by default.
            slots: Only these slots; all by default. The same ones for every page.
            cursor: That of the page before; `None` to begin.
            limit: End the page at about so many messages, 1 to 1,000. It can be longer: a step is not cut in two.
            budget: End the page after about so many entries, 1 to 1,000,000, even if nothing was found.

        Returns:
            A page; its `cursor` is `None` at the end.

        Raises:
            InvalidValueError: Both `pattern` and `prefix`, an unknown place or slot, a foreign cursor, a number out of
                range.

        Guarantee: what is there from the first page to the last is found at least once.
        """
        if pattern is not None and prefix is not None:
            raise InvalidValueError("search takes a pattern or a prefix, not both")
        for place in places:
            if place not in PLACES:
                raise InvalidValueError(f"place is {place!r}; it must be store, prepare, retry or dead")
        _check_whole("limit", limit, MAX_BATCH)
        _check_whole("budget", budget, 1_000_000)
        wanted = b"*" if pattern is None else payload_bytes(pattern, "pattern")
        if prefix is not None:
            wanted = literal(payload_bytes(prefix, "prefix"))
        search = Search(self._connections, self.topic, wanted, places, self._wanted(slots), cursor)
        return search.step(limit, budget)

    def dead_reasons(self, sample: int = 2_000, stats: TopicStats | None = None) -> DeadReasons:
        """Return the dead by type of error, from a sample of at most 64 slots where there are many.

        Args:
            sample: Most dead to look at, 1 to 10,000.
            stats: A look at all slots that is at hand, to save another.

        Raises:
            InvalidValueError: `sample` out of range.
        """
        _check_whole("sample", sample, 10_000)
        dead = {slot.slot: slot.dead for slot in (stats or self.stats()).slots if slot.dead}
        chosen = sorted(dead)[:: max(1, -(-len(dead) // _MOST_SAMPLED_SLOTS))]
        among = sum(dead[slot] for slot in chosen)
        shares = {slot: max(1, min(MAX_BATCH, -(-sample * dead[slot] // among))) for slot in chosen}
        answers = self._each(chosen, lambda slot: view_calls.dead_reasons(self.topic, slot, shares[slot]))
        counts = sum((counts for _, counts in answers), Counter[str]())
        total = sum(dead.values()) - among + sum(found for found, _ in answers)
        return DeadReasons(total, counts.total(), dict(counts.most_common()))

    def audit(self, limit: int = 50, slots: Sequence[int] | None = None) -> list[AuditLine]:
        """Return who steered what, the newest first; about the last 1,000 lines of each slot are kept.

        Args:
            limit: Most lines, 1 to 1,000.
            slots: Only these slots; what concerned all slots stands in slot 0.

        Raises:
            InvalidValueError: `limit` out of range, or a slot that the topic does not have.
        """
        _check_whole("limit", limit, MAX_BATCH)
        return audit_of(self._connections, self.topic, limit, self._wanted(slots))

    def _holders(self, slot: int) -> tuple[str, ...]:
        try:
            workers = self._connections.run(view_calls.workers())
        except ScriptFailedError:  # no right to see them
            return ()
        return tuple(
            worker.name
            for worker in workers
            if any(each.topic == self.topic.name and slot in each.busy_slots for each in worker.listeners)
        )

    def _each(self, slots: Sequence[int], build: Callable[[int], Call[T]]) -> list[T]:
        return _ask_each(self._connections, slots, build)

    def _wanted(self, slots: Sequence[int] | None) -> Sequence[int]:
        for slot in slots or ():
            if type(slot) is not int or not 0 <= slot < self.topic.slots:
                raise InvalidValueError(
                    f"slot {slot!r} is not one of topic {self.topic.name}: 0 to {self.topic.slots - 1}"
                )
        return range(self.topic.slots) if slots is None else slots

    def _peeked(
        self, slot: int, place: Place, now_ms: int, content: bytes, score: int, body: bytes | None
    ) -> PeekedMessage:
        due_ms, left = meaning_of(self.topic, place, score)
        return PeekedMessage(self.topic.name, slot, content, body, place, score, due_ms, left, now_ms)


def audit_of(connections: Connections, topic: Topic, limit: int, slots: Sequence[int]) -> list[AuditLine]:
    """Return the last lines of the audit of a topic of any type, the newest first."""
    answers = _ask_each(connections, slots, lambda slot: view_calls.audit_lines(topic, slot, limit))
    lines = [line for lines in answers for line in lines]
    return sorted(lines, key=lambda line: (line.time_ms, line.slot), reverse=True)[:limit]


def _ask_each(connections: Connections, slots: Sequence[int], build: Callable[[int], Call[T]]) -> list[T]:
    found: list[Any] = []
    for first in range(0, len(slots), _ROUND):
        answers = connections.run_many([build(slot) for slot in slots[first : first + _ROUND]])
        raise_first(answers)
        found += answers
    return found


def _check_whole(name: str, value: object, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        raise InvalidValueError(f"{name} is {value!r}; it must be a whole number from 1 to {most:,}")
