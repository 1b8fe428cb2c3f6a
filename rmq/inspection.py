"""Read-only views of a topic. Bounded, and safe on a loaded server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rmq import calls
from rmq.calls import MAX_BATCH
from rmq.connections import Connections
from rmq.errors import InvalidValueError
from rmq.exchange import raise_first
from rmq.results import SlotStats
from rmq.scores import lease_end_second, retries_left_of, second_of
from rmq.topics import Topic

Place = Literal["store", "prepare", "retry"]
_ROUND = 64
"""Slots asked for in one round trip."""


@dataclass(frozen=True, slots=True)
class PeekedMessage:
    """A message where it lies.

    Attributes:
        topic: Topic name.
        slot: Slot number.
        content: The content.
        body: The body, or `None`.
        place: `store`, `prepare` (in flight) or `retry` (waiting).
        score: Its raw score.
        due_ms: Epoch ms: when it is due, its lease ends, or its retry starts; `None` for a priority or a
            rolled-back message, which are due at once.
        retries_left: Retries left; `None` for a fresh message, which has them all.
    """

    topic: str
    slot: int
    content: bytes
    body: bytes | None
    place: Place
    score: int
    due_ms: int | None
    retries_left: int | None

    @property
    def text(self) -> str:
        """The content as text; bytes that are not UTF-8 show as backslash escapes."""
        return self.content.decode(errors="backslashreplace")


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
        wanted = self._wanted(slots)
        found: list[SlotStats] = []
        for first in range(0, len(wanted), _ROUND):
            part = [calls.stats(self.topic, slot) for slot in wanted[first : first + _ROUND]]
            answers = self._connections.run_many(part)
            raise_first(answers)
            found += answers
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
        if type(limit) is not int or not 1 <= limit <= MAX_BATCH:
            raise InvalidValueError(f"limit is {limit!r}; it must be a whole number from 1 to {MAX_BATCH}")
        found: list[PeekedMessage] = []
        for first in range(0, len(wanted), _ROUND):
            part = wanted[first : first + _ROUND]
            answers = self._connections.run_many([calls.peek(self.topic, slot, place, 0, limit) for slot in part])
            raise_first(answers)
            for slot, (now_ms, rows) in zip(part, answers, strict=True):
                found += [self._peeked(slot, place, now_ms, *row) for row in rows]
        return found

    def pages(self, slot: int, place: Place, page: int = 1_000) -> Iterator[PeekedMessage]:
        """Yield all messages of one place of a slot, page by page; those that move meanwhile may be missed."""
        start = 0
        while True:
            now_ms, rows = self._connections.run(calls.peek(self.topic, slot, place, start, page))
            yield from (self._peeked(slot, place, now_ms, *row) for row in rows)
            if len(rows) < page:
                return
            start += page

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
        due_ms: int | None = None
        left: int | None = None
        if place == "prepare":
            due_ms = lease_end_second(second_of(score), self.topic.lease_s) * 1000
            left = retries_left_of(score)
        elif place == "retry":
            due_ms, left = second_of(score) * 1000, retries_left_of(score)
        elif score <= self.topic.max_retries:
            left = score - 1
        elif self.topic.type.timed:
            due_ms = score
        return PeekedMessage(self.topic.name, slot, content, body, place, score, due_ms, left)
