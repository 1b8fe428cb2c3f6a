"""When the slots of a topic are due, as all who claim there know it: the schedule, and the lock that guards it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmq._claiming.schedule import Schedule
from rmq._io.backend import Blocking
from rmq._model.times import monotonic_s


class DueSlots:
    """The one owner of a schedule that several threads share. Thread-safe.

    Args:
        blocking: How to wait.
        slots: The slots to watch.

    Attributes:
        schedule: To be read and changed only while `changed` is held.
        changed: Guards the schedule; notified when threads in `wait` have to look again.
    """

    def __init__(self, blocking: Blocking, slots: Iterable[int]) -> None:
        self.schedule = Schedule(slots)
        self.changed = blocking.condition()

    def wake_all(self) -> None:
        """Let threads in `wait` look again."""
        with self.changed:
            self.changed.notify_all()

    def wait(self, longest_s: float, least_s: float = 0.0) -> None:
        """Wait until a slot is due and `least_s` have passed, something changes, or `longest_s` have passed."""
        with self.changed:
            timeout_s = min(longest_s, max(self.schedule.wait_s(monotonic_s(), longest_s), least_s))
            if timeout_s > 0:
                self.changed.wait(timeout_s)

    def wait_s(self, longest_s: float) -> float:
        """Return for how long nothing is due, in seconds, at most `longest_s`."""
        with self.changed:
            return self.schedule.wait_s(monotonic_s(), longest_s)

    def hint(self, times: Iterable[tuple[int, int]]) -> None:
        """Take slots for due at these times, epoch ms, at the latest; 0 for at once. Unknown slots do no harm."""
        with self.changed:
            for slot, due_ms in times:
                self.schedule.hint(slot, due_ms)
            self.changed.notify_all()

    def postpone(self, slot: int, pause_s: float) -> None:
        """Leave a slot alone for a while."""
        with self.changed:
            self.schedule.postpone(slot, monotonic_s(), pause_s)

    def looked(self, slots: Sequence[int], times: Sequence[int], now_ms: int, asked_s: float) -> None:
        """Learn what Redis said of slots.

        Args:
            slots: The slots.
            times: When each of them is due, epoch ms; 0 for never.
            now_ms: Redis' time of the answer.
            asked_s: When it was asked, on the clock of `monotonic_s`.
        """
        with self.changed:
            self.schedule.sync_clock(now_ms, monotonic_s(), asked_s)
            for slot, due_ms in zip(slots, times, strict=True):
                if due_ms:
                    self.schedule.hint(slot, due_ms)
            self.changed.notify_all()
