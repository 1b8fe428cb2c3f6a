"""Sends the outcomes of a consumer's deliveries to Redis: all slots in one round trip."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple

from rmq._broker.broker import Broker
from rmq._broker.claims import MAX_BATCH, NACK_BATCH, RENEWALS, WHOLE_BATCH, Ack, Outcomes
from rmq._claiming.chunks import FREED_BYTES, bytes_of, chunks
from rmq._claiming.claim_plan import CLAIM_WEIGHT, MOST_WEIGHT, PATIENCE_S, group_by_weight
from rmq._claiming.leases import take_renewal
from rmq._claiming.outcome_batches import nack_of, stale_among
from rmq._model.deliveries import Delivery, Outcome, Verb
from rmq._model.delivery_columns import number_of, spread, spread_some
from rmq._model.replies import ALL_SETTLED, SettleReply
from rmq._model.times import monotonic_s
from rmq._transport.call import Call
from rmq._transport.connections import Connections
from rmq.errors import ReplyLostError, RmqError, ScriptFailedError

WHOLE_FROM, NAMED_ACK_S = 8, 1.0
"""From this many deliveries of a slot on, claims are acked as a whole if possible; after Redis has refused that, all
are named for this many seconds."""


_slot, _claim_score, _individually = attrgetter("slot"), attrgetter("claim_score"), attrgetter("ack_individually")


@dataclass(slots=True)
class SettleResult:
    """The result of sending outcomes.

    Attributes:
        untried: Deliveries whose outcome did not reach Redis, for certain.
        stale: Deliveries whose lease had been lost before.
        slots: The slots in which at least one outcome was recorded.
        trouble: The first error, if there was one.
    """

    untried: list[Delivery] = field(default_factory=list[Delivery])
    stale: list[Delivery] = field(default_factory=list[Delivery])
    slots: set[int] = field(default_factory=set[int])
    trouble: RmqError | None = None


class _SettleCall(NamedTuple):
    """Deliveries of a slot that a call settles, and their share of what one call may settle.

    If `frees`, the call deletes their bodies, which counts as well.
    """

    call: Call[SettleReply]
    deliveries: Sequence[Delivery]
    share: float
    frees: bool = False

    def freed_share(self) -> float:
        return bytes_of(self.deliveries) / FREED_BYTES if self.frees else 0.0


class Acknowledger:
    """Settles deliveries, and renews their leases: one round trip for all slots.

    A server that does not answer does not delay outcomes on other servers. It delays the caller by at most a sixth of
    a lease, since the caller's other deliveries wait meanwhile.

    Args:
        connections: The connections to the topic's servers.
        broker: The broker of the topic's slots.
    """

    def __init__(self, connections: Connections, broker: Broker) -> None:
        self._connections = connections
        self._broker = broker
        self._patience_s = max(PATIENCE_S, broker.topic.lease_s / 6)
        self._by_name_until_s = 0.0

    def settle(self, deliveries: Sequence[Delivery], outcome: Outcome, settled: SettleResult) -> None:
        """Send the same outcome of several deliveries, and record the result in `settled`."""
        settled.untried = list(deliveries)
        parts = [
            part for slot, each in _group_by(_slot, deliveries).items() for part in self._parts(slot, each, outcome)
        ]
        settled.untried = []  # from here on nobody knows, unless a reply tells
        while left := self._carry_out(parts, settled):
            if outcome.verb is Verb.ACK:
                self._by_name_until_s = monotonic_s() + NAMED_ACK_S
            parts = [part for slot, each in _group_by(_slot, left).items() for part in self._named(slot, each, outcome)]

    def extend(self, deliveries: Sequence[Delivery]) -> tuple[list[Delivery], RmqError | None]:
        """Renew leases; return those that were lost before, and the first error."""
        parts = [
            (self._broker.extend_call(slot, _claims_of(part)), part)
            for slot, each in _group_by(_slot, deliveries).items()
            for part in chunks(each, RENEWALS)
        ]
        started_s = monotonic_s()
        lost: list[Delivery] = []
        trouble: RmqError | None = None
        for (_, part), reply in zip(parts, self._results([call for call, _ in parts]), strict=True):
            if isinstance(reply, RmqError):
                trouble = trouble or reply
            lost += take_renewal(part, reply, started_s)
        return lost, trouble

    def _parts(self, slot: int, deliveries: Sequence[Delivery], outcome: Outcome) -> Iterator[_SettleCall]:
        """Yield the calls that settle deliveries of a slot."""
        if outcome.verb is not Verb.ACK:
            yield from self._named(slot, deliveries, outcome)
            return
        broker, now_s = self._broker, monotonic_s()
        deliveries = spread_some(deliveries, now_s if now_s >= self._by_name_until_s else inf)
        if number_of(deliveries) >= WHOLE_FROM and now_s >= self._by_name_until_s:
            # whether something of a claim is open shows in Redis; if so, or with bodies, its contents are named next
            claims = _group_by(_claim_score, deliveries).items()
            whole: list[tuple[int, Sequence[Delivery]]] = []
            for score, part in claims:
                number = number_of(part)
                if number > 1 and broker.is_whole(slot, score, number) and not any(map(_individually, part)):
                    whole.append((score, part))
            for first in range(0, len(whole), WHOLE_BATCH):
                batch = whole[first : first + WHOLE_BATCH]
                call = broker.settle_call(slot, Outcomes(whole=[(score, number_of(part)) for score, part in batch]))
                yield _SettleCall(call, [each for _, part in batch for each in part], len(batch) / WHOLE_BATCH)
            scores = {score for score, _ in whole}
            deliveries = [delivery for delivery in deliveries if delivery.claim_score not in scores]
        yield from self._named(slot, spread(deliveries), outcome)

    def _named(self, slot: int, deliveries: Sequence[Delivery], outcome: Outcome) -> Iterator[_SettleCall]:
        """Yield the calls that settle deliveries of a slot by name."""
        call = self._broker.settle_call
        if outcome.verb is Verb.ACK:
            for part in chunks(deliveries, MAX_BATCH, most_freed=FREED_BYTES):
                yield _SettleCall(call(slot, Outcomes(_claims_of(part))), part, len(part) / MAX_BATCH, frees=True)
        else:
            for part in chunks(deliveries, NACK_BATCH):
                nacks = [nack_of(each, outcome) for each in part]
                yield _SettleCall(call(slot, Outcomes(nacks=nacks)), part, len(part) / NACK_BATCH)

    def _carry_out(self, parts: Sequence[_SettleCall], settled: SettleResult) -> list[Delivery]:
        """Run calls; return the deliveries that need another call: acks by name, and nacks that were not processed."""
        left: list[Delivery] = []
        for part, reply in zip(parts, self._replies(parts), strict=True):
            if isinstance(reply, RmqError):
                settled.trouble = settled.trouble or reply
                if not isinstance(reply, ReplyLostError):
                    settled.untried += part.deliveries
                continue
            settled.slots.add(part.call.slot)
            if reply is ALL_SETTLED:
                continue
            done = len(part.deliveries) - reply.left
            settled.stale += stale_among(part.deliveries[:done], reply.stale)
            left += part.deliveries[done:]
            left += spread(delivery for delivery in part.deliveries if delivery.claim_score in reply.unmatched)
        return left

    def _replies(self, parts: Sequence[_SettleCall]) -> Sequence[SettleReply | RmqError]:
        """Run the calls of several slots, in few calls if one script may access them all; return the reply of each."""
        calls = [part.call for part in parts]
        if len(parts) < 2 or self._connections.multi_node:
            return self._results(calls)
        overhead = CLAIM_WEIGHT / MOST_WEIGHT
        groups = group_by_weight(parts, lambda part: overhead + max(part.share, part.freed_share()), 1)
        many = [self._broker.settle_many_call([part.call for part in group]) for group in groups]
        replies: list[SettleReply | RmqError] = []
        for group, reply in zip(groups, self._results(many), strict=True):
            if isinstance(reply, ScriptFailedError) and len(group) > 1:
                # refused as a whole, before anything was done: no right to one of the slots, for one
                replies += self._connections.run_many([part.call for part in group], self._patience_s)
            else:
                replies += [reply] * len(group) if isinstance(reply, RmqError) else reply
        return replies

    def _results(self, calls: Sequence[Call[Any]]) -> Sequence[Any]:
        """Run calls; return the reply or the error of each."""
        if not calls:
            return []
        try:
            if len(calls) == 1:
                return [self._connections.run(calls[0])]
            return self._connections.run_many(calls, self._patience_s)
        except RmqError as error:
            return [error] * len(calls)


def _group_by(key: Callable[[Delivery], int], deliveries: Iterable[Delivery]) -> dict[int, list[Delivery]]:
    all_ = list(deliveries)
    groups: dict[int, list[Delivery]] = defaultdict(list)
    if len(keys := set(map(key, all_))) == 1:  # mostly they are of one claim
        return {keys.pop(): all_}
    for delivery in all_:
        groups[key(delivery)].append(delivery)
    return groups


def _claims_of(deliveries: Iterable[Delivery]) -> list[Ack]:
    return [(delivery.name, delivery.claim_score) for delivery in deliveries]
