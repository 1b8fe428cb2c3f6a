"""Read-only views of a stream topic, without a group, and the calls of scripts that only operators of streams need.

The calls are bounded, and safe on a busy server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from heapq import merge
from itertools import islice
from typing import Any

from rmq._admin.calls.viewing import joined
from rmq._admin.figures import ConsumerStats, GroupSlot, GroupStats, StreamSlot, StreamStats, read_totals
from rmq._admin.view import View, most
from rmq._broker.binding import SAFE_AGAIN, BoundScript, refusal
from rmq._broker.claims import MAX_BATCH
from rmq._broker.keys import slot_keys
from rmq._model.entries import (
    WAITING,
    PendingEntry,
    Position,
    StreamEntry,
    bound,
    checked_consumer,
    checked_group,
    consumer_of,
    id_key,
    position,
)
from rmq._model.times import seconds
from rmq._model.topics import Topic, TopicType, checked_slots
from rmq._transport.call import Call, is_one
from rmq._transport.connections import Connections, call_slots
from rmq.errors import InvalidValueError, RmqError

_DROP_GROUP, _DELETE = (BoundScript(f"stream_{verb}", durable=SAFE_AGAIN) for verb in ("drop_group", "delete"))
_RANGE, _PENDING, _STATS, _GROUP, _CONSUMERS = (
    BoundScript(f"stream_{name}") for name in "range pending stats group consumers".split()
)
_DRIVEN = "the group on {target} cannot be moved; its position is in the checkpoint of a Spark query"
_MOVE_GROUP = BoundScript(
    "stream_move_group",
    {"RMQ_DRIVEN": refusal(RmqError, _DRIVEN)},
    durable="Moving the group again makes it read the entries that it has read since a second time",
)

STREAM_TOTALS = "accepted copied trimmed deleted".split()
GROUP_TOTALS = (
    "fresh delivered acked retried expired released buried lost redriven resent skipped purged trimmed".split()
)


def delete(topic: Topic, slot: int, ids: Sequence[str]) -> Call[int]:
    """Return a call that deletes up to `MAX_BATCH` entries."""
    return _DELETE.call(topic, slot, int, ids=ids)


def read_range(topic: Topic, slot: int, first: str, last: str, limit: int, *, down: bool) -> Call[list[StreamEntry]]:
    """Return a call that reads a page of up to `MAX_BATCH` entries; `first` and `last` are as in XRANGE."""

    def parse(reply: list[Any]) -> list[StreamEntry]:
        return [StreamEntry(topic.name, slot, entry_id.decode(), tuple(flat)) for entry_id, flat in reply]

    order = "down" if down else "up"
    return _RANGE.call(topic, slot, parse, first=first, last=last, limit=limit, order=order)


def stats(topic: Topic, slot: int) -> Call[StreamSlot]:
    """Return a call that reads a slot's length, first and last id, groups and totals."""

    def parse(reply: list[list[Any]]) -> StreamSlot:
        [(now_ms, length, first, last, totals, groups)] = reply
        names = tuple(sorted(found[1].decode() for found in groups))
        numbers = read_totals(STREAM_TOTALS, totals)
        return StreamSlot(topic.name, slot, int(now_ms), int(length), first.decode(), last.decode(), names, numbers)

    keys = slot_keys(topic.name, slot)
    return _STATS.call_on(topic.name, parse, (keys.store, keys.meta), slot=slot, totals=STREAM_TOTALS)


def group_stats(topic: Topic, slot: int, group: str) -> Call[GroupSlot]:
    """Return a call that reads a group's position, lag and totals in one slot."""

    def parse(reply: list[Any]) -> GroupSlot:
        last_id, pending, waiting, dead, lag, epoch, paused, oldest, overdue_ms, totals = reply
        sizes = (int(pending), int(waiting), int(dead), int(lag) if lag else None)
        state = (int(epoch), is_one(paused), oldest.decode(), read_totals(GROUP_TOTALS, totals), int(overdue_ms))
        return GroupSlot(topic.name, slot, group, last_id.decode(), *sizes, *state)

    return _GROUP.call(topic, slot, parse, group=group, lease=topic.lease_ms, totals=GROUP_TOTALS)


def consumers(topic: Topic, slot: int, group: str) -> Call[list[tuple[str, int, int]]]:
    """Return a call that reads a group's consumers: name, pending entries, idle ms; a name may come several times."""

    def parse(reply: list[Any]) -> list[tuple[str, int, int]]:
        return [(consumer_of(row[1]), row[3], row[5]) for row in reply]

    return _CONSUMERS.call(topic, slot, parse, group=group)


def pending(
    topic: Topic, slot: int, group: str, first: str, limit: int, consumer: str, idle_ms: int = 0
) -> Call[list[PendingEntry]]:
    """Return a call that reads a page of a group's pending entries from `first` on, which is as in XPENDING."""

    def parse(reply: list[Any]) -> list[PendingEntry]:
        return [PendingEntry(slot, entry_id.decode(), _holder(name), idle, n) for entry_id, name, idle, n in reply]

    args: dict[str, Any] = {"first": first, "limit": limit, "consumer": consumer, "idle_ms": idle_ms}
    return _PENDING.call(topic, slot, parse, group=group, **args)


def _holder(name: bytes) -> str | None:
    text = consumer_of(name)
    return None if text == WAITING else text


def drop_group(topic: Topic, slot: int, group: str) -> Call[bool]:
    """Return a call that removes a group and all of its state; its result is whether the group existed."""
    return _DROP_GROUP.call(topic, slot, is_one, group=group)


def move_group(topic: Topic, slot: int, group: str, start: str, *, through: bool) -> Call[str]:
    """Return a call that moves a group to an id, or after it if `through`; the result is the new position or empty."""
    return _MOVE_GROUP.call(topic, slot, bytes.decode, group=group, start=start, through=int(through))


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
        return StreamStats(self.topic, tuple(self._per_slot(partial(stats, self.topic), slots, joined)))

    def groups(self) -> list[GroupStats]:
        """Return the figures of all groups, sorted by name; empty without groups."""
        return self.with_groups()[1]

    def with_groups(self) -> tuple[StreamStats, list[GroupStats]]:
        """Return the figures of the topic and of all its groups."""
        stats = self.stats()
        parts = [(slot, name) for name in stats.groups for slot in range(self.topic.slots)]
        figures = iter(call_slots(self._connections, parts, lambda part: group_stats(self.topic, *part)))
        return stats, [GroupStats(name, tuple(islice(figures, self.topic.slots))) for name in stats.groups]

    def group(self, name: str) -> GroupStats:
        """Return the figures of one group; all zero if it is not registered.

        Raises:
            InvalidValueError: `name` is not a valid name of a group.
        """
        checked_group(name)
        return GroupStats(name, tuple(self._per_slot(lambda slot: group_stats(self.topic, slot, name))))

    def consumers(self, group: str, idle_s: float | None = None) -> list[ConsumerStats]:
        """Return a group's consumers with the number of their pending entries, sorted by name; empty if it has none.

        A consumer that has been idle for `idle_s` seconds, two leases by default, has `gone` set. A running consumer
        renews its pending entries, so it is never idle for a lease while it has any.

        Raises:
            InvalidValueError: `group` is not a valid name, or `idle_s` is negative.
        """
        checked_group(group)
        totals: dict[str, tuple[int, int]] = {}
        for rows in self._per_slot(lambda slot: consumers(self.topic, slot, group)):
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
            while page := self._connections.run(pending(self.topic, slot, group, after, MAX_BATCH, consumer, idle_ms)):
                yield from page
                after = f"({page[-1].id}"

    def _merged(self, low: dict[int, str], high: str, most_read: int, down: bool) -> Iterator[StreamEntry]:
        pages = [self._pages(slot, first, high, max(1, min(PAGE, most_read)), down) for slot, first in low.items()]
        return pages[0] if len(pages) == 1 else merge(*pages, key=lambda each: id_key(each.id), reverse=down)

    def _pages(self, slot: int, low: str, high: str, size: int, down: bool) -> Iterator[StreamEntry]:
        while True:
            page = self._connections.run(read_range(self.topic, slot, low, high, size, down=down))
            yield from page
            if not page:  # a short page may have reached the limit of bytes
                return
            after = f"({page[-1].id}"
            low, high = (low, after) if down else (after, high)
