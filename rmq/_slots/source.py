"""Slots that messages can be claimed from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from rmq._model.deliveries import Delivery, Holder
from rmq._model.owner import NO_OWNER, Owner
from rmq._model.replies import ClaimReply, ExtendReply, M
from rmq._model.topics import Topic
from rmq._scripts.claiming import CLAIM_BYTES, Ack, Nack, Renewal, WholeClaim
from rmq._transport.call import Call
from rmq._transport.dispatch import Dispatch


class Source(Protocol[M]):
    """The slots of a topic, as claims and settlements deal with them: plain ones, or those of a consumer of a group."""

    topic: Topic

    awaits_owners: bool
    """Whether a claim itself waits until nothing of an earlier owner is in flight."""

    joins_claims: bool
    """Whether `claiming.claim_many` knows its claims."""

    acks_whole: bool
    """Whether a claim score names all deliveries of a claim, so that `whole` acks them."""

    group: str | None
    """The group, on a stream topic."""

    def claim_call(
        self,
        slot: int,
        limit: int,
        *,
        owner: Owner = NO_OWNER,
        start: int = 0,
        acks: Iterable[Ack] = (),
        nacks: Sequence[Nack] = (),
        whole: Sequence[WholeClaim] = (),
        most_bytes: int = CLAIM_BYTES,
    ) -> Call[ClaimReply[M]]:
        """Build a claim that first settles earlier deliveries.

        `whole` acks claims of which every delivery is done. The reply's `unmatched` are the claim scores of those that
        have to be acked by name.

        Guarantee: a whole claim is acked only if all of it is still there; else nothing changes for it. Nobody else's
        can be meant: no two claims or renewals of a slot have a score in common.
        """
        ...

    def look_call(self, slots: Sequence[int]) -> Call[tuple[int, list[int]]]:
        """Build the reading of when each slot next has something to do."""
        ...

    def deliveries(
        self, slot: int, reply: ClaimReply[M], lease_until_s: float, holder: Holder, owner: Owner
    ) -> list[Delivery]:
        """Return what a claim brought, for handlers."""
        ...

    def ack_call(self, slot: int, acks: Sequence[Ack]) -> Call[tuple[bytes, ...]]:
        """Build the ack of up to `MAX_BATCH` deliveries; answers the names of those whose claim was stale."""
        ...

    def nack_call(self, slot: int, nacks: Sequence[Nack]) -> Call[tuple[bytes, ...]]:
        """Build the nack of up to `NACK_BATCH` deliveries; answers the names of those whose claim was stale."""
        ...

    def extend_call(self, slot: int, claims: Sequence[Ack]) -> Call[ExtendReply]:
        """Build the renewal of up to `RENEWALS` leases."""
        ...

    def begin_extend(self, renewals: Sequence[Renewal]) -> Dispatch:
        """Send renewals of leases in several slots at once; a server that is down does not hold up the others."""
        ...
