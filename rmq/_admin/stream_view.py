"""Read-only views of a stream topic, without a group. Bounded, and safe on a loaded server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Any, TypeVar

from rmq import stream_calls
from rmq.calls import MAX_BATCH, Call
from rmq.connections import Connections
from rmq.errors import InvalidValueError
from rmq.exchange import raise_first
from rmq.stream_values import (
    WAITING,
    ConsumerStats,
    GroupStats,
    PendingEntry,
    Position,
    StreamEntry,
    StreamStats,
    checked_group,
    id_key,
    position,
)
from rmq.topics import Topic, TopicType

T = TypeVar("T")

PAGE = 500
"""Entries read in one call."""

_ROUND = 64
"""Slots asked in one round trip."""


class StreamView:
    """Reads a stream topic.

    Args:
        connections: Where its slots are.
        topic: The registered definition.

    Raises:
        InvalidValueError: The topic is of another type.
    """

    def __init__(self, connections: Connections, topic: Topic) -> None:
        if topic.type is not TopicType.STREAM:
            raise InvalidValueError(f"topic {topic.name} is {topic.type.name}, not STREAM", topic=topic.name)
        self._connections = connections
        self.topic = topic

    def range(
        self,
        first: Position | None = None,
        last: Position | None = None,
        *,
        newest_first: bool = False,
        limit: int | None = None,
        slots: Iterable[int] | None = None,
    ) -> Iterator[StreamEntry]:
        """Yield entries in the order of their ids, page by page, those of all slots merged by time.

        Args:
            first: From this id or time on, itself included; the oldest by default.
            last: Up to this id or time, itself included; the newest by default.
            newest_first: The other way round.
            limit: Most entries; no bound by default.
            slots: Only these slots; all by default.

        Raises:
            InvalidValueError: Neither an id nor a time, or a slot that the topic does not have.
        """
        low = "-" if first is None else position(first, "first")
        high = "+" if last is None else position(last, "last")
        size = PAGE if limit is None else max(1, min(PAGE, limit))
        pages = [self._pages(slot, low, high, size, newest_first) for slot in self._wanted(slots)]
        merged = pages[0] if len(pages) == 1 else merge(*pages, key=lambda each: id_key(each.id), reverse=newest_first)
        return islice(merged, limit)

    def get(self, entry_id: str, slot: int | None = None) -> StreamEntry | None:
        """Return the entry with an id; `None` where there is none.

        Args:
            entry_id: Its id.
            slot: Its slot; unknown by default. Ids are unique within a slot only: of several the first is returned.
        """
        return next(self.range(entry_id, entry_id, limit=1, slots=None if slot is None else [slot]), None)

    def unread(self, group: str, limit: int | None = None, slots: Iterable[int] | None = None) -> Iterator[StreamEntry]:
        """Yield what a group has not been given yet, in the order of the ids; nothing where it is not registered.

        Args:
            group: Its name.
            limit: Most entries; no bound by default.
            slots: Only these slots; all by default.
        """
        size = PAGE if limit is None else max(1, min(PAGE, limit))
        places = {slot.slot: slot.last_id for slot in self.group(group).slots}
        pages = [
            self._pages(slot, f"({places[slot]}", "+", size, down=False) for slot in self._wanted(slots) if places[slot]
        ]
        merged = merge(*pages, key=lambda each: id_key(each.id))
        return islice((entry for entry in merged if entry.only_group in (None, group)), limit)

    def stats(self, slots: Iterable[int] | None = None) -> StreamStats:
        """Return length, ends and groups of the given slots; of all by default."""
        found = self._each(lambda slot: stream_calls.stats(self.topic, slot), slots)
        return StreamStats(self.topic, tuple(found))

    def groups(self) -> list[GroupStats]:
        """Return what each group has done and has left to do."""
        return [self.group(name) for name in self.stats().groups]

    def group(self, name: str) -> GroupStats:
        """Return what one group has done and has left to do; all zero where it is not registered."""
        checked_group(name)
        slots = self._each(lambda slot: stream_calls.group_stats(self.topic, slot, name))
        return GroupStats(name, tuple(slots))

    def consumers(self, group: str, idle_s: float | None = None) -> list[ConsumerStats]:
        """Return a group's consumers with what they hold, by name.

        Args:
            group: Its name.
            idle_s: After how long one that has not moved is taken for gone; two leases by default. A live consumer
                renews what it holds, and so is never idle for a lease while it holds something.
        """
        checked_group(group)
        found: dict[str, tuple[int, int]] = {}
        for rows in self._each(lambda slot: stream_calls.consumers(self.topic, slot, group)):
            for name, pending, idle_ms in rows:
                before = found.get(name, (0, idle_ms))
                found[name] = before[0] + pending, min(before[1], idle_ms)
        longest_ms = 2_000 * self.topic.lease_s if idle_s is None else idle_s * 1_000
        return [
            ConsumerStats(group, name, pending, idle_ms, idle_ms >= longest_ms)
            for name, (pending, idle_ms) in sorted(found.items())
            if name != WAITING
        ]

    def pending(
        self, group: str, consumer: str | None = None, slots: Iterable[int] | None = None
    ) -> Iterator[PendingEntry]:
        """Yield what a group has been given and has not acked, slot by slot, oldest first.

        Args:
            group: Its name.
            consumer: Only what this consumer holds.
            slots: Only these slots; all by default.
        """
        checked_group(group)
        for slot in self._wanted(slots):
            after: str | None = None
            while page := self._connections.run(
                stream_calls.pending(self.topic, slot, group, after, MAX_BATCH, consumer or "")
            ):
                yield from page
                after = page[-1].id

    def _wanted(self, slots: Iterable[int] | None) -> Sequence[int]:
        wanted = list(range(self.topic.slots) if slots is None else slots)
        for slot in wanted:
            if type(slot) is not int or not 0 <= slot < self.topic.slots:
                raise InvalidValueError(
                    f"slot {slot!r} is not one of topic {self.topic.name}: 0 to {self.topic.slots - 1}"
                )
        return wanted

    def _pages(self, slot: int, low: str, high: str, size: int, down: bool) -> Iterator[StreamEntry]:
        while True:
            page = self._connections.run(stream_calls.read_range(self.topic, slot, low, high, size, down=down))
            yield from page
            if len(page) < size:
                return
            if down:
                high = f"({page[-1].id}"
            else:
                low = f"({page[-1].id}"

    def _each(self, build: Callable[[int], Call[T]], slots: Iterable[int] | None = None) -> list[T]:
        wanted = self._wanted(slots)
        found: list[Any] = []
        for first in range(0, len(wanted), _ROUND):
            part = [build(slot) for slot in wanted[first : first + _ROUND]]
            answers = self._connections.run_many(part)
            raise_first(answers)
            found += answers
        return found
