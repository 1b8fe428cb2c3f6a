"""Calls of the scripts that read and manage stream topics and their groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rmq._admin.figures import GroupSlot, StreamSlot
from rmq._broker.binding import SAFE_AGAIN, BoundScript, refusal
from rmq._broker.keys import slot_keys
from rmq._model.entries import WAITING, PendingEntry, StreamEntry, consumer_of
from rmq._model.topics import Topic
from rmq._transport.call import Call, is_one, read_totals
from rmq.errors import RmqError

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
