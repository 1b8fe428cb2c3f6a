"""The protocol through which messages are claimed and settled; `QueueBroker` and `StreamBroker` implement it."""

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
    """The slots of a topic, as a consumer of a queue, or of a group of a stream, claims from them.

    Methods whose names end in `_call` build a call without running it.

    Attributes:
        topic: The registered definition.
        group: The group, on a stream topic. The owner of a slot gets the entries of a group in their order.
        upkeep_s: Interval of the clean-up of a slot, in seconds; `None` for never.
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
        """Build one call of several claims whose slots one script may touch; each has its own reply.

        Args:
            claims: Calls that `claim_call` has built.
            settle_only: For each, whether it only settles, without a search for messages to claim or to sweep.
            most_bytes: Maximum of bytes that all claims together return; the first message may have more.
        """
        ...

    def ack_call(self, slot: int, acks: Sequence[Ack]) -> Call[tuple[bytes, ...]]:
        """Build the ack of up to `MAX_BATCH` deliveries; returns the names of those whose claim was stale."""
        ...

    def whole_call(self, slot: int, whole: Sequence[WholeClaim]) -> Call[tuple[int, ...]]:
        """Build the ack of up to `WHOLE_BATCH` claims as a whole; returns the scores of those to be acked by name."""
        ...

    def nack_call(self, slot: int, nacks: Sequence[Nack]) -> Call[NackReply]:
        """Build the nack of up to `NACK_BATCH` deliveries; the reply may cover only the first ones."""
        ...

    def extend_call(self, slot: int, claims: Sequence[Ack], owner: Owner = NO_OWNER) -> Call[ExtendReply]:
        """Build the renewal of up to `RENEWALS` leases; returns the new claim scores, `None` for a lost lease."""
        ...

    def look_call(self, slots: Sequence[int]) -> Call[tuple[int, list[int]]]:
        """Build the reading of Redis' time and of when each slot next has something to do (0 for never), ms."""
        ...

    def begin_extend(self, renewals: Sequence[Renewal]) -> Dispatch:
        """Send renewals of leases in several slots at once; a server that is down does not delay the others."""
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
            handed_over: Returns whether nothing of an earlier owner is in flight in the slot. A claim from a queue has
                to wait for that; a claim for a group checks it itself.
            returns: Returns whether the holder still has a message of the slot to release. A claim for a group has to
                wait for that: else later entries would be handled before it.
        """
        ...

    def is_whole(self, slot: int, claim_score: int, number: int) -> bool:
        """Return whether a claim of which the holder has so many deliveries may be acked as a whole."""
        ...

    def takes_long(self, number: int, slots: int) -> bool:
        """Return whether decoding and acking this claim takes so long that the next one should be fetched meanwhile.

        Args:
            number: How many messages.
            slots: Number of slots of the claim.
        """
        ...

    def deliveries(
        self, slot: int, reply: ClaimReply[Any], lease_until_s: float, holder: Holder, owner: Owner
    ) -> list[Delivery]:
        """Return the deliveries of a claim."""
        ...

    def columns(
        self, slot: int, reply: ClaimReply[Any], lease_until_s: float, holder: Holder, owner: Owner
    ) -> list[Delivery]:
        """Return the deliveries of a claim for handlers that take columns: several messages in one, if possible."""
        ...

    def look_after(self, slot: int) -> bool:
        """Run one step of the clean-up of a slot, if it is due; return whether there is more to do at once.

        Every process that listens or polls calls it; the time of the last clean-up is kept in the slot.
        """
        ...
