"""Selects the listener whose handler may start next, if the listeners of a process share its handlers. Pure.

The selection is weighted fair queuing: the listener that has used the least time, relative to its weight, goes first.
One handler is kept free for each idle listener, so that a listener whose handlers are slow or hang never uses them all.
"""

from __future__ import annotations

from collections.abc import Sequence


class FairShare:
    """The usage of one listener. Times are monotonic seconds.

    Args:
        weight: Its weight relative to the other listeners, more than 0.
    """

    def __init__(self, weight: float = 1.0) -> None:
        self._weight = weight
        self._used_s = 0.0
        self._began_sum_s = 0.0
        self.running = 0
        self.waiting = 0

    @property
    def active(self) -> bool:
        """Whether a handler of the listener runs or waits."""
        return self.running > 0 or self.waiting > 0

    def used_s(self, now_s: float) -> float:
        """Return the time used by ended and running handlers, divided by the weight."""
        return self._used_s + max(0.0, self.running * now_s - self._began_sum_s) / self._weight

    def catch_up(self, least_s: float) -> None:
        """Start from the smallest usage of the active listeners, so that idle time does not give it priority later."""
        self._used_s = max(self._used_s, least_s)

    def begin(self, now_s: float) -> None:
        """Record that a handler starts."""
        self.running += 1
        self._began_sum_s += now_s

    def end(self, began_s: float, now_s: float) -> None:
        """Record that a handler which started at `began_s` has ended."""
        self.running -= 1
        self._began_sum_s -= began_s
        self._used_s += max(0.0, now_s - began_s) / self._weight

    def suspend(self, now_s: float) -> None:
        """Stop counting a running handler that was abandoned."""
        self.running -= 1
        self._began_sum_s -= now_s

    def resume(self, since_s: float, now_s: float) -> None:
        """Count a handler again that was suspended at `since_s`; the time in between is not charged."""
        self.running += 1
        self._began_sum_s += since_s
        self._used_s -= (now_s - since_s) / self._weight


def least_used_s(shares: Sequence[FairShare], now_s: float) -> float:
    """Return the smallest usage of the active listeners; 0 if none is active."""
    return min((share.used_s(now_s) for share in shares if share.active), default=0.0)


def next_share(
    shares: Sequence[FairShare], allowed: Sequence[int], handlers: int | None, now_s: float
) -> FairShare | None:
    """Return the listener that may start one more handler; `None` if none may.

    Args:
        shares: The shares of all listeners.
        allowed: Maximum number of running handlers of each listener.
        handlers: Maximum number of running handlers of all listeners together; `None` for no limit.
        now_s: The time.
    """
    free = len(shares) + 1 if handlers is None else handlers - sum(share.running for share in shares)
    if free <= 0:
        return None
    idle = sum(share.running == 0 for share in shares)
    ready = [
        share
        for share, most in zip(shares, allowed, strict=True)
        if share.waiting and share.running < most and (share.running == 0 or free > idle)
    ]
    return min(ready, key=lambda share: share.used_s(now_s), default=None)
