"""Calls of the scripts that claim, settle and renew in one or several slots, and of the one that reads due times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, Generic, NamedTuple, TypeAlias, cast

from rmq._broker.binding import BoundScript, claim_order_of, options_of, order_of
from rmq._broker.keys import slot_keys
from rmq._io.wire import Argument
from rmq._model.replies import (
    ALL_SETTLED,
    NO_OWNER,
    NO_ROWS,
    ClaimedRows,
    ClaimReply,
    ExtendReply,
    M,
    Owner,
    SettleReply,
)
from rmq._model.scores import retries_left_after_claim, retries_left_of, score_of, scores_of, stamped
from rmq._model.topics import Topic
from rmq._servers.server_check import AOF_TROUBLE
from rmq._transport.call import Call, Joining, T, join
from rmq._transport.refusals import UNREADABLE, error_of, reply_lost, unreadable
from rmq.errors import RmqError

_CLAIM = BoundScript("claim", repeatable=False)
_SETTLE, _EXTEND = BoundScript("settle", repeatable=False), BoundScript("extend", repeatable=False)
_LOOK = BoundScript("look")

MAX_BATCH = 1_000
"""Maximum number of messages in a script call: `unpack` takes 7,999 values, and a script that wrote can't be
stopped."""

NACK_BATCH = 100
"""Maximum number of nacks, redrives or purges in one call: each costs the server several commands."""

PIGGYBACKED_NACKS = 64
"""Maximum number of nacks for a slot that a claim takes along, in addition to its other work."""

WHOLE_BATCH = 256
"""Maximum number of whole claims acked in one call: each costs the server several commands."""

STREAM_RENEWALS = 256
"""Maximum number of leases of a group's entries that one call renews: each costs the server several commands."""

CLAIM_BYTES = 4 * 1_048_576
"""Maximum size of contents and bodies in one claim, bytes; its first message may be larger. The next claim gets the
rest: a script blocks all other clients, for about 2 ms per MiB."""

SWEEP_LIMIT = 256
"""Maximum number of expired leases, and of due retries, that one claim moves; the next claim moves the rest."""


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

RENEWAL_PATIENCE_S = 0.25
"""Seconds for which renewals that have a reply wait for the replies of a server that may be down."""

WholeClaim = tuple[int, int]
"""Claim score, and the number of the deliveries in the slot that have it, all of which are done."""


_claim_score = itemgetter(1)


class Outcomes(NamedTuple):
    """Outcomes of earlier deliveries of a slot.

    Attributes:
        acks: Acked deliveries, by name.
        nacks: Deliveries to nack, bury or release.
        whole: Claims of which every delivery is acked. They need no names, which costs less.
    """

    acks: Sequence[Ack] = ()
    nacks: Sequence[Nack] = ()
    whole: Sequence[WholeClaim] = ()

    @property
    def weight(self) -> int:
        """Cost of the outcomes for the server, where an ack by name costs 1; a nack takes several commands."""
        return len(self.acks) + 6 * len(self.nacks) + 2 * len(self.whole)

    def args(self) -> list[Argument]:
        """Return the outcomes as arguments of the scripts, which settle nacks, acks and whole claims in this order."""
        acks, nacks, whole = self
        args: list[Argument] = [len(nacks)]
        for nack in nacks:
            args += (nack.content, nack.claim_score, nack.verb, nack.number, nack.error_type, nack.error_message)
        groups, at = 0, len(args)
        args.append(0)
        for claim_score, group in groupby(acks, key=_claim_score) if acks else ():  # adjacent acks of a claim cost less
            contents = [content for content, _ in group]
            args += (claim_score, len(contents))
            args += contents
            groups += 1
        args[at] = groups
        args.append(len(whole))
        for each in whole:
            args += each
        return args


NO_OUTCOMES = Outcomes()


class ClaimPart(NamedTuple):
    """The part of a claim for one slot; `Claims` joins several in a call.

    Attributes:
        slot: The slot.
        limit: Maximum number of messages to claim, 0 to `MAX_BATCH`, or `SETTLE_ONLY`.
        outcomes: Outcomes of earlier deliveries, which are settled first.
        owner: The owner in whose name the claim is made.
        start: Queues: rank at which to continue an earlier search. Streams: if not 0, new entries are read under a
            consumer name of the claim, with at least this stamp, so that they can be acked as a whole: see
            `ClaimReply.own`. The stamp must be a new one, since a server may have lost a claim.
    """

    slot: int
    limit: int
    outcomes: Outcomes = NO_OUTCOMES
    owner: Owner = NO_OWNER
    start: int = 0


SETTLE_ONLY = -1
"""Limit of a claim that settles, and need not search for messages to claim or to sweep."""


ClaimReplies: TypeAlias = list[ClaimReply[M] | RmqError]
"""The reply or the error of each slot."""


class Claims(Generic[M]):
    """Builds calls that claim from slots of one topic. Arguments that are the same for all calls are computed once.

    Args:
        script: The script. Its last arguments are `most_bytes` and `claims`; see there.
        topic: The registered definition.
        group: The group, on a stream topic.
        parse: Function that parses the reply of one slot.
        ending: Values that follow the outcomes in the arguments of each slot.
        known: Other arguments that all claims have in common.
    """

    def __init__(
        self,
        script: BoundScript,
        topic: Topic,
        group: str | None,
        parse: Callable[[list[Any]], ClaimReply[M]],
        ending: Sequence[Argument] = (),
        **known: Argument,
    ) -> None:
        self._script, self._topic, self._parse, self._ending = script, topic.name, parse, ending
        self._keys_of = cache(partial(script.keys_of, topic, group=group))
        self._args = script.args_with(**{**script.settings_of(topic, group), **known})

    def __call__(self, parts: Sequence[ClaimPart], most_bytes: int = CLAIM_BYTES) -> Call[ClaimReplies[M]]:
        """Return one call that claims from one slot, or from several that one script may access.

        In the result, each slot has its own reply or error; the error of a single slot is raised.
        A reply's `unmatched` has the claim scores of `Outcomes.whole` that must be acked by name instead.

        Guarantee: a whole claim is acked only if all of its messages are still in flight; otherwise nothing changes for
        it. It cannot be mistaken for another: no two claims or renewals of a slot have the same score.

        Args:
            parts: The claims, one for each slot.
            most_bytes: Maximum size of contents and bodies in all replies, bytes; the first message may be larger.
        """
        keys: list[str] = []
        claims: list[Argument] = []
        for slot, limit, outcomes, (epoch, ensemble), start in parts:
            keys += self._keys_of(slot)
            at = len(claims)
            claims += (0, epoch, ensemble, limit, start)
            claims += outcomes.args()
            claims += self._ending
            claims[at] = len(claims) - at - 1
        args, parse = self._args(most_bytes=most_bytes, claims=claims), partial(self._replies, parts)
        return Call(self._script.name, tuple(keys), args, parse, self._script.repeatable, self._topic, parts[0].slot)

    def _replies(self, parts: Sequence[ClaimPart], replies: list[Any]) -> ClaimReplies[M]:
        if len(parts) == 1:  # its trouble is that of the call
            return [self._parse(replies[0])]
        return [
            result_of(lambda part=part: self((part,)), self._parse, reply)
            for part, reply in zip(parts, replies, strict=True)
        ]


def result_of(call: Callable[[], Call[Any]], parse: Callable[[Any], T], reply: Any) -> T | RmqError:
    """Parse the reply of one of several slots. An error concerns this slot only: the other slots have been served.

    Args:
        call: Function that returns the call of the slot alone, for the error.
        parse: Function that parses the reply.
        reply: The reply, or the text of an error.
    """
    if isinstance(reply, bytes):
        text = reply.decode(errors="replace")
        return reply_lost(call(), text) if AOF_TROUBLE in text else error_of(call(), text)
    try:
        return parse(reply)
    except UNREADABLE as error:
        return unreadable(call(), error)


def queue_claims(topic: Topic, sweep_limit: int = SWEEP_LIMIT) -> Claims[ClaimedRows]:
    """Return the builder of the claims of a topic that is not a stream.

    Args:
        topic: The registered definition.
        sweep_limit: Maximum number of expired leases, and of due retries, that a claim moves in a slot.
    """
    return Claims(
        _CLAIM,
        topic,
        None,
        partial(_parse_claim, topic.max_retries),
        () if topic.ttl_ms is None else (topic.ttl_ms,),
        width=len(_CLAIM.keys_of(topic, 0)),
        order=claim_order_of(topic),
        sweep_limit=sweep_limit,
    )


SlotNames = Callable[[Any], tuple[str, ...]]
_ACKED_SLOT: SlotNames = attrgetter("store", "prepare", "body", "meta", "error", "wake")
_NACKED_SLOT: SlotNames = attrgetter(
    "store", "prepare", "body", "meta", "error", "wake", "retry", "dead", "reason", "dead_body"
)


class Settlements:
    """Builds calls that settle deliveries of one topic. Arguments that are the same for all calls are computed once.

    Args:
        topic: The registered definition.
        script: The script; its last argument is `settlements`.
        keys_of: Function that returns the keys of a slot for a settlement with nacks, or without, which needs fewer.
        known: The other arguments of the script.
    """

    def __init__(
        self, topic: Topic, script: BoundScript, keys_of: Callable[[int, bool], tuple[str, ...]], **known: Argument
    ) -> None:
        self._topic, self._script, self._keys_of = topic.name, script, cache(keys_of)
        self._shared = script.args(**script.settings_of(topic), settlements=(), **known)
        self._joining = Joining(len(self._shared), list)

    def __call__(self, slot: int, outcomes: Outcomes, owner: Owner = NO_OWNER) -> Call[SettleReply]:
        """Return a call that settles deliveries of one slot.

        It takes up to `MAX_BATCH` acks, `NACK_BATCH` nacks and `WHOLE_BATCH` whole claims. Of the nacks it may process
        only the first ones.

        Guarantee: a whole claim is acked only if all of its messages are still in flight; otherwise nothing changes for
        it. It cannot be mistaken for another: no two claims or renewals of a slot have the same score.
        """
        keys, settlements = self._keys_of(slot, bool(outcomes.nacks)), outcomes.args()
        args = [*self._shared, len(settlements) + 3, len(keys), owner.epoch, owner.ensemble, *settlements]
        name, topic = self._script.name, self._topic
        return Call(name, keys, args, _parse_settled, self._script.repeatable, topic, slot, joining=self._joining)

    def joined(self, calls: Sequence[Call[SettleReply]]) -> Call[list[SettleReply | RmqError]]:
        """Return one call for several settlements, in slots that one script may access; each has its own reply."""
        if len(calls) == 1:
            return calls[0].then(lambda reply: [reply])

        def parse(replies: list[Any]) -> list[SettleReply | RmqError]:
            return [
                result_of(lambda call=call: call, call.parse, reply) for call, reply in zip(calls, replies, strict=True)
            ]

        return cast("Call[list[SettleReply | RmqError]]", join(calls)._replace(parse=parse))


def settlements(topic: Topic) -> Settlements:
    """Return the builder of a topic's settlements."""
    born, merges = options_of(topic)

    def keys_of(slot: int, nacked: bool) -> tuple[str, ...]:
        keys = slot_keys(topic.name, slot)
        names = _NACKED_SLOT(keys) if nacked else _ACKED_SLOT(keys)
        return names + ((keys.born,) if born and nacked else ()) + ((keys.held,) if merges else ())

    return Settlements(topic, _SETTLE, keys_of)


def _parse_settled(reply: Any) -> SettleReply:
    if reply == 1:
        return ALL_SETTLED
    stale, unmatched, left, *lost = reply
    return SettleReply(tuple(stale), tuple(map(int, unmatched)), left, *map(tuple, lost))


def extend(topic: Topic, slot: int, claims: Sequence[Ack], owner: Owner = NO_OWNER) -> Call[ExtendReply]:
    """Return a call that renews leases."""
    pairs = renewal_args(claims)

    def parse(reply: list[bytes]) -> ExtendReply:
        stamp, flags = int(reply[2]), zip(reply[1], pairs[::2], strict=True)
        scores = (stamped(stamp, retries_left_of(cast(int, score))) if flag == 49 else None for flag, score in flags)
        return ExtendReply(int(reply[0]), tuple(scores))

    return _EXTEND.call(topic, slot, parse, epoch=owner.epoch, ensemble=owner.ensemble, claims=pairs)


def look(topic: Topic, slots: Sequence[int]) -> Call[tuple[int, list[int]]]:
    """Return a call that reads Redis' time and the time at which each slot is due next (0 for never), ms."""
    each = [slot_keys(topic.name, slot) for slot in slots]
    names = [name for keys in each for name in (keys.store, keys.prepare, keys.retry, keys.meta)]
    kinds = (order_of(topic), topic.lease_ms) * len(slots)
    return _LOOK.call_on(topic.name, due_times, tuple(names), slot=slots[0], kinds=kinds)._replace(joining=LOOKS)


LOOKS = Joining(0, list)
"""How `join` joins calls of `look`: the reply is that of one call of all their slots. It has no part for each of them,
so they must not share round trips, see `SharedCalls`."""


def due_times(reply: list[bytes]) -> tuple[int, list[int]]:
    """Parse Redis' time and the due time of each slot."""
    return int(reply[0]), [int(due) for due in reply[1:]]


def renewal_args(claims: Sequence[Ack]) -> list[Argument]:
    """Return deliveries as arguments of the scripts that renew leases."""
    return [part for content, claim_score in claims for part in (claim_score, content)]


def _parse_claim(max_retries: int, reply: list[Any]) -> ClaimReply[ClaimedRows]:
    now_ms, next_due_ms, resume, swept, stale, items, bodies, unmatched, stamp, score = reply[:10]
    messages = NO_ROWS
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
