"""Calls of the scripts with which producers and consumers use stream topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import Any, cast

from rmq._broker.binding import SAFE_AGAIN, BoundScript, refusal
from rmq._broker.claims import LOOKS, Ack, Claims, Settlements, SlotNames, due_times, renewal_args, rest_of
from rmq._broker.keys import group_keys
from rmq._io.wire import Argument
from rmq._model.batches import EncodedMessage, Messages
from rmq._model.entries import Trimmed, body_of, content_of, own_score
from rmq._model.messages import BODY, CONTENT, is_open_id
from rmq._model.replies import NO_OWNER, ClaimReply, ExtendReply, Owner, SendResult, StreamClaimed
from rmq._model.topics import Retention, Topic
from rmq._transport.call import Call, is_one
from rmq._transport.rpc_ids import RpcId
from rmq.errors import EntryIdError, TooManyGroupsError

_SEND = BoundScript(
    "stream_send",
    {
        "RMQ_ID": refusal(EntryIdError, "id {} is not greater than {}, the last id of {target}"),
        "RMQ_IDS": refusal(
            EntryIdError, "{} of {} entries for {target} have an id; all entries of a call must have one, or none"
        ),
    },
    durable="Sending them again appends entries without `id=` a second time; those with `id=` are not stored twice",
)
OPEN_AGAIN = (
    "If it is sent again, an entry whose id ends in -* is stored twice, or is refused although it is stored, if a "
    "larger id was added meanwhile; `StreamTopic.range` shows whether it is there"
)
"""Warning for a caller who repeats a send with such ids."""

_LOOK = BoundScript("stream_look")
_CLAIM, _EXTEND = (BoundScript(f"stream_{verb}", repeatable=False) for verb in ("claim", "extend"))
_SETTLE = BoundScript("stream_settle", repeatable=False)
_ACKED_SLOT: SlotNames = attrgetter("store", "group", "retry", "error", "wake")
_NACKED_SLOT: SlotNames = attrgetter("store", "group", "retry", "error", "wake", "dead", "reason", "dead_body")
_TRIM = BoundScript("stream_trim", durable=SAFE_AGAIN)
_RESUME, _FORGET = BoundScript("stream_resume"), BoundScript("stream_forget")

_GROUPS = "{target} has {} groups, which is the maximum; remove one with `StreamTopic.remove_group`"
_JOIN = BoundScript("stream_join", {"RMQ_GROUPS": refusal(TooManyGroupsError, _GROUPS)})
MAX_GROUPS = 100
"""Maximum number of groups on a topic: each keeps a position, a pending list and dead entries in every slot."""

FIRST_BYTES = 9 * 1_048_576
"""Maximum bytes that a claim may read before the size of entries is known, if all have the topic's maximum size."""

SCAN_LIMIT = 256
"""Maximum number of pending entries that one claim checks for expired leases."""


@dataclass(frozen=True, slots=True)
class Member:
    """A consumer of a group.

    Attributes:
        group: Name of the group.
        consumer: Name of the consumer, different for each planner.
    """

    group: str
    consumer: str


def sends(topic: Topic) -> Callable[..., Call[SendResult]]:
    """Return a function that builds calls to send up to `MAX_BATCH` entries in order; see `SendCall`."""
    args_of = _SEND.args_with(**_SEND.settings_of(topic))

    def send(
        slot: int, messages: Messages, detailed: bool = False, rpc_id: RpcId | None = None, partly: str = ""
    ) -> Call[SendResult]:
        del partly
        number = len(messages)

        def parse(reply: list[bytes]) -> SendResult:
            ids = tuple(entry_id.decode() for entry_id in reply) if detailed else ()
            return SendResult(number, 0, (True,) * len(ids), ids)

        keys, chunk = _SEND.keys_of(topic, slot), ""
        if rpc_id is not None and rpc_id.key:
            keys, chunk = (*keys, rpc_id.key), rpc_id.chunk
        args = args_of(detailed=int(detailed), number=number, chunk=chunk, messages=entry_args(messages))
        call = Call(_SEND.name, keys, args, parse, True, topic.name, slot, _SEND.durable, _SEND.refusals)
        if any(message.fields and is_open_id(message.fields) for message in messages):
            return call._replace(repeatable=False, durable=OPEN_AGAIN)
        return call

    return send


def entry_args(messages: Iterable[EncodedMessage]) -> list[Argument]:
    """Return entries as arguments of append_entries."""
    args: list[Argument] = []
    for message in messages:
        if message.fields:
            args.append(len(message.fields))
            args += message.fields
        elif message.body is None:
            args += (2, CONTENT, message.content)
        else:
            args += (4, CONTENT, message.content, BODY, message.body)
    return args


def join(topic: Topic, slot: int, group: str, start: str) -> Call[bool]:
    """Return a call that registers a group; its result is whether the group is new."""
    return _JOIN.call(topic, slot, is_one, group=group, start=start, max_groups=MAX_GROUPS)


def stream_claims(topic: Topic, member: Member) -> Claims[Sequence[StreamClaimed]]:
    """Return the claims of a consumer of a group."""
    return Claims(
        _CLAIM,
        topic,
        member.group,
        claimed_entries,
        consumer=member.consumer,
        scan_limit=SCAN_LIMIT,
        piece=max(1, FIRST_BYTES // (topic.max_content_bytes + topic.max_body_bytes)),
    )


def settlements(topic: Topic, member: Member) -> Settlements:
    """Return the builder of a consumer's settlements."""

    def keys_of(slot: int, nacked: bool) -> tuple[str, ...]:
        return (_NACKED_SLOT if nacked else _ACKED_SLOT)(group_keys(topic.name, slot, member.group))

    return Settlements(topic, _SETTLE, keys_of, group=member.group, consumer=member.consumer)


def extend(
    topic: Topic, slot: int, member: Member, claims: Sequence[Ack], owner: Owner = NO_OWNER
) -> Call[ExtendReply]:
    """Return a call that renews leases; the delivery counts, which are the tokens, do not change."""
    args: dict[str, Any] = {"consumer": member.consumer, "epoch": owner.epoch, "ensemble": owner.ensemble}

    def parse(reply: list[bytes]) -> ExtendReply:
        flags = zip(reply[1], claims, strict=True)
        return ExtendReply(int(reply[0]), tuple(count if flag == 49 else None for flag, (_, count) in flags))

    return _EXTEND.call(topic, slot, parse, group=member.group, **args, claims=renewal_args(claims))


def look(topic: Topic, slots: Sequence[int], group: str) -> Call[tuple[int, list[int]]]:
    """Return a call that reads Redis' time and the time at which each slot is due next (0 for never), ms."""
    each = [group_keys(topic.name, slot, group) for slot in slots]
    names = [name for keys in each for name in (keys.store, keys.group, keys.retry)]
    groups = (group, topic.lease_ms) * len(slots)
    return _LOOK.call_on(topic.name, due_times, tuple(names), slot=slots[0], groups=groups)._replace(joining=LOOKS)


def trim(topic: Topic, slot: int, retention: Retention, *, now: bool = False) -> Call[Trimmed]:
    """Return a call that trims a slot if that is due, or unconditionally with `now`."""
    length, age_ms = retention.max_length_of_slot(topic.slots), retention.max_age_ms
    args: dict[str, Any] = {
        "every_ms": 0 if now else retention.every_ms,
        "max_length": -1 if length is None else length,
        "max_age_ms": -1 if age_ms is None else age_ms,
        "shrink": int(retention.shrink),
        "approximate": int(retention.approximate),
        "unacked": int(retention.unacked),
    }

    def parse(reply: list[bytes]) -> Trimmed:
        return Trimmed(slot, is_one(reply[0]), int(reply[1]), is_one(reply[2]), int(reply[3]))

    return _TRIM.call(topic, slot, parse, durable=now, **args)


def forget(topic: Topic, slot: int, group: str, consumer: str, idle_ms: int, limit: int) -> Call[tuple[int, int]]:
    """Return a call that removes consumers; its result is the number of consumers and of released deliveries."""
    return _FORGET.call(topic, slot, tuple, group=group, consumer=consumer, idle_ms=idle_ms, limit=limit)


def resume(topic: Topic, slot: int, member: Member, limit: int) -> Call[tuple[bool, int, tuple[bytes, ...]]]:
    """Return a call that releases the deliveries of an earlier process of this name.

    Its result is whether there may be more, the number of entries, and the ids of deleted ones.
    """

    def parse(reply: list[Any]) -> tuple[bool, int, tuple[bytes, ...]]:
        return bool(reply[0]), reply[1], tuple(reply[2])

    return _RESUME.call(topic, slot, parse, group=member.group, consumer=member.consumer, limit=limit)


_claimed = cast(
    "Callable[[tuple[bytes, int, int, bytes | None, bytes, Any]], StreamClaimed]",
    partial(tuple.__new__, StreamClaimed),  # pyright: ignore[reportUnknownMemberType] - see `rmq._broker.claims`
)


def claimed_entries(reply: list[Any]) -> ClaimReply[Sequence[StreamClaimed]]:
    """Parse the reply to one claim."""
    now_ms, next_due_ms, swept, stale, items, lost, ids, contents, tail, unmatched, stamp, number = reply[:12]
    first = own_score(int(stamp))
    messages = _entries(items or (), first)
    if ids:  # nothing of Python's own per entry: most of a claim's cost is here
        messages += map(_claimed, zip(contents, repeat(1), repeat(first), repeat(None), ids, repeat(()), strict=False))
        messages += _entries(tail or (), first)
    return ClaimReply(
        int(now_ms),
        int(next_due_ms),
        0,
        int(swept),
        tuple(stale or ()),
        tuple(messages),
        tuple(map(int, unmatched or ())),
        tuple(lost or ()),
        (first, int(number)) if stamp != b"0" else None,
        *rest_of(reply[12:]),
    )


def _entries(items: Sequence[Any], own: int) -> list[StreamClaimed]:
    """Parse entries with all fields; `own` is the claim score of those read under the claim's own consumer name."""
    messages: list[StreamClaimed] = []
    at = 0
    while at < len(items):
        deliveries, first = items[at + 1] or own, at + 3
        last = first + items[at + 2]
        flat = items[first:last]
        messages.append(_claimed((content_of(flat), deliveries, deliveries, body_of(flat), items[at], flat)))
        at = last
    return messages
