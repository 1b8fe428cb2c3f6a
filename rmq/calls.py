"""Builds script calls and parses their replies. No I/O: the sync and the asyncio side share it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar, cast

from rmq.envelope import unwrap
from rmq.errors import (
    BacklogFullError,
    BatchAckedError,
    BatchLostError,
    DriverReplacedError,
    EnsembleMismatchError,
    FencedError,
    FixedTimePassedError,
    MemoryFullError,
    RmqError,
    ScriptFailedError,
    TooManyGroupsError,
)
from rmq.keys import SlotKeys, group_keys, slot_keys
from rmq.messages import Encoded
from rmq.ownership import NO_OWNER, Owner
from rmq.results import Claimed, ClaimReply, ControlResult, DeadMessage, ExtendReply, Redriven, SendResult, SlotStats
from rmq.scores import retries_left_after_claim, retries_left_of, stamped
from rmq.topics import Topic, TopicType

T = TypeVar("T")
Argument = bytes | str | int

MAX_BATCH = 1_000
"""Most messages in one script call: `unpack` takes 7,999 values, and a script that has written can't be stopped."""

SWEEP_LIMIT = 256
"""Most expired leases and most due retries that one claim moves; the rest follows with the next claim."""

TOTALS = (
    "accepted merged delivered acked retried expired released exhausted buried redriven cancelled purged trimmed"
    " adopted dropped ttl_expired"
).split()
"""Names of the counters in a slot's meta."""

_SEND_SCRIPTS = {
    TopicType.RANGE_MERGE: "send_range_merge",
    TopicType.PRIORITY: "send_priority",
    TopicType.FIXED_TIME: "send_fixed_time",
}


class Call(NamedTuple, Generic[T]):
    """One script call on one slot.

    Attributes:
        script: Name of the script.
        keys: The slot's keys that it takes.
        args: Its arguments.
        parse: Turns the reply into a value.
        repeatable: Whether it may be sent again when its reply was lost.
        topic: Topic name, for errors.
        slot: Slot number, for errors.
        durable: Whether it counts only once it is as safe as the client's durability level asks.
    """

    script: str
    keys: tuple[str, ...]
    args: Sequence[Argument]
    parse: Callable[[Any], T]
    repeatable: bool
    topic: str
    slot: int
    durable: bool = False


@dataclass(frozen=True, slots=True)
class Nack:
    """A delivery to roll back.

    Attributes:
        content: The content.
        claim_score: Token of the claim.
        verb: `retry`, `bury` or `release`.
        number: `retry`: delay in ms, 0 for at once; `release`: the store score it had; else 0.
        error_type: Why, e.g. `ValueError`.
        error_message: Why, in words.
    """

    content: bytes
    claim_score: int
    verb: str = "retry"
    number: int = 0
    error_type: str = ""
    error_message: str = ""


Ack = tuple[bytes, int]
"""Content and claim score of a delivery that is done."""

Renewal = tuple[int, Sequence[Ack], Owner]
"""A slot, the deliveries whose lease is to be renewed there, and the owner that claimed them."""

RENEWAL_PATIENCE_S = 0.25
"""How long renewals that were answered wait for those in slots of a server that is down."""

WholeClaim = tuple[int, int, bytes]
"""Claim score, number of all the deliveries of a slot that have it, every one of them done, and the name of one."""


def send(
    topic: Topic, slot: int, messages: Sequence[Encoded], publish: str, detailed: bool = False
) -> Call[SendResult]:
    """Build the send of up to `MAX_BATCH` messages of one slot."""
    keys = slot_keys(topic.name, slot)
    ages = topic.ttl is not None and not topic.type.timed
    limited = topic.drops or ages
    args: list[Argument] = [publish, topic.max_backlog_per_slot, int(detailed), len(messages)]
    if topic.type.timed:
        args.append(min(message.score for message in messages))
    if limited:
        args += [] if topic.type.timed else [0]
        args += (topic.type.value, int(topic.drops), topic.max_retries, int(ages))
    for message in messages:
        args.append(message.score)
        args.append(message.content)
    for index, message in enumerate(messages, 1):
        if message.body is not None:
            args.append(index)
            args.append(message.body)
    number = len(messages)

    def parse(reply: list[bytes]) -> SendResult:
        new = int(reply[0])
        outcomes = tuple(flag == 49 for flag in reply[1]) if detailed else ()
        return SendResult(new, number - new, outcomes, dropped=int(reply[2]) if limited else 0)

    names = (keys.store, keys.prepare, keys.body, keys.meta, keys.wake)
    if limited:
        names += (keys.retry, keys.error, keys.born)
        return Call("send_limited", names, args, parse, True, topic.name, slot, durable=True)
    return Call(_SEND_SCRIPTS[topic.type], names, args, parse, True, topic.name, slot, durable=True)


def claim(
    topic: Topic,
    slot: int,
    limit: int,
    *,
    owner: Owner = NO_OWNER,
    start: int = 0,
    acks: Iterable[Ack] = (),
    nacks: Sequence[Nack] = (),
    whole: Sequence[WholeClaim] = (),
    sweep_limit: int = SWEEP_LIMIT,
) -> Call[ClaimReply]:
    """Build the claim of up to `limit` messages (0 to `MAX_BATCH`), which first settles earlier deliveries.

    `whole` acks claims of which every delivery is done, naming one of them: cheaper for all sides.
    """
    max_retries = topic.max_retries
    args: list[Argument] = [
        owner.epoch, owner.ensemble, topic.lease_s, max_retries, order_of(topic), limit, start, sweep_limit,
        topic.max_dead_age_ms, topic.max_dead_per_slot,
    ]  # fmt: skip
    args += nack_args(nacks)
    args += ack_args(acks)
    args.append(len(whole))
    for each in whole:
        args += each
    if topic.ttl is not None:
        args.append(cast(int, topic.ttl_ms))

    def parse(reply: list[Any]) -> ClaimReply:
        return _parse_claim(reply, max_retries)

    keys = _claim_keys(topic.name, slot, topic.ttl is not None and not topic.type.timed)
    return Call("claim", keys, args, parse, False, topic.name, slot)


def claim_many(
    claims: Sequence[Call[ClaimReply]], brief: Sequence[bool] | None = None
) -> Call[list[ClaimReply | RmqError]]:
    """Build one call of several claims of a topic, where a script may touch several slots; it answers each by itself.

    `brief`: which of them, with limit 0, shall settle only, where that saves something, and not sweep.
    """
    first = claims[0]
    names: list[str] = []
    args: list[Argument] = [len(first.keys), *first.args[2:5], *first.args[7:10]]
    for claim, settle_only in zip(claims, brief or repeat(False), strict=False):
        names += claim.keys
        own = claim.args
        args += (len(own) - 6, own[0], own[1], -1 if settle_only else own[5], own[6], *own[10:])

    def parse(reply: list[Any]) -> list[ClaimReply | RmqError]:
        return [_parse_one_of_many(claim, each) for claim, each in zip(claims, reply, strict=True)]

    return Call("claim_many", tuple(names), args, parse, False, first.topic, first.slot)


def _parse_one_of_many(claim: Call[ClaimReply], reply: Any) -> ClaimReply | RmqError:
    return error_of(claim, reply.decode(errors="replace")) if isinstance(reply, bytes) else claim.parse(reply)


def ack(topic: Topic, slot: int, acks: Iterable[Ack], owner: Owner = NO_OWNER) -> Call[tuple[bytes, ...]]:
    """Build the ack of deliveries; answers the contents whose claim was stale."""
    keys = slot_keys(topic.name, slot)
    names = (keys.store, keys.prepare, keys.body, keys.meta, keys.error)
    args: list[Argument] = [owner.epoch, owner.ensemble, *ack_args(acks)]
    return Call("ack", names, args, _contents, False, topic.name, slot)


def nack(
    topic: Topic, slot: int, nacks: Sequence[Nack], publish: str, owner: Owner = NO_OWNER
) -> Call[tuple[bytes, ...]]:
    """Build the nack of deliveries; answers the contents whose claim was stale."""
    keys = slot_keys(topic.name, slot)
    args: list[Argument] = [owner.epoch, owner.ensemble, topic.max_retries]
    args += [topic.max_dead_age_ms, topic.max_dead_per_slot, publish]
    args += nack_args(nacks)
    return Call("nack", (*all_keys(keys), keys.wake, *_born(topic, keys)), args, _contents, False, topic.name, slot)


def extend(topic: Topic, slot: int, claims: Sequence[Ack], owner: Owner = NO_OWNER) -> Call[ExtendReply]:
    """Build the renewal of leases."""
    keys = slot_keys(topic.name, slot)
    args: list[Argument] = [owner.epoch, owner.ensemble]
    for content, claim_score in claims:
        args.append(claim_score)
        args.append(content)
    lefts = [retries_left_of(claim_score) for _, claim_score in claims]

    def parse(reply: list[bytes]) -> ExtendReply:
        now_ms = int(reply[0])
        flags = zip(reply[1], lefts, strict=True)
        return ExtendReply(now_ms, tuple(stamped(now_ms // 1000, left) if flag == 49 else None for flag, left in flags))

    return Call("extend", (keys.store, keys.prepare, keys.meta), args, parse, False, topic.name, slot)


def cancel(topic: Topic, slot: int, contents: Sequence[bytes], actor: str = "") -> Call[list[ControlResult]]:
    """Build the cancellation of up to `MAX_BATCH` contents. An empty `actor`, here and below, leaves no audit line."""
    keys = slot_keys(topic.name, slot)
    names = (keys.store, keys.prepare, keys.retry, keys.body, keys.meta, keys.error, keys.audit)
    return Call("cancel", names, [actor, *contents], control_results, True, topic.name, slot)


def reschedule(
    topic: Topic,
    slot: int,
    contents: Sequence[bytes],
    kind: str,
    value: int,
    publish: str,
    actor: str = "",
    action: str = "reschedule",
) -> Call[list[ControlResult]]:
    """Build a new due time (`after` ms, `at` epoch ms) or `priority` for up to `MAX_BATCH` contents."""
    keys = slot_keys(topic.name, slot)
    names = (keys.store, keys.prepare, keys.retry, keys.meta, keys.wake, keys.audit)
    args: list[Argument] = [kind, value, publish, actor, action, *contents]
    return Call("reschedule", names, args, control_results, True, topic.name, slot)


def redrive(
    topic: Topic,
    slot: int,
    kind: str,
    value: int,
    *,
    overwrite: bool,
    limit: int,
    publish: str,
    contents: Sequence[bytes] = (),
    died_ms: Sequence[int] | None = None,
    actor: str = "",
) -> Call[list[Redriven]]:
    """Build the redrive of the named contents, or of the `limit` longest dead.

    With `died_ms`, one for each content, only of those that died at that time: one that died again since is absent.
    """
    keys = slot_keys(topic.name, slot)
    names = (keys.store, keys.dead, keys.body, keys.meta, keys.reason, keys.dead_body, keys.wake)
    names = (*names, keys.audit, *_born(topic, keys))
    args: list[Argument] = [kind, value, int(overwrite), limit, publish, actor, int(died_ms is not None)]
    if died_ms is None:
        args += contents
    else:
        args += (part for pair in zip(contents, died_ms, strict=True) for part in pair)

    def parse(reply: list[bytes]) -> list[Redriven]:
        return [Redriven(answer.decode()) for answer in reply]

    return Call("redrive", names, args, parse, bool(contents), topic.name, slot)


def purge_dead(
    topic: Topic,
    slot: int,
    *,
    before_ms: int | None = None,
    limit: int = MAX_BATCH,
    contents: Sequence[bytes] = (),
    actor: str = "",
) -> Call[int]:
    """Build the purge of the named contents, or of the `limit` longest dead that died before a time."""
    keys = slot_keys(topic.name, slot)
    names = (keys.dead, keys.meta, keys.reason, keys.dead_body, keys.audit)
    args: list[Argument] = ["+inf" if before_ms is None else before_ms, limit, actor, *contents]
    return Call("purge_dead", names, args, int, bool(contents), topic.name, slot)


@dataclass(frozen=True, slots=True)
class Adopted:
    """Whose a slot was, and whether it was moved.

    Attributes:
        ensemble: Identity of the ensemble that counted its epochs; empty when nobody has owned it.
        epoch: The highest epoch that has touched it.
        moved: Whether this call moved it.
    """

    ensemble: str
    epoch: int
    moved: bool


def adopt(topic: Topic, slot: int, from_ensemble: str, to_ensemble: str, group: str | None = None) -> Call[Adopted]:
    """Build the move of a slot, or of a group's part of it, to another ensemble; without `from_ensemble` it reads."""
    key = slot_keys(topic.name, slot).meta if group is None else group_keys(topic.name, slot, group).group

    def parse(reply: list[bytes]) -> Adopted:
        return Adopted(reply[0].decode(), int(reply[1]), reply[2] == b"1")

    return Call("adopt", (key,), [from_ensemble, to_ensemble], parse, True, topic.name, slot)


def list_dead(topic: Topic, slot: int, start: int, limit: int) -> Call[list[DeadMessage]]:
    """Build the reading of a page of the dead, the longest dead first."""
    keys = slot_keys(topic.name, slot)

    def parse(reply: list[Any]) -> list[DeadMessage]:
        page, reasons, bodies = reply
        pairs = list(zip(page[::2], page[1::2], strict=True))
        rows = zip(pairs, reasons, bodies or [None] * len(pairs), strict=True)
        return [dead_message(topic.name, slot, *pair, reason, body) for pair, reason, body in rows]

    names = (keys.dead, keys.reason, keys.dead_body)
    return Call("list_dead", names, [start, limit], parse, True, topic.name, slot)


def peek(
    topic: Topic, slot: int, place: str, start: int, limit: int
) -> Call[tuple[int, list[tuple[bytes, int, bytes | None]]]]:
    """Build the reading of a page of `store`, `prepare` or `retry`: Redis' time, then (content, score, body)."""
    keys = slot_keys(topic.name, slot)
    zset = {"store": keys.store, "prepare": keys.prepare, "retry": keys.retry}[place]
    order = order_of(topic) if place == "store" else "low"

    def parse(reply: list[Any]) -> tuple[int, list[tuple[bytes, int, bytes | None]]]:
        now_ms, page, bodies = reply
        contents, scores = page[::2], page[1::2]
        rows = zip(contents, scores, bodies or [None] * len(contents), strict=True)
        return int(now_ms), [(content, int(score), unwrap(body)[0]) for content, score, body in rows]

    return Call("peek", (zset, keys.body), [order, start, limit], parse, True, topic.name, slot)


def stats(topic: Topic, slot: int) -> Call[SlotStats]:
    """Build the reading of a slot's sizes and totals."""
    keys = slot_keys(topic.name, slot)

    def parse(reply: list[Any]) -> SlotStats:
        now_ms, backlog, due_now, in_flight, waiting, dead, lowest, next_due_ms, epoch = map(_whole, reply[:9])
        oldest = None
        if backlog:
            oldest = lowest if topic.type.timed and lowest > topic.max_retries else now_ms
        totals = {name: int(value) for name, value in zip(TOTALS, reply[10], strict=True) if value is not None}
        sizes = (backlog, due_now, in_flight, waiting, dead)
        return SlotStats(topic.name, slot, now_ms, *sizes, oldest, next_due_ms, epoch, reply[9] == b"1", totals)

    names = (keys.store, keys.prepare, keys.retry, keys.dead, keys.meta)
    return Call("stats", names, [order_of(topic), topic.lease_s, *TOTALS], parse, True, topic.name, slot)


def look(topic: Topic, slots: Sequence[int]) -> Call[tuple[int, list[int]]]:
    """Build the reading of Redis' time and of when each slot next has something to do (0 for never), ms."""
    names: list[str] = []
    for slot in slots:
        keys = slot_keys(topic.name, slot)
        names += (keys.store, keys.prepare, keys.retry, keys.meta)

    def parse(reply: list[bytes]) -> tuple[int, list[int]]:
        return int(reply[0]), [int(due) for due in reply[1:]]

    return Call("look", tuple(names), [order_of(topic), topic.lease_s], parse, True, topic.name, slots[0])


def error_of(call: Call[Any], message: str) -> RmqError:
    """Turn an error reply into the error that the caller sees.

    Args:
        call: The call that was refused.
        message: Text of the error reply.
    """
    topic, slot = call.topic, call.slot
    place = f"slot {call.slot} of topic {call.topic}"
    code, _, rest = message.removeprefix("ERR ").partition(" ")
    detail = rest.split()
    match code:
        case "RMQ_FENCED" if call.args[0] == 0:
            return FencedError(
                f"{place} is owned through ZooKeeper (epoch {detail[0]}), and this client has none: "
                f"give it zookeeper=..., or move the topic away with `rmq adopt {topic} --no-zookeeper`",
                topic=topic,
                slot=slot,
            )
        case "RMQ_FENCED":
            return FencedError(
                f"{place} was touched by a newer owner (epoch {detail[0]}); this one's is older", topic=topic, slot=slot
            )
        case "RMQ_ENSEMBLE":
            return EnsembleMismatchError(
                f"{place} is owned through ZooKeeper ensemble {detail[0]}, not through this one; "
                f"`rmq adopt {call.topic}` moves it over on purpose",
                topic=topic,
                slot=slot,
            )
        case "RMQ_PAST":
            value = call.args[4] if call.script.startswith("send_") else call.args[1]
            return FixedTimePassedError(
                f"fixed_time {value} does not lie ahead of Redis' time, {detail[0]} ms", topic=topic, slot=slot
            )
        case "RMQ_GROUPS":
            return TooManyGroupsError(
                f"{place} has {detail[0]} groups already; remove one, see `RmqClient.stream`", topic=topic, slot=slot
            )
        case "RMQ_ACKED" | "RMQ_COPIES" | "RMQ_DRIVER" | "RMQ_LOST":
            return _batch_error(code, place, detail[0], topic, slot)
        case "RMQ_FULL":
            full = BacklogFullError(
                f"{place} holds {detail[0]} messages; its share of max_backlog is {detail[1]}", topic=topic, slot=slot
            )
            full.room = max(0, int(detail[1]) - int(detail[0]))
            return full
        case _ if "OOM command not allowed" in message:
            return MemoryFullError(
                f"Redis is at its maxmemory and stored nothing in {place}; consume, or raise maxmemory",
                topic=topic,
                slot=slot,
            )
        case _:
            return ScriptFailedError(f"script {call.script} was refused on {place}: {message}", topic=topic, slot=slot)


def _batch_error(code: str, place: str, number: str, topic: str, slot: int) -> RmqError:
    """Turn the refusal of a Spark query's batch into its error."""
    kind, text = {
        "RMQ_ACKED": (
            BatchAckedError,
            f"this query's batches are acked up to {number}; who reads or acks an earlier one has come too late, or "
            "from an old copy of the checkpoint",
        ),
        "RMQ_COPIES": (
            BatchLostError,
            f"Redis has dropped copies of bodies of {number} messages of this batch, as it does at maxmemory under a "
            "volatile-* policy; set maxmemory-policy to noeviction and restart the query: they come again after their "
            "leases",
        ),
        "RMQ_DRIVER": (
            DriverReplacedError,
            f"a newer driver ({number}) runs this query; only one may run from a checkpoint or a copy of it",
        ),
        "RMQ_LOST": (
            BatchLostError,
            f"the leases of {number} messages ran out while their batch ran, and others took them; "
            "restart the query, or set failOnLeaseLost to false to go on without them",
        ),
    }[code]
    return kind(f"{place}: {text}", topic=topic, slot=slot)


def order_of(topic: Topic) -> str:
    """Return which messages of a topic go first, as scripts take it."""
    return "low" if topic.type.timed else "high"


def _born(topic: Topic, keys: SlotKeys) -> tuple[str, ...]:
    """Return the key that keeps times of sending, where they decide when a message is too old."""
    return () if topic.ttl is None or topic.type.timed else (keys.born,)


@lru_cache(maxsize=65_536)
def _claim_keys(topic: str, slot: int, ages: bool) -> tuple[str, ...]:
    keys = slot_keys(topic, slot)
    return (*all_keys(keys), keys.born) if ages else all_keys(keys)


def all_keys(keys: SlotKeys) -> tuple[str, ...]:
    """Return the keys of a slot that hold messages or what belongs to them."""
    return (
        keys.store, keys.prepare, keys.retry, keys.dead, keys.body, keys.meta, keys.error, keys.reason, keys.dead_body,
    )  # fmt: skip


_claim_score = itemgetter(1)


def ack_args(acks: Iterable[Ack]) -> list[Argument]:
    """Return acks as settle_acks takes them: those of a claim side by side cost least."""
    args: list[Argument] = [0]
    for claim_score, group in groupby(acks, key=_claim_score) if acks else ():
        contents = [content for content, _ in group]
        args += (claim_score, len(contents))
        args += contents
        args[0] = cast(int, args[0]) + 1
    return args


def nack_args(nacks: Sequence[Nack]) -> list[Argument]:
    """Return nacks as settle_nacks takes them."""
    args: list[Argument] = [len(nacks)]
    for nack in nacks:
        args += (nack.content, nack.claim_score, nack.verb, nack.number, nack.error_type, nack.error_message)
    return args


def _parse_claim(reply: list[Any], max_retries: int) -> ClaimReply:
    now_ms, next_due_ms, resume, swept, stale, items, bodies, unmatched = reply
    now = int(now_ms)
    if not items:
        return ClaimReply(now, int(next_due_ms), int(resume), int(swept), tuple(stale), (), tuple(map(int, unmatched)))
    second = now // 1000
    fresh = stamped(second, max_retries)
    messages: list[Claimed] = []
    for content, score, body in zip(items[::2], items[1::2], bodies or repeat(None), strict=False):
        store_score = int(score)
        claim_score = fresh
        if store_score <= max_retries:
            claim_score = stamped(second, retries_left_after_claim(store_score, max_retries))
        messages.append(Claimed(content, store_score, claim_score, body))
    return ClaimReply(
        now, int(next_due_ms), int(resume), int(swept), tuple(stale), tuple(messages), tuple(map(int, unmatched))
    )


def _contents(reply: list[bytes]) -> tuple[bytes, ...]:
    return tuple(reply)


def control_results(reply: list[bytes]) -> list[ControlResult]:
    """Parse what became of contents."""
    return [ControlResult(answer.decode()) for answer in reply]


def _whole(text: bytes) -> int:
    return int(float(text)) if text else 0


def dead_message(
    topic: str, slot: int, content: bytes, died: bytes, reason: bytes | None, body: bytes | None
) -> DeadMessage:
    """Return a dead message from what its keys hold."""
    died_ms = int(died)
    record: dict[str, Any] = json.loads(reason.decode(errors="replace")) if reason else {}
    return DeadMessage(
        topic,
        slot,
        content,
        unwrap(body)[0],
        died_ms,
        error_type=record.get("type", ""),
        error_message=record.get("message", ""),
        attempts=int(record.get("attempts", 0)),
        first_failed_ms=int(record.get("first_ms", died_ms)),
        last_failed_ms=int(record.get("last_ms", died_ms)),
    )
