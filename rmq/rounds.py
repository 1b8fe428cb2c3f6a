"""How a round of claims is cut into calls, and what it asks of a topic's slots and brings. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rmq.calls import Ack, Call, Nack, WholeClaim
from rmq.delivery import Delivery, Holder
from rmq.ownership import NO_OWNER, Owner
from rmq.results import ClaimReply

FEWEST_SLOTS, FIRST_SLOTS, MOST_SLOTS = 4, 16, 128
"""Slots claimed from in one round trip. Where claims come back full, fewer slots give more each, which costs Redis less
a message; where they do not, more slots are served sooner."""

CLAIM_WEIGHT, MOST_WEIGHT = 10, 1_000
"""How much goes into one script call that claims from several slots: messages asked for, arguments, and so much a slot.
That is about a millisecond of the server."""

PATIENCE_S = 0.25
"""How long a round over several nodes waits for those that are down, once the others have answered."""

Board = Callable[[Sequence[int] | None], Sequence[Delivery]]
"""Returns the outcomes that are to go along with claims from these slots; with `None` all that there are."""


@dataclass(frozen=True, slots=True)
class ClaimRound:
    """What a round of claims brought.

    Attributes:
        deliveries: What was claimed.
        unsent: Settled deliveries whose outcomes certainly did not reach Redis: to be sent again.
        unheard: Settled deliveries whose outcomes may or may not be carried out, since the reply was lost: their leases
            settle it.
        doubtful: How many messages may have been claimed by calls of which the reply was lost.
    """

    deliveries: list[Delivery]
    unsent: list[Delivery]
    unheard: list[Delivery] = field(default_factory=list[Delivery])
    doubtful: int = 0


class Source(Protocol):
    """The slots of a topic, as a claimer deals with them."""

    awaits_owners: bool
    """Whether a claim itself waits until nothing of an earlier owner is in flight."""

    joins_claims: bool
    """Whether `calls.claim_many` knows its claims."""

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
    ) -> Call[ClaimReply]:
        """Build a claim that first settles earlier deliveries."""
        ...

    def look_call(self, slots: Sequence[int]) -> Call[tuple[int, list[int]]]:
        """Build the reading of when each slot next has something to do."""
        ...

    def deliveries(
        self, slot: int, reply: ClaimReply, lease_until_s: float, holder: Holder, owner: Owner
    ) -> list[Delivery]:
        """Return what a claim brought, for handlers."""
        ...


def joined(parts: Sequence[Call[ClaimReply]], limits: Sequence[int]) -> list[tuple[int, int]]:
    """Put claims into groups of a script call each, as first and after last: a script holds up all other clients."""
    groups: list[tuple[int, int]] = []
    room = 0
    for index, (part, limit) in enumerate(zip(parts, limits, strict=True)):
        weight = CLAIM_WEIGHT + limit + len(part.args)
        if weight > room:
            groups.append((index, index))
            room = MOST_WEIGHT
        groups[-1] = (groups[-1][0], index + 1)
        room -= weight
    return groups


def next_width(width: int, asked: int, got: int) -> int:
    """Return from how many slots to claim at once, after a round that asked for so many messages and got so many."""
    return max(FEWEST_SLOTS, width // 2) if got >= 0.9 * asked else min(MOST_SLOTS, width * 2)
