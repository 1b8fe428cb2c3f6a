"""Slots that messages can be claimed from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic

from rmq._broker.claims import CLAIM_BYTES, MAX_BATCH, NO_OUTCOMES, Ack, Nack, Outcomes, Renewal, WholeClaim
from rmq._model.deliveries import Delivery, Holder
from rmq._model.replies import NO_OWNER, ClaimReply, ExtendReply, M, NackReply, Owner
from rmq._model.topics import Topic
from rmq._transport.call import Call
from rmq._transport.connections import Connections
from rmq._transport.dispatch import Dispatch
from rmq.errors import RmqError

MANY_SLOTS = 16
"""A claim from so many slots takes the client a while: each has a reply of its own, and an ack of its own."""


class Source(ABC, Generic[M]):
    """The slots of a topic, as claims and settlements deal with them: plain ones, or those of a consumer of a group.

    Args:
        connections: Where the slots are.
        topic: The registered definition.

    Attributes:
        awaits_owners: Whether a claim itself waits until nothing of an earlier owner is in flight.
        in_order: Whether a slot's owner gets messages in their order: it claims none while it has some to give back.
        many_from: A claim that brings so many messages `takes_long`.
        acks_whole: Whether a claim score names all deliveries of a claim, so that `Outcomes.whole` acks them.
        group: The group, on a stream topic.
        upkeep_s: How often each slot is to be looked after, in seconds; `None` for never.
    """

    awaits_owners = False
    in_order = False
    many_from = MAX_BATCH + 1
    acks_whole = True
    group: str | None = None
    upkeep_s: float | None = None

    def look_after(self, slot: int) -> bool:
        """Keep a slot within its bounds if it is time, one step; return whether there is more to do at once.

        Every process that listens or polls calls it; the slot itself knows when it was done last.
        """
        del slot
        return False

    def takes_long(self, number: int, slots: int) -> bool:
        """Return whether the client takes long to make a claim's messages ready, and to ack them.

        Args:
            number: How many messages.
            slots: How many slots it has visited.
        """
        return number >= self.many_from or (number > 0 and slots >= MANY_SLOTS)

    def __init__(self, connections: Connections, topic: Topic) -> None:
        self._connections = connections
        self.topic = topic

    @abstractmethod
    def claim_call(
        self,
        slot: int,
        limit: int,
        outcomes: Outcomes = NO_OUTCOMES,
        *,
        owner: Owner = NO_OWNER,
        start: int = 0,
        most_bytes: int = CLAIM_BYTES,
    ) -> Call[ClaimReply[M]]:
        """Build a claim that first settles earlier deliveries, for callers that claim from several slots at once."""

    @abstractmethod
    def claim_many_call(
        self, claims: Sequence[Call[ClaimReply[M]]], settle_only: Sequence[bool], most_bytes: int
    ) -> Call[list[ClaimReply[M] | RmqError]]:
        """Build one call of several claims, where one script may touch all of their slots; it answers each by itself.

        Args:
            claims: What `claim_call` has built.
            settle_only: Of each, whether it need not look for anything to claim or to sweep.
            most_bytes: Most bytes that all of them together hand over; the first message may have more.
        """

    def is_whole(self, slot: int, claim_score: int, number: int) -> bool:
        """Return whether Redis may be asked to ack a claim as a whole, of which these are so many deliveries."""
        del slot, claim_score, number
        return True

    @abstractmethod
    def look_call(self, slots: Sequence[int]) -> Call[tuple[int, list[int]]]:
        """Build the reading of when each slot next has something to do."""

    @abstractmethod
    def deliveries(
        self, slot: int, reply: ClaimReply[M], lease_until_s: float, holder: Holder, owner: Owner
    ) -> list[Delivery]:
        """Return what a claim brought, for handlers."""

    def columns(
        self, slot: int, reply: ClaimReply[M], lease_until_s: float, holder: Holder, owner: Owner
    ) -> list[Delivery]:
        """Return what a claim brought, for handlers that take columns: where it can be, several messages in one."""
        return self.deliveries(slot, reply, lease_until_s, holder, owner)

    @abstractmethod
    def ack_call(self, slot: int, acks: Sequence[Ack]) -> Call[tuple[bytes, ...]]:
        """Build the ack of up to `MAX_BATCH` deliveries; answers the names of those whose claim was stale."""

    def whole_call(self, slot: int, whole: Sequence[WholeClaim]) -> Call[tuple[int, ...]]:
        """Build the ack of up to `WHOLE_BATCH` claims as a whole; answers the scores of those to be acked by name."""
        return self.claim_call(slot, 0, Outcomes(whole=whole)).then(_unmatched)

    @abstractmethod
    def nack_call(self, slot: int, nacks: Sequence[Nack]) -> Call[NackReply]:
        """Build the nack of up to `NACK_BATCH` deliveries; it may answer for fewer, the first ones."""

    @abstractmethod
    def extend_call(self, slot: int, claims: Sequence[Ack], owner: Owner = NO_OWNER) -> Call[ExtendReply]:
        """Build the renewal of up to `RENEWALS` leases; answers the new claim scores, `None` where one was lost."""

    def begin_extend(self, renewals: Sequence[Renewal]) -> Dispatch:
        """Send renewals of leases in several slots at once; a server that is down does not hold up the others."""
        return self._connections.dispatch([self.extend_call(*renewal) for renewal in renewals], self.topic.lease_s / 6)


def _unmatched(reply: ClaimReply[Any]) -> tuple[int, ...]:
    return reply.unmatched
