"""Builds the script calls of stream topics and parses their replies. No I/O: the sync and the asyncio side share it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from rmq.calls import Ack, Argument, Call, Nack, ack_args, nack_args
from rmq.keys import GroupKeys, group_keys, sizes_key, slot_keys
from rmq.messages import Encoded
from rmq.ownership import NO_OWNER, Owner
from rmq.results import Claimed, ClaimReply, ExtendReply, Redriven, SendResult
from rmq.retention import Retention
from rmq.stream_values import (
    BODY,
    CONTENT,
    WAITING,
    DeadEntry,
    GroupSlot,
    PendingEntry,
    StreamClaimed,
    StreamEntry,
    StreamSlot,
    Trimmed,
    body_of,
    content_of,
)
from rmq.topics import Topic

MAX_GROUPS = 100
"""Most groups on one topic: each keeps a place, a pending list and its dead in every slot."""

SCAN_LIMIT = 256
"""Pending entries that one claim looks at for leases that have run out."""

STREAM_TOTALS = "accepted copied trimmed deleted".split()
GROUP_TOTALS = (
    "fresh delivered acked retried expired released buried lost redriven resent skipped purged trimmed".split()
)


@dataclass(frozen=True, slots=True)
class Member:
    """A consumer of a group.

    Attributes:
        group: Name of the group.
        consumer: Name of the consumer; one of its own for each claimer.
    """

    group: str
    consumer: str


@dataclass(frozen=True, slots=True)
class StreamClaimReply(ClaimReply):
    """What a claim on a stream answers.

    Attributes:
        lost: Ids of entries that were trimmed or deleted before the group had acked them.
    """

    lost: tuple[bytes, ...] = ()


def send(topic: Topic, slot: int, messages: Sequence[Encoded], publish: str, detailed: bool) -> Call[SendResult]:
    """Build the sending of up to `MAX_BATCH` entries of one slot, in their order."""
    keys = slot_keys(topic.name, slot)
    args: list[Argument] = [publish, topic.max_backlog_per_slot, int(detailed), len(messages)]
    for message in messages:
        if message.flat:
            args.append(len(message.flat))
            args += message.flat
        elif message.body is None:
            args += (2, CONTENT, message.content)
        else:
            args += (4, CONTENT, message.content, BODY, message.body)
    number = len(messages)

    def parse(reply: list[bytes]) -> SendResult:
        if not detailed:
            return SendResult(number, 0)
        return SendResult(number, 0, (True,) * number, tuple(entry_id.decode() for entry_id in reply))

    names = (keys.store, keys.meta, keys.wake)
    return Call("stream_send", names, args, parse, True, topic.name, slot, durable=True)


def join(topic: Topic, slot: int, group: str, start: str) -> Call[bool]:
    """Build the registration of a group; answers whether it is new."""
    keys = slot_keys(topic.name, slot)
    names = (keys.store, keys.meta, group_keys(topic.name, slot, group).group)
    return Call("stream_join", names, [group, start, MAX_GROUPS], _flag, True, topic.name, slot)


def claim(
    topic: Topic,
    slot: int,
    member: Member,
    limit: int,
    publish: str,
    *,
    owner: Owner = NO_OWNER,
    acks: Iterable[Ack] = (),
    nacks: Sequence[Nack] = (),
    scan_limit: int = SCAN_LIMIT,
) -> Call[ClaimReply]:
    """Build the claim of up to `limit` entries (0 to `MAX_BATCH`), which first settles earlier deliveries."""
    keys, group = slot_keys(topic.name, slot), group_keys(topic.name, slot, member.group)
    args: list[Argument] = [owner.epoch, owner.ensemble, member.group, member.consumer, topic.lease_s * 1000]
    args += [topic.max_retries, limit, scan_limit, topic.max_dead_age_ms, topic.max_dead_per_slot, publish]
    args += nack_args(nacks)
    args += ack_args(acks)
    names = (keys.store, group.group, group.retry, group.dead, group.error, group.reason, group.dead_body, keys.wake)
    return Call("stream_claim", names, args, _parse_claim, False, topic.name, slot)


def extend(
    topic: Topic, slot: int, member: Member, claims: Sequence[Ack], owner: Owner = NO_OWNER
) -> Call[ExtendReply]:
    """Build the renewal of leases; the delivery counts, which are the tokens, stay."""
    keys, group = slot_keys(topic.name, slot), group_keys(topic.name, slot, member.group)
    args: list[Argument] = [owner.epoch, owner.ensemble, member.group, member.consumer]
    for entry_id, deliveries in claims:
        args += (deliveries, entry_id)
    counts = [deliveries for _, deliveries in claims]

    def parse(reply: list[bytes]) -> ExtendReply:
        flags = zip(reply[1], counts, strict=True)
        return ExtendReply(int(reply[0]), tuple(deliveries if flag == 49 else None for flag, deliveries in flags))

    names = (keys.store, group.group, group.retry, group.error)
    return Call("stream_extend", names, args, parse, False, topic.name, slot)


def look(topic: Topic, slots: Sequence[int], group: str) -> Call[tuple[int, list[int]]]:
    """Build the reading of Redis' time and of when each slot next has something to do (0 for never), ms."""
    names: list[str] = []
    for slot in slots:
        keys = group_keys(topic.name, slot, group)
        names += (slot_keys(topic.name, slot).store, keys.group, keys.retry)

    def parse(reply: list[bytes]) -> tuple[int, list[int]]:
        return int(reply[0]), [int(due) for due in reply[1:]]

    return Call("stream_look", tuple(names), [group], parse, True, topic.name, slots[0])


def trim(topic: Topic, slot: int, retention: Retention, *, now: bool = False) -> Call[Trimmed]:
    """Build a clean-up: where it is time for one, or `now`."""
    keys = slot_keys(topic.name, slot)
    length, age_ms = retention.max_length_of_slot(topic.slots), retention.max_age_ms
    args: list[Argument] = [0 if now else retention.every_ms, -1 if length is None else length]
    args += [-1 if age_ms is None else age_ms, int(retention.shrink), int(retention.approximate)]
    args.append(int(retention.unacked))

    def parse(reply: list[bytes]) -> Trimmed:
        return Trimmed(slot, reply[0] == b"1", int(reply[1]), reply[2] == b"1", int(reply[3]))

    names = (keys.store, keys.meta, sizes_key(topic.name, slot))
    return Call("stream_trim", names, args, parse, True, topic.name, slot)


def delete(topic: Topic, slot: int, ids: Sequence[str]) -> Call[int]:
    """Build the deletion of up to `MAX_BATCH` entries."""
    keys = slot_keys(topic.name, slot)
    return Call("stream_delete", (keys.store, keys.meta), list(ids), int, True, topic.name, slot)


def read_range(topic: Topic, slot: int, first: str, last: str, limit: int, *, down: bool) -> Call[list[StreamEntry]]:
    """Build the reading of a page of up to `MAX_BATCH` entries; `first` and `last` as XRANGE takes them."""

    def parse(reply: list[Any]) -> list[StreamEntry]:
        return [StreamEntry(topic.name, slot, entry_id.decode(), tuple(flat)) for entry_id, flat in reply]

    args: list[Argument] = [first, last, limit, "down" if down else "up"]
    return Call("stream_range", (slot_keys(topic.name, slot).store,), args, parse, True, topic.name, slot)


def stats(topic: Topic, slot: int) -> Call[StreamSlot]:
    """Build the reading of a slot's length, ends, groups and totals."""
    keys = slot_keys(topic.name, slot)

    def parse(reply: list[Any]) -> StreamSlot:
        now_ms, length, first, last, totals, groups = reply
        names = tuple(sorted(found[1].decode() for found in groups))
        numbers = _totals(STREAM_TOTALS, totals)
        return StreamSlot(topic.name, slot, int(now_ms), int(length), first.decode(), last.decode(), names, numbers)

    return Call("stream_stats", (keys.store, keys.meta), list(STREAM_TOTALS), parse, True, topic.name, slot)


def group_stats(topic: Topic, slot: int, group: str) -> Call[GroupSlot]:
    """Build the reading of what a group has done and has left to do in one slot."""
    keys, own = slot_keys(topic.name, slot), group_keys(topic.name, slot, group)

    def parse(reply: list[Any]) -> GroupSlot:
        last_id, pending, waiting, dead, lag, epoch, paused, oldest, totals = reply
        sizes = (int(pending), int(waiting), int(dead), int(lag) if lag else None)
        return GroupSlot(
            topic.name, slot, group, last_id.decode(), *sizes, int(epoch), paused == b"1", oldest.decode(),
            _totals(GROUP_TOTALS, totals),
        )  # fmt: skip

    names = (keys.store, keys.meta, own.group, own.retry, own.dead)
    return Call("stream_group", names, [group, *GROUP_TOTALS], parse, True, topic.name, slot)


def consumers(topic: Topic, slot: int, group: str) -> Call[list[tuple[str, int, int]]]:
    """Build the reading of a group's consumers: name, pending, idle ms."""

    def parse(reply: list[Any]) -> list[tuple[str, int, int]]:
        return [(row[1].decode(errors="backslashreplace"), row[3], row[5]) for row in reply]

    return Call("stream_consumers", (slot_keys(topic.name, slot).store,), [group], parse, True, topic.name, slot)


def pending(
    topic: Topic, slot: int, group: str, after: str | None, limit: int, consumer: str
) -> Call[list[PendingEntry]]:
    """Build the reading of a page of what a group has not acked."""

    def parse(reply: list[Any]) -> list[PendingEntry]:
        rows = [(row[0].decode(), row[1].decode(errors="backslashreplace"), row[2], row[3]) for row in reply]
        return [PendingEntry(slot, id_, None if name == WAITING else name, idle, n) for id_, name, idle, n in rows]

    args: list[Argument] = [group, "-" if after is None else f"({after}", limit, consumer]
    return Call("stream_pending", (slot_keys(topic.name, slot).store,), args, parse, True, topic.name, slot)


def forget(
    topic: Topic, slot: int, group: str, consumer: str, idle_ms: int, limit: int, publish: str
) -> Call[tuple[int, int]]:
    """Build the removal of consumers: how many were removed, and how many deliveries were given back."""
    keys, own = slot_keys(topic.name, slot), group_keys(topic.name, slot, group)

    def parse(reply: list[int]) -> tuple[int, int]:
        return reply[0], reply[1]

    names = (keys.store, own.group, own.retry, own.error, keys.wake)
    return Call("stream_forget", names, [group, consumer, idle_ms, limit, publish], parse, True, topic.name, slot)


def drop_group(topic: Topic, slot: int, group: str) -> Call[bool]:
    """Build the removal of a group with all that it has; answers whether it was there."""
    own = group_keys(topic.name, slot, group)
    names = (slot_keys(topic.name, slot).store, *_all_of(own))
    return Call("stream_drop_group", names, [group], _flag, True, topic.name, slot)


def list_dead(topic: Topic, slot: int, group: str, start: int, limit: int) -> Call[list[DeadEntry]]:
    """Build the reading of a page of a group's dead, the longest dead first."""
    own = group_keys(topic.name, slot, group)

    def parse(reply: list[Any]) -> list[DeadEntry]:
        return [_dead_entry(topic.name, slot, group, *row) for row in reply]

    names = (own.dead, own.reason, own.dead_body)
    return Call("stream_list_dead", names, [start, limit], parse, True, topic.name, slot)


def redrive(topic: Topic, slot: int, group: str, ids: Sequence[str], publish: str) -> Call[list[Redriven]]:
    """Build the redrive of dead entries into the group in which they died."""
    keys, own = slot_keys(topic.name, slot), group_keys(topic.name, slot, group)
    names = (keys.store, keys.meta, own.group, own.retry, own.dead, own.reason, own.dead_body, keys.wake)

    def parse(reply: list[bytes]) -> list[Redriven]:
        return [Redriven(answer.decode()) for answer in reply]

    return Call("stream_redrive", names, [group, publish, *ids], parse, True, topic.name, slot)


def purge_dead(topic: Topic, slot: int, group: str, ids: Sequence[str]) -> Call[int]:
    """Build the purge of dead entries."""
    own = group_keys(topic.name, slot, group)
    names = (own.dead, own.group, own.reason, own.dead_body, slot_keys(topic.name, slot).audit)
    return Call("purge_dead", names, ["+inf", 0, "", *ids], int, True, topic.name, slot)


def _all_of(keys: GroupKeys) -> tuple[str, ...]:
    return keys.group, keys.retry, keys.dead, keys.error, keys.reason, keys.dead_body


def _flag(reply: bytes) -> bool:
    return reply == b"1"


def _totals(names: Sequence[str], values: Sequence[bytes | None]) -> dict[str, int]:
    return {name: int(value) for name, value in zip(names, values, strict=True) if value is not None}


def _parse_claim(reply: list[Any]) -> ClaimReply:
    now_ms, next_due_ms, swept, stale, items, lost = reply
    messages: list[StreamClaimed] = []
    at = 0
    while at < len(items):
        deliveries, first = items[at + 1], at + 3
        last = first + items[at + 2]
        flat = items[first:last]
        messages.append(StreamClaimed(content_of(flat), deliveries, deliveries, body_of(flat), items[at], flat))
        at = last
    claimed = cast("tuple[Claimed, ...]", tuple(messages))
    return StreamClaimReply(int(now_ms), int(next_due_ms), 0, int(swept), tuple(stale), claimed, (), tuple(lost))


def _dead_entry(
    topic: str, slot: int, group: str, entry_id: bytes, died: bytes, reason: bytes, flat: list[bytes]
) -> DeadEntry:
    died_ms = int(died)
    record: dict[str, Any] = json.loads(reason.decode(errors="replace")) if reason else {}
    return DeadEntry(
        topic,
        slot,
        content_of(flat),
        body_of(flat),
        died_ms,
        error_type=record.get("type", ""),
        error_message=record.get("message", ""),
        attempts=int(record.get("attempts", 0)),
        first_failed_ms=int(record.get("first_ms", died_ms)),
        last_failed_ms=int(record.get("last_ms", died_ms)),
        id=entry_id.decode(),
        group=group,
        flat=tuple(flat),
    )
