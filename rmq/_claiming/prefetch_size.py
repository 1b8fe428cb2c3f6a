"""Number of messages to claim ahead: as many as are handled in a tenth of a second. Pure."""

from __future__ import annotations

PREFETCH_S = 0.1
"""Time of handling to prefetch for, in seconds: it hides the round trip, and barely delays urgent messages."""

MOST_PREFETCHED = 500
"""Most messages of one node that are claimed for calls of the handler with one message each."""

MOST_BATCHED = 2_000
"""Most messages of one node that are claimed for calls with a batch each, unless a single batch has more."""

FIRST_GUESS = 1
_WEIGHT = 0.3


class PrefetchSize:
    """Number of messages to prefetch, from a moving average of a handler's speed."""

    def __init__(self) -> None:
        self._per_message_s: float | None = None

    def note(self, messages: int, elapsed_s: float) -> None:
        """Record that a number of messages took `elapsed_s` seconds."""
        if messages:
            now_s = elapsed_s / messages
            known = self._per_message_s
            self._per_message_s = now_s if known is None else known + _WEIGHT * (now_s - known)

    def messages(self, within_s: float = PREFETCH_S) -> int:
        """Return the number of messages that are handled within `within_s`, at least 1."""
        if self._per_message_s is None:
            return FIRST_GUESS
        return max(1, int(within_s / max(self._per_message_s, 1e-9)))

    @property
    def is_known(self) -> bool:
        """True once a duration of the handler is known."""
        return self._per_message_s is not None

    def takes_s(self, messages: int) -> float:
        """Return the seconds that it takes to handle a number of messages; 0 while that is unknown."""
        return (self._per_message_s or 0.0) * messages
