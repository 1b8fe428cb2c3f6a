"""Sends the outcomes of a consumer's deliveries to Redis: all slots in one round trip."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple

from rmq._broker.broker import Broker
from rmq._broker.claims import MAX_BATCH, NACK_BATCH, RENEWALS, WHOLE_BATCH, Ack
from rmq._claiming.chunks import FREED_BYTES, chunks
from rmq._claiming.claim_plan import PATIENCE_S
from rmq._claiming.leases import take_renewal
from rmq._claiming.outcome_batches import nack_of, stale_among
from rmq._model.deliveries import Delivery, Outcome, Verb
from rmq._model.delivery_columns import number_of, spread, spread_some
from rmq._model.replies import NackReply
from rmq._model.times import monotonic_s
from rmq._transport.call import Call
from rmq._transport.connections import Connections
from rmq.errors import ReplyLostError, RmqError

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
    """Deliveries of a slot that one call settles. If `whole`, the call names claims instead of messages."""

    call: Call[Any]
    deliveries: Sequence[Delivery]
    whole: bool = False


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
        """Send an outcome of deliveries, and record the result in `settled`."""
        settled.untried = list(deliveries)
        parts = [
            part for slot, each in _group_by(_slot, deliveries).items() for part in self._parts(slot, each, outcome)
        ]
        settled.untried = []  # from here on nobody knows, unless a reply tells
        while left := self._carry_out(parts, settled):
            build = self._named if outcome.verb is Verb.ACK else partial(self._nacked, outcome=outcome)
            if outcome.verb is Verb.ACK:
                self._by_name_until_s = monotonic_s() + NAMED_ACK_S
            parts = [part for slot, each in _group_by(_slot, left).items() for part in build(slot, each)]

    def extend(self, deliveries: Sequence[Delivery]) -> tuple[list[Delivery], RmqError | None]:
        """Renew leases; return those that were lost before, and the first error."""
        parts = [
            _SettleCall(self._broker.extend_call(slot, _claims_of(part)), part)
            for slot, each in _group_by(_slot, deliveries).items()
            for part in chunks(each, RENEWALS)
        ]
        started_s = monotonic_s()
        lost: list[Delivery] = []
        trouble: RmqError | None = None
        for part, reply in zip(parts, self._results(parts), strict=True):
            if isinstance(reply, RmqError):
                trouble = trouble or reply
            lost += take_renewal(part.deliveries, reply, started_s)
        return lost, trouble

    def _parts(self, slot: int, deliveries: Sequence[Delivery], outcome: Outcome) -> Iterator[_SettleCall]:
        """Yield the calls that settle deliveries of a slot."""
        if outcome.verb is not Verb.ACK:
            yield from self._nacked(slot, deliveries, outcome)
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
                call = broker.whole_call(slot, [(score, number_of(part)) for score, part in batch])
                yield _SettleCall(call, [each for _, part in batch for each in part], whole=True)
            scores = {score for score, _ in whole}
            deliveries = [delivery for delivery in deliveries if delivery.claim_score not in scores]
        yield from self._named(slot, spread(deliveries))

    def _nacked(self, slot: int, deliveries: Sequence[Delivery], outcome: Outcome) -> Iterator[_SettleCall]:
        for part in chunks(deliveries, NACK_BATCH):
            yield _SettleCall(self._broker.nack_call(slot, [nack_of(each, outcome) for each in part]), part)

    def _named(self, slot: int, deliveries: Sequence[Delivery]) -> Iterator[_SettleCall]:
        for part in chunks(deliveries, MAX_BATCH, most_freed=FREED_BYTES):
            yield _SettleCall(self._broker.ack_call(slot, _claims_of(part)), part)

    def _carry_out(self, parts: Sequence[_SettleCall], settled: SettleResult) -> list[Delivery]:
        """Run calls; return the deliveries that need another call: acks by name, and nacks that were not processed."""
        left: list[Delivery] = []
        for part, reply in zip(parts, self._results(parts), strict=True):
            if isinstance(reply, RmqError):
                settled.trouble = settled.trouble or reply
                if not isinstance(reply, ReplyLostError):
                    settled.untried += part.deliveries
                continue
            settled.slots.add(part.call.slot)
            if not reply:
                continue
            if isinstance(reply, NackReply):
                settled.stale += stale_among(part.deliveries[: reply.done], reply.stale)
                left += part.deliveries[reply.done :]
            elif part.whole:
                scores = set(reply)
                left += spread(delivery for delivery in part.deliveries if delivery.claim_score in scores)
            else:
                settled.stale += stale_among(part.deliveries, reply)
        return left

    def _results(self, parts: Sequence[_SettleCall]) -> Sequence[Any]:
        """Run calls; return the reply or the error of each."""
        if not parts:
            return []
        try:
            if len(parts) == 1:
                return [self._connections.run(parts[0].call)]
            return self._connections.run_many([part.call for part in parts], self._patience_s)
        except RmqError as error:
            return [error] * len(parts)


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
