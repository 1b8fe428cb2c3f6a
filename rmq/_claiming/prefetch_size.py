"""How many messages are claimed ahead: so many as are worked off in a tenth of a second, and fit into memory. Pure."""

from __future__ import annotations

PREFETCH_S = 0.1
"""Enough that the trip to Redis does not show; so little that a more urgent message need not wait long."""

MOST_PREFETCHED = 500
FIRST_GUESS = 1
_WEIGHT = 0.3


class PrefetchSize:
    """Follows a handler's speed as a moving average.

    Args:
        most: Upper bound of the answer.
    """

    def __init__(self, most: int = MOST_PREFETCHED) -> None:
        self._most = most
        self._per_message_s: float | None = None

    def note(self, messages: int, elapsed_s: float) -> None:
        """Learn that handling so many messages took so long."""
        if messages:
            now_s = elapsed_s / messages
            known = self._per_message_s
            self._per_message_s = now_s if known is None else known + _WEIGHT * (now_s - known)

    def messages(self) -> int:
        """Return how many messages to claim next, at least 1."""
        if self._per_message_s is None:
            return min(FIRST_GUESS, self._most)
        return max(1, min(self._most, int(PREFETCH_S / max(self._per_message_s, 1e-9))))


class Weights:
    """Follows how many bytes messages have, so that nobody asks for more than is handed over at once.

    Args:
        most_bytes: Of contents and bodies together, in one round of claims.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._per_message = 0.0

    def note(self, messages: int, size_bytes: int) -> None:
        """Learn that so many messages had so many bytes. Large ones are believed at once, small ones by and by."""
        if messages:
            mean = size_bytes / messages
            self._per_message = max(mean, self._per_message + _WEIGHT * (mean - self._per_message))

    def most(self, wanted: int) -> int:
        """Return how many messages to ask for, at most `wanted`, at least 1 of them."""
        if wanted * self._per_message <= self._most_bytes:
            return wanted
        return max(min(wanted, 1), min(wanted, int(self._most_bytes / max(self._per_message, 1e-9))))
