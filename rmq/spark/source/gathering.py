"""Delays a batch until enough messages are due, or the maximum delay is over."""

from __future__ import annotations

from collections.abc import Callable

from rmq._model.times import monotonic_s

LOOK_EVERY_S = 1.0
"""Interval between counts of due messages while a batch is delayed, seconds."""

SLOTS_A_SECOND = 50
"""Number of slots up to which that interval applies; it grows with more slots."""


class Gathering:
    """Decides whether a batch is delayed. Not thread-safe.

    Args:
        least: Minimum number of messages of a batch; 1 or less for no delay.
        delay_s: Time after the last batch or the start after which fewer messages are enough, seconds.
        slots: Number of slots that are counted.
    """

    def __init__(self, least: int, delay_s: float, slots: int) -> None:
        self._least, self._delay_s = least, delay_s
        self._every_s = max(LOOK_EVERY_S, slots / SLOTS_A_SECOND)
        self._batch_s = monotonic_s()
        self._look_s = 0.0

    def is_over(self, timeout_s: float, sleep: Callable[[float], None]) -> bool:
        """Wait up to `timeout_s`, and return whether it is time to count the due messages."""
        pause_s = min(timeout_s, self._look_s - monotonic_s())
        if pause_s > 0:
            sleep(pause_s)
        return pause_s <= 0

    def holds(self, due: int) -> bool:
        """Return whether to delay the batch with this number of due messages; if not, the delay starts again."""
        now_s = monotonic_s()
        left_s = self._batch_s + self._delay_s - now_s
        if due < self._least and left_s > 0:
            self._look_s = now_s + min(left_s, self._every_s) if due else 0.0
            return True
        if due:
            self._batch_s, self._look_s = now_s, 0.0
        return False
