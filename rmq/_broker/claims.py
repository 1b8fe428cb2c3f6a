"""Calls of the scripts that claim, settle and renew in one or several slots, and of the one that reads due times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any, Generic, NamedTuple, cast

from rmq._broker.binding import BoundScript
from rmq._broker.keys import slot_keys
from rmq._io.wire import Argument
from rmq._model.replies import NO_OWNER, Claimed, ClaimedRows, ClaimReply, ExtendReply, M, NackReply, Owner
from rmq._model.scores import Ties, retries_left_after_claim, retries_left_of, score_of, scores_of, stamped
from rmq._model.topics import Topic
from rmq._transport.call import Call
from rmq._transport.refusals import AOF_TROUBLE, error_of, parsed, reply_lost
from rmq.errors import RmqError


class JoinedClaims(Generic[M]):
    """Joins several claims from one kind of topic in one call. Each claim has its own reply.

    Args:
        one: The script that claims from one slot. Its last argument is `settlements`.
        many: The script that claims from several slots. Its arguments are `width`, the shared ones, `most_bytes`, and
            `claims`: for each slot the number of its values, and the values.
        shared: Names of the arguments that all claims share.
        per_slot: Names of the arguments of each slot, `limit` among them, in the order of `many`.
    """

    def __init__(self, one: BoundScript, many: BoundScript, shared: Sequence[str], per_slot: Sequence[str]) -> None:
        self._one, self._many = one, many
        self._shared, self._per_slot = shared, per_slot

    @cached_property
    def _places(self) -> tuple[list[int], list[int], int, int]:
        """Positions in a claim of the shared arguments, the slot's own ones, the settlements, and the limit."""
        [tail] = self._one.places(["settlements"])
        return self._one.places(self._shared), self._one.places(self._per_slot), tail, self._per_slot.index("limit") + 1

    def __call__(
        self, claims: Sequence[Call[ClaimReply[M]]], most_bytes: int, limits: Sequence[int | None] | None = None
    ) -> Call[list[ClaimReply[M] | RmqError]]:
        """Return one call for several claims from one topic.

        Args:
            claims: Calls of `one`.
            most_bytes: Maximum of bytes that all claims together return.
            limits: Limits that replace those of the claims, unless `None`.

        The shared arguments are those of the last claim.
        """
        first = claims[0]
        shared_at, per_slot_at, tail, limit_at = self._places
        per_slot_of = itemgetter(*per_slot_at)
        names: list[str] = []
        slots: list[Argument] = []
        for call, limit in zip(claims, limits or repeat(None), strict=False):
            args, at = call.args, len(slots)
            names += call.keys
            slots.append(len(per_slot_at) + len(args) - tail)
            slots += per_slot_of(args)
            slots += args[tail:]
            if limit is not None:
                slots[at + limit_at] = limit
        shared = {name: claims[-1].args[at] for name, at in zip(self._shared, shared_at, strict=True)}
        args = self._many.args(width=len(first.keys), most_bytes=most_bytes, claims=slots, **shared)
        parse = partial(_parse, claims)
        return Call(self._many.name, tuple(names), args, parse, self._many.repeatable, first.topic, first.slot)


def _parse(claims: Sequence[Call[ClaimReply[M]]], reply: list[Any]) -> list[ClaimReply[M] | RmqError]:
    return [_parse_one(claim, each) for claim, each in zip(claims, reply, strict=True)]


def _parse_one(claim: Call[ClaimReply[M]], reply: Any) -> ClaimReply[M] | RmqError:
    if not isinstance(reply, bytes):
        try:
            return parsed(claim, reply)
        except RmqError as error:  # what the other slots have claimed is handed over all the same
            return error
    text = reply.decode(errors="replace")
    return reply_lost(claim, text) if AOF_TROUBLE in text else error_of(claim, text)


_CLAIM, _CLAIM_MANY = BoundScript("claim", repeatable=False), BoundScript("claim_many", repeatable=False)
_JOINED: JoinedClaims[Claimed] = JoinedClaims(
    _CLAIM,
    _CLAIM_MANY,
    shared="lease_ms max_retries order sweep_limit max_dead_age_ms max_dead".split(),
    per_slot="epoch ensemble limit start".split(),
)
_ACK, _NACK, _EXTEND = (BoundScript(verb, repeatable=False) for verb in ("ack", "nack", "extend"))
_LOOK = BoundScript("look")

MAX_BATCH = 1_000
"""Most messages in one script call: `unpack` takes 7,999 values, and a script that has written can't be stopped."""

NACK_BATCH = 100
"""Most nacks, and most redrives or purges, in one call: each costs the server several commands."""

PIGGYBACKED_NACKS = 64
"""Most nacks in a slot that a claim carries, besides its other work."""

WHOLE_BATCH = 256
"""Most whole claims acked in one call: each costs the server several commands."""

RENEWALS = 256
"""Most leases that one call renews."""

CONTROL_BATCH = 256
"""Most messages that one call cancels, reschedules, promotes or deletes by name."""

CLAIM_BYTES = 4 * 1_048_576
"""Most bytes of contents and bodies in one claim; its first message may have more. The next claim gets the rest: a
script blocks all other clients, for about 2 ms per MiB."""

SWEEP_LIMIT = 256
"""Most expired leases and most due retries that one claim moves; the next claim moves the rest."""


@dataclass(frozen=True, slots=True)
class Nack:
    """A delivery to nack, bury or release.

    Attributes:
        content: The content.
        claim_score: Token of the claim.
        verb: `retry`, `spare`, `bury` or `release`.
        number: `retry`: delay in ms, 0 for at once; `release`: the store score that it had; otherwise 0.
        error_type: Class of the error, such as `ValueError`.
        error_message: Text of the error.
    """

    content: bytes
    claim_score: int
    verb: str = "retry"
    number: int = 0
    error_type: str = ""
    error_message: str = ""


Ack = tuple[bytes, int]
"""Content and claim score of a delivery that is done."""

NewScore = tuple[str, int]
"""New due time or priority of a message: `after` and ms, `at` and epoch ms, or `priority` and the number."""

Renewal = tuple[int, Sequence[Ack], Owner]
"""A slot, the deliveries whose lease is to be renewed there, and the owner that claimed them."""

RENEWAL_PATIENCE_S = 0.25
"""How long renewals with a reply wait for the replies of a server that may be down, in seconds."""

WholeClaim = tuple[int, int]
"""Claim score, and the number of the deliveries in the slot that have it, all of which are done."""


class Outcomes(NamedTuple):
    """Outcomes of earlier deliveries of a slot.

    Attributes:
        acks: Acked deliveries, by name.
        nacks: Deliveries to nack, bury or release.
        whole: Claims of which every delivery is acked. They need no names, which costs less.
    """

    acks: Iterable[Ack] = ()
    nacks: Sequence[Nack] = ()
    whole: Sequence[WholeClaim] = ()


NO_OUTCOMES = Outcomes()


class Claims:
    """Factory of the claims of one topic. Arguments that are the same for all claims are computed once.

    Args:
        topic: The registered definition.
        sweep_limit: Most expired leases and most due retries that one claim moves.
    """

    def __init__(self, topic: Topic, sweep_limit: int = SWEEP_LIMIT) -> None:
        self._topic = topic.name
        self._keys_of = partial(_CLAIM.keys_of, topic)
        self._keys: dict[int, tuple[str, ...]] = {}
        self._ttl_ms = topic.ttl_ms
        self._parse = partial(_parse_claim, topic.max_retries)
        self._args = _CLAIM.args_with(
            lease_ms=topic.lease_ms,
            max_retries=topic.max_retries,
            order=claim_order_of(topic),
            sweep_limit=sweep_limit,
            max_dead_age_ms=topic.max_dead_age_ms,
            max_dead=topic.max_dead_per_slot,
        )

    def __call__(
        self,
        slot: int,
        limit: int,
        outcomes: Outcomes = NO_OUTCOMES,
        *,
        owner: Owner = NO_OWNER,
        start: int = 0,
        most_bytes: int = CLAIM_BYTES,
    ) -> Call[ClaimReply[Claimed]]:
        """Return a claim of up to `limit` messages (0 to `MAX_BATCH`), which first settles earlier deliveries.

        The reply's `unmatched` has the claim scores of `outcomes.whole` that must be acked by name instead.

        Guarantee: a whole claim is acked only if all of its messages are still in flight; otherwise nothing changes for
        it. It cannot be mistaken for another: no two claims or renewals of a slot have the same score.
        """
        acks, nacks, whole = outcomes
        settlements = nack_args(nacks) if nacks else [0]
        settlements += ack_args(acks) if acks else (0,)
        settlements.append(len(whole))
        for each in whole:
            settlements += each
        if self._ttl_ms is not None:
            settlements.append(self._ttl_ms)
        args = self._args(
            epoch=owner.epoch,
            ensemble=owner.ensemble,
            limit=limit,
            start=start,
            most_bytes=most_bytes,
            settlements=settlements,
        )
        keys = self._keys.get(slot)
        if keys is None:
            keys = self._keys[slot] = self._keys_of(slot)
        return Call(_CLAIM.name, keys, args, self._parse, False, self._topic, slot)


def claim(
    topic: Topic,
    slot: int,
    limit: int,
    outcomes: Outcomes = NO_OUTCOMES,
    *,
    sweep_limit: int = SWEEP_LIMIT,
    **rest: Any,
) -> Call[ClaimReply[Claimed]]:
    """Return one claim; see `Claims`."""
    return Claims(topic, sweep_limit)(slot, limit, outcomes, **rest)


def claim_many(
    claims: Sequence[Call[ClaimReply[Claimed]]], settle_only: Sequence[bool] = (), most_bytes: int = CLAIM_BYTES
) -> Call[list[ClaimReply[Claimed] | RmqError]]:
    """Return one call for several claims from a topic whose slots one script may touch; each has its own reply.

    `settle_only` tells which claims, with limit 0, need not sweep, if that saves work; by default none.
    `most_bytes` is the limit of all claims together.
    """
    limits = [-1 if each else None for each in settle_only] or None
    return _JOINED(claims, most_bytes, limits)


def ack(topic: Topic, slot: int, acks: Iterable[Ack], owner: Owner = NO_OWNER) -> Call[tuple[bytes, ...]]:
    """Return a call that acks deliveries; its result has the contents whose claim was stale."""
    args = _ACK.args(epoch=owner.epoch, ensemble=owner.ensemble, acks=ack_args(acks))
    return _ACK.call(topic, slot, tuple, args)


def nack(topic: Topic, slot: int, nacks: Sequence[Nack], owner: Owner = NO_OWNER) -> Call[NackReply]:
    """Return a call that nacks deliveries; it may process only the first ones."""
    args = _NACK.args(
        epoch=owner.epoch,
        ensemble=owner.ensemble,
        max_retries=topic.max_retries,
        max_dead_age_ms=topic.max_dead_age_ms,
        max_dead=topic.max_dead_per_slot,
        nacks=nack_args(nacks),
    )
    return _NACK.call(topic, slot, lambda reply: NackReply(tuple(reply[0]), int(reply[1])), args)


def extend(topic: Topic, slot: int, claims: Sequence[Ack], owner: Owner = NO_OWNER) -> Call[ExtendReply]:
    """Return a call that renews leases."""
    pairs = renewal_args(claims)
    args = _EXTEND.args(epoch=owner.epoch, ensemble=owner.ensemble, lease_ms=topic.lease_ms, claims=pairs)

    def parse(reply: list[bytes]) -> ExtendReply:
        stamp, flags = int(reply[2]), zip(reply[1], pairs[::2], strict=True)
        scores = (stamped(stamp, retries_left_of(cast(int, score))) if flag == 49 else None for flag, score in flags)
        return ExtendReply(int(reply[0]), tuple(scores))

    return _EXTEND.call(topic, slot, parse, args)


def look(topic: Topic, slots: Sequence[int]) -> Call[tuple[int, list[int]]]:
    """Return a call that reads Redis' time and the time at which each slot is due next (0 for never), ms."""
    each = [slot_keys(topic.name, slot) for slot in slots]
    names = [name for keys in each for name in (keys.store, keys.prepare, keys.retry, keys.meta)]
    args = _LOOK.args(order=order_of(topic), lease_ms=topic.lease_ms)
    return Call(_LOOK.name, tuple(names), args, due_times, True, topic.name, slots[0])


def due_times(reply: list[bytes]) -> tuple[int, list[int]]:
    """Parse Redis' time and the due time of each slot."""
    return int(reply[0]), [int(due) for due in reply[1:]]


def order_of(topic: Topic) -> str:
    """Return the delivery order of a topic, as an argument of scripts."""
    return "low" if topic.type.timed else "high"


def claim_order_of(topic: Topic) -> str:
    """Return the claim order of a topic, as an argument of scripts; `any` ignores contents."""
    return "any" if topic.ties is Ties.ANY else order_of(topic)


_claim_score = itemgetter(1)


def ack_args(acks: Iterable[Ack]) -> list[Argument]:
    """Return acks as arguments of settle_acks; adjacent acks of one claim are grouped, which costs less."""
    args: list[Argument] = [0]
    for claim_score, group in groupby(acks, key=_claim_score) if acks else ():
        contents = [content for content, _ in group]
        args += (claim_score, len(contents))
        args += contents
        args[0] = cast(int, args[0]) + 1
    return args


def renewal_args(claims: Sequence[Ack]) -> list[Argument]:
    """Return deliveries as arguments of the scripts that renew leases."""
    return [part for content, claim_score in claims for part in (claim_score, content)]


def nack_args(nacks: Sequence[Nack]) -> list[Argument]:
    """Return nacks as arguments of settle_nacks."""
    args: list[Argument] = [len(nacks)]
    for nack in nacks:
        args += (nack.content, nack.claim_score, nack.verb, nack.number, nack.error_type, nack.error_message)
    return args


def _parse_claim(max_retries: int, reply: list[Any]) -> ClaimReply[Claimed]:
    now_ms, next_due_ms, resume, swept, stale, items, bodies, unmatched, stamp, score = reply[:10]
    messages: Sequence[Claimed] = ()
    if score:  # that of all of them, whose retries are all left
        scores = [score_of(score)] * len(items)
        messages = ClaimedRows(items, scores, [stamped(int(stamp), max_retries)] * len(items), bodies, True)
    elif items:
        stamp = int(stamp)
        fresh = stamped(stamp, max_retries)
        scores = scores_of(items[1::2])
        alike = min(scores) > max_retries
        claim_scores = [fresh] * len(scores)
        if not alike:
            claim_scores = [
                fresh if score > max_retries else stamped(stamp, retries_left_after_claim(score, max_retries))
                for score in scores
            ]
        messages = ClaimedRows(items[::2], scores, claim_scores, bodies, alike)
    whole = tuple(map(int, unmatched)) if unmatched else ()
    times = int(now_ms), int(next_due_ms), int(resume), int(swept)
    if len(reply) == 10:
        return ClaimReply(*times, tuple(stale), messages, whole)
    nacked, base = rest_of(reply[10:])
    return ClaimReply(*times, tuple(stale), messages, whole, nacked=nacked, token_base=base)


def rest_of(values: Sequence[bytes | None]) -> tuple[int | None, int]:
    """Parse the optional end of a claim's reply: the number of processed nacks, and the base of fencing tokens."""
    nacked = int(values[0]) if values and values[0] is not None else None
    return nacked, int(values[1] or 0) if len(values) > 1 else 0
