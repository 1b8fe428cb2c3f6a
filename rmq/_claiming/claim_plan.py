"""What a round of claims is to do, how it is cut into calls, and what it brings. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rmq._claiming.outcome_batches import OutcomeBatch
from rmq._model.deliveries import Delivery
from rmq._model.replies import ClaimReply, Owner
from rmq._transport.call import Call
from rmq.errors import RmqError

CLAIM_WEIGHT, MOST_WEIGHT = 10, 1_000
"""How much goes into one script call that claims from several slots: messages asked for, arguments, and so much a slot.
That is about a millisecond of the server."""

PATIENCE_S = 0.25
"""How long a round over several nodes waits for one that sends nothing. A claim's reply may still come after that."""


@dataclass(slots=True)
class ClaimRequest:
    """One slot's part in a round of claims.

    Attributes:
        slot: The slot.
        owner: In whose name it is called.
        limit: Most messages to claim there.
        start: Where to go on with an earlier search.
        picked: Whether the slot was picked to be claimed from; else it is only settled.
        settlements: The outcomes that go along; `None` for none.
        reply: What came of it; `None` until it is known.
    """

    slot: int
    owner: Owner
    limit: int = 0
    start: int = 0
    picked: bool = True
    settlements: OutcomeBatch | None = None
    reply: ClaimReply[Any] | RmqError | None = None

    @property
    def settled(self) -> list[Delivery]:
        """The deliveries whose outcomes go along."""
        return [] if self.settlements is None else self.settlements.deliveries


@dataclass(slots=True)
class ClaimPlan:
    """What a round of claims is to do.

    Attributes:
        requests: The slots that were picked; nobody else picks them until the replies are known.
        busy: Whether this round or one soon after it claims something, so that acks may wait for a claim.
        tokens: How many tokens of the topic's rate limit were taken for it.
    """

    requests: list[ClaimRequest]
    busy: bool
    tokens: int = 0


@dataclass(slots=True)
class FetchResult:
    """What a round of claims brought.

    Attributes:
        deliveries: What was claimed.
        unsent: Settled deliveries whose outcomes certainly did not reach Redis: to be sent again.
        unconfirmed: Settled deliveries whose outcomes may or may not be carried out, since the reply was lost. Their
            leases settle it.
        doubtful: How many messages may have been claimed by calls of which the reply was lost, or is still awaited.
        arrived: Settled deliveries of earlier rounds of which it is known by now what became of them.
        lost: Settled deliveries whose lease had been lost.
    """

    deliveries: list[Delivery]
    unsent: list[Delivery]
    unconfirmed: list[Delivery] = field(default_factory=list[Delivery])
    doubtful: int = 0
    arrived: list[Delivery] = field(default_factory=list[Delivery])
    lost: list[Delivery] = field(default_factory=list[Delivery])

    def add(self, other: FetchResult) -> None:
        """Take what another round brought, too."""
        self.deliveries.extend(other.deliveries)
        self.unsent.extend(other.unsent)
        self.unconfirmed.extend(other.unconfirmed)
        self.doubtful += other.doubtful
        self.arrived.extend(other.arrived)
        self.lost.extend(other.lost)


def merged_results(first: FetchResult | None, second: FetchResult | None) -> FetchResult | None:
    """Return what two rounds have brought; either may be none."""
    if first is None or second is None:
        return first or second
    first.add(second)
    return first


def group_calls(calls: Sequence[Call[ClaimReply[Any]]], requests: Sequence[ClaimRequest]) -> list[tuple[int, int]]:
    """Put claims into groups of a script call each, as first and after last: a script holds up all other clients."""
    groups: list[tuple[int, int]] = []
    room = 0
    for index, (call, request) in enumerate(zip(calls, requests, strict=True)):
        weight = CLAIM_WEIGHT + request.limit + len(call.args)
        if weight > room:
            groups.append((index, index))
            room = MOST_WEIGHT
        groups[-1] = (groups[-1][0], index + 1)
        room -= weight
    return groups
