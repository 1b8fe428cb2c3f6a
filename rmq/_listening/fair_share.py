"""Which listener of a process may begin next, where they share its handlers. Pure.

Weighted fair: who has used least time for its weight goes first. One handler of each other listener stays free, so that
a topic whose handlers take long, or hang, never has them all.
"""

from __future__ import annotations

from collections.abc import Sequence


class FairShare:
    """A listener's part of what is shared. Times are those of one monotonic clock, in seconds.

    Args:
        weight: Its part beside the others' weights, more than 0.
    """

    def __init__(self, weight: float = 1.0) -> None:
        self._weight = weight
        self._used_s = 0.0
        self._began_sum_s = 0.0
        self.running = 0
        self.waiting = 0

    @property
    def active(self) -> bool:
        """Whether it runs, or wants to."""
        return self.running > 0 or self.waiting > 0

    def used_s(self, now_s: float) -> float:
        """Return the time used so far by what has ended and what runs, divided by the weight."""
        return self._used_s + max(0.0, self.running * now_s - self._began_sum_s) / self._weight

    def catch_up(self, least_s: float) -> None:
        """Forget the time in which it wanted nothing: it shall not have the others wait for as long now."""
        self._used_s = max(self._used_s, least_s)

    def begin(self, now_s: float) -> None:
        """One more runs."""
        self.running += 1
        self._began_sum_s += now_s

    def end(self, began_s: float, now_s: float) -> None:
        """One that began then has ended."""
        self.running -= 1
        self._began_sum_s -= began_s
        self._used_s += max(0.0, now_s - began_s) / self._weight

    def suspend(self, now_s: float) -> None:
        """One that runs counts no more from now on: its handler was given up."""
        self.running -= 1
        self._began_sum_s -= now_s

    def resume(self, since_s: float, now_s: float) -> None:
        """One that was suspended then counts again; the time between is not used."""
        self.running += 1
        self._began_sum_s += since_s
        self._used_s -= (now_s - since_s) / self._weight


def least_used_s(shares: Sequence[FairShare], now_s: float) -> float:
    """Return how much the active one that used least has used; 0 with none active."""
    return min((share.used_s(now_s) for share in shares if share.active), default=0.0)


def next_share(
    shares: Sequence[FairShare], allowed: Sequence[int], handlers: int | None, now_s: float
) -> FairShare | None:
    """Return whose turn it is to begin one more; `None` while nobody may.

    Args:
        shares: All of them.
        allowed: How many of each may run.
        handlers: How many may run in all; `None` for any number.
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
