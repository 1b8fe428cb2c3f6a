"""What claims and settlements ask of a topic's slots: `QueueBroker` and `StreamBroker` are the two answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rmq._broker.claims import CLAIM_BYTES, NO_OUTCOMES, Ack, Nack, Outcomes, Renewal, WholeClaim
from rmq._model.deliveries import Delivery, Holder
from rmq._model.replies import NO_OWNER, ClaimReply, ExtendReply, NackReply, Owner
from rmq._model.topics import Topic
from rmq._transport.call import Call
from rmq._transport.dispatch import Dispatch
from rmq.errors import RmqError

MANY_SLOTS = 16
"""A claim from so many slots takes the client a while: each has a reply of its own, and an ack of its own."""


class Broker(Protocol):
    """The slots of a topic, as a consumer of the queue, or of a group of the stream, claims from them.

    Methods that end in `_call` build a call and carry out nothing.

    Attributes:
        topic: The registered definition.
        group: The group, on a stream topic. The owner of a slot gets the entries of a group in their order.
        upkeep_s: How often each slot is to be looked after, in seconds; `None` for never.
    """

    topic: Topic

    @property
    def group(self) -> str | None: ...

    @property
    def upkeep_s(self) -> float | None: ...

    def claim_call(
        self,
        slot: int,
        limit: int,
        outcomes: Outcomes = NO_OUTCOMES,
        *,
        owner: Owner = NO_OWNER,
        start: int = 0,
        most_bytes: int = CLAIM_BYTES,
    ) -> Call[ClaimReply[Any]]:
        """Build a claim that first settles earlier deliveries, for callers that claim from several slots at once."""
        ...

    def claim_many_call(
        self, claims: Sequence[Call[ClaimReply[Any]]], settle_only: Sequence[bool], most_bytes: int
    ) -> Call[list[ClaimReply[Any] | RmqError]]:
        """Build one call of several claims, where one script may touch all of their slots; it answers each by itself.

        Args:
            claims: What `claim_call` has built.
            settle_only: Of each, whether it need not look for anything to claim or to sweep.
            most_bytes: Most bytes that all of them together hand over; the first message may have more.
        """
        ...

    def ack_call(self, slot: int, acks: Sequence[Ack]) -> Call[tuple[bytes, ...]]:
        """Build the ack of up to `MAX_BATCH` deliveries; answers the names of those whose claim was stale."""
        ...

    def whole_call(self, slot: int, whole: Sequence[WholeClaim]) -> Call[tuple[int, ...]]:
        """Build the ack of up to `WHOLE_BATCH` claims as a whole; answers the scores of those to be acked by name."""
        ...

    def nack_call(self, slot: int, nacks: Sequence[Nack]) -> Call[NackReply]:
        """Build the nack of up to `NACK_BATCH` deliveries; it may answer for fewer, the first ones."""
        ...

    def extend_call(self, slot: int, claims: Sequence[Ack], owner: Owner = NO_OWNER) -> Call[ExtendReply]:
        """Build the renewal of up to `RENEWALS` leases; answers the new claim scores, `None` where one was lost."""
        ...

    def look_call(self, slots: Sequence[int]) -> Call[tuple[int, list[int]]]:
        """Build the reading of Redis' time and of when each slot next has something to do (0 for never), ms."""
        ...

    def begin_extend(self, renewals: Sequence[Renewal]) -> Dispatch:
        """Send renewals of leases in several slots at once; a server that is down does not hold up the others."""
        ...

    def may_claim(
        self,
        slot: int,
        owner: Owner,
        handed_over: Callable[[int, Owner], bool] | None = None,
        returns: Callable[[int], bool] | None = None,
    ) -> bool:
        """Return whether messages of a slot may be claimed in an owner's name now.

        Args:
            slot: The slot.
            owner: Its owner through ZooKeeper.
            handed_over: Says whether nothing of an earlier owner is in flight in the slot. The claim of a queue has to
                wait for that; the claim of a group sees to it itself.
            returns: Says whether the holder still has a message of the slot to give back. The claim of a group has to
                wait for that, or entries behind it would be handled before it.
        """
        ...

    def is_whole(self, slot: int, claim_score: int, number: int) -> bool:
        """Return whether Redis may be asked to ack a claim as a whole, of which these are so many deliveries."""
        ...

    def takes_long(self, number: int, slots: int) -> bool:
        """Return whether decoding and acking this claim takes the client long enough to fetch the next one meanwhile.

        Args:
            number: How many messages.
            slots: How many slots it has visited.
        """
        ...

    def deliveries(
        self, slot: int, reply: ClaimReply[Any], lease_until_s: float, holder: Holder, owner: Owner
    ) -> list[Delivery]:
        """Return what a claim brought, for handlers."""
        ...

    def columns(
        self, slot: int, reply: ClaimReply[Any], lease_until_s: float, holder: Holder, owner: Owner
    ) -> list[Delivery]:
        """Return what a claim brought, for handlers that take columns: where it can be, several messages in one."""
        ...

    def look_after(self, slot: int) -> bool:
        """Keep a slot within its bounds if it is time, one step; return whether there is more to do at once.

        Every process that listens or polls calls it; the slot itself knows when it was done last.
        """
        ...
