"""Number of slots and messages of a round of claims, learned from earlier rounds. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rmq._broker.claims import CLAIM_BYTES
from rmq._model.replies import ClaimedRows, ClaimReply

FEWEST_SLOTS, FIRST_SLOTS, MOST_SLOTS = 4, 16, 128
"""Slots claimed from in one round trip. Where claims come back full, fewer slots give more each, which costs Redis less
a message; where they do not, more slots are served sooner."""

HEADROOM = 4
"""A slot may bring so many times what slots bring on average: what has to stay is always the lowest of priorities."""

WEIGHT = 0.3
"""Share of the last round in what is known of the size of messages."""


class FetchSize:
    """Number of slots and messages of a round, so that it returns no more bytes than allowed.

    Args:
        most_bytes: Most contents and bodies in one round.

    Attributes:
        slots: Most slots to claim from.
    """

    def __init__(self, most_bytes: int = CLAIM_BYTES) -> None:
        self.slots = FIRST_SLOTS
        self._most_bytes = most_bytes
        self._bytes_per_message = 0.0

    def messages(self, limit: int) -> int:
        """Return how many messages to claim, 1 to `wanted`."""
        if limit * self._bytes_per_message <= self._most_bytes:
            return limit
        return max(1, int(self._most_bytes / self._bytes_per_message))

    def note(self, asked: int, replies: Sequence[ClaimReply[Any]], slots: int) -> bool:
        """Learn from a round, or a part of it; return whether slots got nothing because others filled the call.

        Args:
            asked: Messages asked for by these calls.
            replies: Their replies. Large messages count at once, small ones bit by bit.
            slots: From how many slots the whole round claims.
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
        self.slots = max(FEWEST_SLOTS, min(MOST_SLOTS, 2 * self.slots, max(slots_needed, self.slots // 2)))
        if received:
            mean = size_bytes / received
            self._bytes_per_message = max(mean, self._bytes_per_message + WEIGHT * (mean - self._bytes_per_message))
        return filled and received > 0
