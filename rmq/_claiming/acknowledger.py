"""Sends the outcomes of a consumer's deliveries to Redis: all slots in one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rmq._broker.broker import Broker
from rmq._broker.claims import MAX_BATCH, NACK_BATCH, Outcomes
from rmq._claiming.claim_plan import CLAIM_WEIGHT, MOST_WEIGHT, PATIENCE_S, group_by_weight
from rmq._claiming.leases import renewal_groups, take_renewal, tokens_of
from rmq._claiming.outcome_batches import FREED_BYTES, OutcomeBatch, SlotOwner, batch_outcomes
from rmq._model.claims import Selection, size_of
from rmq._model.replies import SettleReply
from rmq._model.times import monotonic_s
from rmq._transport.call import Call
from rmq._transport.connections import Connections
from rmq.errors import ReplyLostError, RmqError, ScriptFailedError

NAMED_ACK_S = 1.0
"""After Redis has refused to ack a claim as a whole, all acks name their messages for this many seconds."""


@dataclass(slots=True)
class SettleResult:
    """The result of sending outcomes.

    Attributes:
        untried: Rows whose outcome certainly did not reach Redis.
        stale: Rows whose lease had been lost before.
        slots: The slots in which at least one outcome was recorded.
        trouble: The first error, if there was one.
    """

    untried: Sequence[Selection] = ()
    stale: list[Selection] = field(default_factory=list[Selection])
    slots: set[int] = field(default_factory=set[int])
    trouble: RmqError | None = None


class _SettleCall(NamedTuple):
    """A call that settles rows of a slot."""

    call: Call[SettleReply]
    outcomes: Outcomes
    batch: OutcomeBatch

    def weight(self) -> int:
        """Return the weight of the call; those that one script carries out have at most `MOST_WEIGHT` together."""
        return CLAIM_WEIGHT + max(self.outcomes.weight, MOST_WEIGHT * self.batch.freed // FREED_BYTES)


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

    def settle(self, selections: Sequence[Selection], settled: SettleResult) -> None:
        """Send the outcomes of rows, and record the result in `settled`."""
        settled.untried = selections
        while selections:
            batches = self._batches(selections)
            parts = [
                _SettleCall(self._broker.settle_call(slot, outcomes := batch.outcomes()), outcomes, batch)
                for (slot, _), batch in batches
            ]
            settled.untried = ()  # from here on nobody knows, unless a reply tells
            replies = self._replies(parts)
            selections, untried = list[Selection](), list[Selection]()
            for (call, _, batch), reply in zip(parts, replies, strict=True):
                if not isinstance(reply, RmqError):
                    nacked = size_of(batch.nacked) - reply.left if reply.left else None
                    done = batch.take(reply.stale, reply.unmatched, nacked)
                    settled.stale += done.stale
                    selections += done.unsent
                    settled.slots.add(call.slot)
                    if reply.unmatched:
                        self._by_name_until_s = monotonic_s() + NAMED_ACK_S
                    continue
                settled.trouble = settled.trouble or reply
                if not isinstance(reply, ReplyLostError):
                    untried += batch.selections
            settled.untried = untried

    def extend(self, selections: Sequence[Selection]) -> tuple[list[Selection], RmqError | None]:
        """Renew leases; return the rows whose lease was lost before, and the first error."""
        groups = renewal_groups(selections, self._broker.most_renewals)
        calls = [self._broker.extend_call(group[0].claim.slot, tokens_of(group)) for group in groups]
        started_s = monotonic_s()
        lost: list[Selection] = []
        trouble: RmqError | None = None
        for group, reply in zip(groups, self._results(calls), strict=True):
            if isinstance(reply, RmqError):
                trouble = trouble or reply
            lost += take_renewal(group, reply, started_s)
        return lost, trouble

    def _batches(self, selections: Sequence[Selection]) -> list[tuple[SlotOwner, OutcomeBatch]]:
        """Pack outcomes into batches of one call each."""
        batches: list[tuple[SlotOwner, OutcomeBatch]] = []
        now_s = monotonic_s()
        may_be_whole = now_s >= self._by_name_until_s
        while selections:
            packed, selections = batch_outcomes(
                selections, now_s, NACK_BATCH, most_named=MAX_BATCH, may_be_whole=may_be_whole
            )
            batches += packed.items()
        return batches

    def _replies(self, parts: Sequence[_SettleCall]) -> Sequence[SettleReply | RmqError]:
        """Run the calls of several slots, combined if one script may touch all slots; return the reply to each."""
        if len(parts) < 2 or self._connections.multi_node:
            return self._results([part.call for part in parts])
        groups = group_by_weight(parts, _SettleCall.weight, MOST_WEIGHT)
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
