"""The plan of a round of claims, its size, its division into calls, and its result. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rmq._broker.claims import CLAIM_BYTES, ClaimPart
from rmq._claiming.outcome_batches import OutcomeBatch
from rmq._model.claims import Selection
from rmq._model.deliveries import Claim, Delivery
from rmq._model.replies import ClaimedRows, ClaimReply, Owner
from rmq.errors import RmqError

CLAIM_WEIGHT, MOST_WEIGHT = 25, 1_000
"""Weight of a slot in a script call that claims from several, in addition to its limit and its settled values; and the
maximum weight of a call, about a millisecond of the server."""

PATIENCE_S = 0.25
"""Seconds that a round over several nodes waits for a node that sends nothing; its replies may arrive later."""

FEWEST_SLOTS, FIRST_SLOTS, MOST_SLOTS = 4, 16, 128
"""Bounds and initial number of the slots of a round trip. If claims return as many messages as they may, fewer slots
with more messages each cost Redis less per message; if they do not, more slots are served sooner."""

HEADROOM = 4
"""A slot may return this many times the average number of messages; beyond that, its lowest priorities have to wait."""

WEIGHT = 0.3
"""Weight of the last round in the moving average of the size of messages."""


@dataclass(slots=True)
class ClaimRequest:
    """One slot's part in a round of claims.

    Attributes:
        slot: The slot.
        owner: The owner in whose name the call is made.
        limit: Maximum number of messages to claim there.
        start: Rank at which to continue an earlier search.
        picked: Whether the slot was picked to be claimed from; if not, outcomes are only settled.
        settlements: The outcomes that the call carries; `None` for none.
        reply: The reply; `None` until it has arrived.
    """

    slot: int
    owner: Owner
    limit: int = 0
    start: int = 0
    picked: bool = True
    settlements: OutcomeBatch | None = None
    reply: ClaimReply[Any] | RmqError | None = None

    @property
    def settled(self) -> list[Selection]:
        """The rows whose outcomes the call carries."""
        return [] if self.settlements is None else self.settlements.selections


@dataclass(slots=True)
class ClaimPlan:
    """The plan of a round of claims.

    Attributes:
        requests: The slots that were picked. No other thread picks them until their replies are known.
        busy: Whether this round, or one soon after it, claims messages: acks may wait for a claim that carries them.
        tokens: Number of tokens of the topic's rate limit that were taken for the round.
    """

    requests: list[ClaimRequest]
    busy: bool
    tokens: int = 0


@dataclass(slots=True, kw_only=True)  # its lists are of one type
class FetchResult:
    """The result of a round of claims, and of earlier rounds whose replies have arrived with it.

    Attributes:
        claims: The new claims.
        settled: Rows whose outcomes were carried out, or ignored because their leases had been lost.
        unsent: Rows whose outcomes certainly did not reach Redis: they have to be sent again.
        unconfirmed: Rows whose outcomes may or may not be carried out, since the reply was lost. If not, the messages
            are redelivered when their leases expire.
        unused: Tokens of the rate limit for which certainly no message was claimed.
        lost: Deliveries whose lease was found to be lost.
    """

    claims: list[Claim] = field(default_factory=list[Claim])
    settled: list[Selection] = field(default_factory=list[Selection])
    unsent: list[Selection] = field(default_factory=list[Selection])
    unconfirmed: list[Selection] = field(default_factory=list[Selection])
    unused: int = 0
    lost: list[Delivery] = field(default_factory=list[Delivery])

    @property
    def deliveries(self) -> list[Delivery]:
        """The deliveries of the new claims."""
        return [delivery for claim in self.claims for delivery in claim.deliveries()]

    def lose(self, selections: Iterable[Selection]) -> None:
        """Note that the leases of rows were lost; add those that were not known to be lost to `lost`."""
        for claim, rows in selections:
            self.lost += claim.deliveries(claim.lose(rows))


def group_parts(parts: Sequence[ClaimPart], joins: bool) -> list[list[ClaimPart]]:
    """Divide the parts of slots into groups of one script call each. A script blocks all other clients.

    Args:
        parts: The parts.
        joins: Whether slots may share a call.
    """
    if len(parts) == 1:
        return [[parts[0]]]
    groups: list[list[ClaimPart]] = []
    room = 0
    for part in parts:
        weight = CLAIM_WEIGHT + max(0, part.limit) + part.outcomes.weight
        if weight > room or not joins:
            groups.append([])
            room = MOST_WEIGHT
        groups[-1].append(part)
        room -= weight
    return groups


class FetchSize:
    """Number of slots and messages of a round, so that it returns no more bytes than allowed.

    Args:
        fewest: Fewest slots: more than one where slots share a call, so that they cost little.
        most_bytes: Maximum bytes of contents and bodies in one round.

    Attributes:
        slots: Maximum number of slots to claim from.
    """

    def __init__(self, fewest: int = FEWEST_SLOTS, most_bytes: int = CLAIM_BYTES) -> None:
        self._fewest = fewest
        self.slots = FIRST_SLOTS
        self._most_bytes = most_bytes
        self._bytes_per_message = 0.0

    def size_for(self, limit: int, most_each: int, nodes: int) -> tuple[int, int]:
        """Return the number of messages to claim, 1 to `limit`, and of slots: enough for them, and for all nodes.

        Args:
            limit: Most messages of the round.
            most_each: Most messages from one slot.
            nodes: Number of servers that have the slots.
        """
        if limit == 1:
            return 1, 1
        messages = self.messages(limit)
        return messages, min(messages, max(self.slots, nodes, -(-messages // most_each)))

    def messages(self, limit: int) -> int:
        """Return the number of messages to claim, 1 to `limit`."""
        if limit * self._bytes_per_message <= self._most_bytes:
            return limit
        return max(1, int(self._most_bytes / self._bytes_per_message))

    def note(self, asked: int, replies: Sequence[ClaimReply[Any]], slots: int) -> bool:
        """Learn from a round, or a part of it; return whether due slots got no messages because others filled the call.

        Args:
            asked: Number of messages that these calls requested.
            replies: Their replies. A larger average size counts at once, a smaller one gradually.
            slots: Number of slots from which the whole round claims.
        """
        received, size_bytes, filled = 0, 0, False
        for reply in replies:
            if number := len(messages := reply.messages):
                received += number
                if isinstance(messages, ClaimedRows):
                    content, bodies = messages.contents[0], messages.bodies
                else:
                    content, bodies = messages[0].content, [message.body for message in messages]
                size_bytes += len(content) * number + sum(map(len, filter(None, bodies)))
            elif 0 < reply.next_due_ms <= reply.now_ms:
                filled = True
        slots_needed = asked * slots // (HEADROOM * received) if received else MOST_SLOTS
        self.slots = max(self._fewest, min(MOST_SLOTS, 2 * self.slots, max(slots_needed, self.slots // 2)))
        if received:
            mean = size_bytes / received
            self._bytes_per_message = max(mean, self._bytes_per_message + WEIGHT * (mean - self._bytes_per_message))
        return filled and received > 0
