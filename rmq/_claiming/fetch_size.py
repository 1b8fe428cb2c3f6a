"""Number of slots and messages of a round of claims, learned from earlier rounds. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rmq._broker.claims import CLAIM_BYTES
from rmq._model.replies import ClaimedRows, ClaimReply

FEWEST_SLOTS, FIRST_SLOTS, MOST_SLOTS = 4, 16, 128
"""Bounds and initial number of the slots of a round trip. If claims return as many messages as they may, fewer slots
with more messages each cost Redis less per message; if they do not, more slots are served sooner."""

HEADROOM = 4
"""A slot may return this many times the average number of messages; beyond that, its lowest priorities have to wait."""

WEIGHT = 0.3
"""Weight of the last round in the moving average of the size of messages."""


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
            if messages := reply.messages:
                received += len(messages)
                size_bytes += len(messages[0].content) * len(messages)
                rows = isinstance(messages, ClaimedRows)
                bodies = messages.bodies if rows else [message.body for message in messages]
                size_bytes += sum(map(len, filter(None, bodies)))
            elif 0 < reply.next_due_ms <= reply.now_ms:
                filled = True
        slots_needed = asked * slots // (HEADROOM * received) if received else MOST_SLOTS
        self.slots = max(self._fewest, min(MOST_SLOTS, 2 * self.slots, max(slots_needed, self.slots // 2)))
        if received:
            mean = size_bytes / received
            self._bytes_per_message = max(mean, self._bytes_per_message + WEIGHT * (mean - self._bytes_per_message))
        return filled and received > 0
