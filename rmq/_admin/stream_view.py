"""Read-only views of a stream topic, without a group. All calls are bounded, and safe on a busy server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from functools import partial
from heapq import merge
from itertools import islice

from rmq._admin.calls import stream_admin
from rmq._admin.figures import ConsumerStats, GroupStats, StreamStats
from rmq._admin.view import View, most
from rmq._broker.claims import MAX_BATCH
from rmq._model.entries import (
    WAITING,
    PendingEntry,
    Position,
    StreamEntry,
    bound,
    checked_consumer,
    checked_group,
    id_key,
    position,
)
from rmq._model.times import seconds
from rmq._model.topics import Topic, TopicType, checked_slots
from rmq._transport.call import joined
from rmq._transport.connections import Connections, call_slots
from rmq.errors import InvalidValueError

PAGE = 500
"""Maximum number of entries read in one call."""


class StreamView(View):
    """Reads a stream topic. The argument `slots` of its methods limits them to some slots; all by default."""

    def __init__(self, connections: Connections, topic: Topic) -> None:
        if topic.type is not TopicType.STREAM:
            raise InvalidValueError(f"topic {topic.name} is {topic.type.name}; it must be STREAM", topic=topic.name)
        super().__init__(connections, topic)

    def range(
        self,
        first: Position | None = None,
        last: Position | None = None,
        *,
        newest_first: bool = False,
        limit: int | None = None,
        slots: Iterable[int] | None = None,
    ) -> Iterator[StreamEntry]:
        """Yield entries in the order of their ids, with those of all slots merged by time.

        Args:
            first: First id or time, the oldest by default. It is included; with the prefix `(` it is excluded.
            last: Last id or time, the newest by default; included or excluded in the same way.
            newest_first: Reverse the order.
            limit: Maximum number of entries; unlimited by default.
            slots: Only these slots; all by default.

        Raises:
            InvalidValueError: An id, a time, a slot or `limit` is invalid.
        """
        low = "-" if first is None else bound(first, "first")
        high = "+" if last is None else bound(last, "last")
        left = most(limit, "limit")
        return islice(
            self._merged(dict.fromkeys(checked_slots(self.topic, slots), low), high, left, newest_first), left
        )

    def get(self, entry_id: str, slot: int | None = None) -> StreamEntry | None:
        """Return the entry with an id; `None` if there is none.

        Ids are unique within a slot only: if several slots have the id and `slot` is not given, the entry of the lowest
        slot is returned.

        Raises:
            InvalidValueError: `entry_id` is not an entry's id, or the topic does not have the slot.
        """
        position(entry_id, "entry_id")
        return next(self.range(entry_id, entry_id, limit=1, slots=None if slot is None else [slot]), None)

    def unread(self, group: str, limit: int | None = None, slots: Iterable[int] | None = None) -> Iterator[StreamEntry]:
        """Yield up to `limit` entries that a group has not read yet, ordered by id; none for an unregistered group.

        Raises:
            InvalidValueError: `group` is not a valid name, or `limit` or a slot is invalid.
        """
        left = most(limit, "limit")
        last = {slot.slot: slot.last_id for slot in self.group(group).slots}
        unread = {slot: f"({last[slot]}" for slot in checked_slots(self.topic, slots) if last[slot]}
        merged = self._merged(unread, "+", left, down=False)
        return islice((entry for entry in merged if entry.only_group in (None, group)), left)

    def stats(self, slots: Iterable[int] | None = None) -> StreamStats:
        """Return the figures of the topic: length, first and last id, groups and totals.

        Raises:
            InvalidValueError: The topic does not have one of the slots.
        """
        return StreamStats(self.topic, tuple(self._per_slot(partial(stream_admin.stats, self.topic), slots, joined)))

    def groups(self) -> list[GroupStats]:
        """Return the figures of all groups, sorted by name; empty without groups."""
        return self.with_groups()[1]

    def with_groups(self) -> tuple[StreamStats, list[GroupStats]]:
        """Return the figures of the topic and of all its groups."""
        stats = self.stats()
        parts = [(slot, name) for name in stats.groups for slot in range(self.topic.slots)]
        figures = iter(call_slots(self._connections, parts, lambda part: stream_admin.group_stats(self.topic, *part)))
        return stats, [GroupStats(name, tuple(islice(figures, self.topic.slots))) for name in stats.groups]

    def group(self, name: str) -> GroupStats:
        """Return the figures of one group; all zero if it is not registered.

        Raises:
            InvalidValueError: `name` is not a valid name of a group.
        """
        checked_group(name)
        return GroupStats(name, tuple(self._per_slot(lambda slot: stream_admin.group_stats(self.topic, slot, name))))

    def consumers(self, group: str, idle_s: float | None = None) -> list[ConsumerStats]:
        """Return a group's consumers with the number of their pending entries, sorted by name; empty if it has none.

        A consumer that has been idle for `idle_s` seconds, two leases by default, has `gone` set. A running consumer
        renews its pending entries, so it is never idle for a lease while it has any.

        Raises:
            InvalidValueError: `group` is not a valid name, or `idle_s` is negative.
        """
        checked_group(group)
        totals: dict[str, tuple[int, int]] = {}
        for rows in self._per_slot(lambda slot: stream_admin.consumers(self.topic, slot, group)):
            for name, pending, idle_ms in rows:
                before = totals.get(name, (0, idle_ms))
                totals[name] = before[0] + pending, min(before[1], idle_ms)
        longest_ms = 2_000 * self.topic.lease_s if idle_s is None else seconds(idle_s, "idle_s") * 1_000
        return [
            ConsumerStats(group, name, pending, idle_ms, idle_ms >= longest_ms)
            for name, (pending, idle_ms) in sorted(totals.items())
            if name != WAITING
        ]

    def pending(
        self,
        group: str,
        consumer: str | None = None,
        slots: Iterable[int] | None = None,
        *,
        start: Position | None = None,
        idle_s: float | timedelta = 0.0,
        limit: int | None = None,
    ) -> Iterator[PendingEntry]:
        """Yield a group's pending entries, delivered but not acked, slot by slot, oldest first.

        Args:
            group: Name of the group.
            consumer: Only entries of this consumer; all by default.
            slots: Only these slots; all by default.
            start: First id or time, the oldest by default. It is included; with the prefix `(` it is excluded.
            idle_s: Only entries not claimed or renewed for this time, in seconds or as a `timedelta`.
            limit: Maximum number of entries; unlimited by default.

        Raises:
            InvalidValueError: A group, id, time, slot or number is invalid.
        """
        checked_group(group)
        if consumer is not None:
            checked_consumer(consumer)
        first = "-" if start is None else bound(start, "start")
        left, idle_ms = most(limit, "limit"), int(seconds(idle_s, "idle_s") * 1_000)
        return islice(self._pending(group, consumer or "", checked_slots(self.topic, slots), first, idle_ms), left)

    def _pending(
        self, group: str, consumer: str, slots: Iterable[int], first: str, idle_ms: int
    ) -> Iterator[PendingEntry]:
        for slot in slots:
            after = first
            while page := self._connections.run(
                stream_admin.pending(self.topic, slot, group, after, MAX_BATCH, consumer, idle_ms)
            ):
                yield from page
                after = f"({page[-1].id}"

    def _merged(self, low: dict[int, str], high: str, most_read: int, down: bool) -> Iterator[StreamEntry]:
        pages = [self._pages(slot, first, high, max(1, min(PAGE, most_read)), down) for slot, first in low.items()]
        return pages[0] if len(pages) == 1 else merge(*pages, key=lambda each: id_key(each.id), reverse=down)

    def _pages(self, slot: int, low: str, high: str, size: int, down: bool) -> Iterator[StreamEntry]:
        while True:
            page = self._connections.run(stream_admin.read_range(self.topic, slot, low, high, size, down=down))
            yield from page
            if not page:  # a short page may have reached the limit of bytes
                return
            after = f"({page[-1].id}"
            low, high = (low, after) if down else (after, high)
