"""Deliveries that a poll has claimed and did not hand over: they wait for the next one, and go back if none comes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from rmq._claiming.leaving import EXIT_S, has_left, leave_at_exit
from rmq._io.backend import Blocking
from rmq._model.deliveries import Delivery
from rmq._model.reports import reporter
from rmq._model.times import monotonic_s
from rmq._model.topics import Topic

log = reporter("rmq.leftovers")

LOOK_EVERY_S = 1.0
"""How often it is looked whether the next poll has come."""


class Leftovers:
    """Keeps deliveries between two polls. Thread-safe.

    They go back uncounted when it is closed, when the program ends, and when no poll has come in half a lease.

    Args:
        blocking: How to wait.
        topic: The registered definition.
        release: Gives deliveries back.
    """

    def __init__(self, blocking: Blocking, topic: Topic, release: Callable[[Sequence[Delivery]], object]) -> None:
        self._blocking = blocking
        self._topic = topic
        self._release = release
        self._lock = blocking.lock()  # nothing waits while it is held
        self._left: list[Delivery] = []
        self._kept_s = 0.0
        self._looked_after = self._ended = False
        self._ending, self._idle = blocking.event(), blocking.event()
        self._pid = os.getpid()

    def take(self) -> list[Delivery]:
        """Return what was kept, but for what has lost its lease in the meantime."""
        if not self._left:
            return []
        with self._lock:
            left, self._left = self._left, []
        now_s = monotonic_s()
        return [delivery for delivery in left if now_s < delivery.lease_until_s]

    def keep(self, deliveries: Sequence[Delivery]) -> None:
        """Keep deliveries for the next `take`; give them back where it is closed."""
        if not deliveries:
            return
        with self._lock:
            self._left += deliveries
            self._kept_s = monotonic_s()
        if self._ended:
            self.give_back()
        else:
            self._look_after()

    def close(self) -> None:
        """Give back what is kept, and keep nothing from now on. Does nothing after a fork."""
        self._ended = True
        if os.getpid() == self._pid:
            self._ending.set()
            self.give_back()

    def give_back(self) -> None:
        """Release what is kept; what cannot be released comes back with its lease."""
        left = self.take()
        try:
            if left:
                self._release(left)
        except Exception as error:
            log.warning("topic %s: prefetched messages come back with their leases: %s", self._topic.name, error)

    def leave(self, until_s: float) -> None:
        """Have it given back by the job that looks after it; wait for that until then."""
        if os.getpid() == self._pid:  # after a fork nobody does, and a lock may be held for ever
            self._ended = True
            self._ending.set()
            self._idle.wait(max(0.0, until_s - monotonic_s()))

    def _look_after(self) -> None:
        """Have a job look after what is kept, until there is nothing more of it."""
        with self._lock:
            if self._looked_after:
                return
            self._looked_after = True
            self._idle.clear()
        try:
            if self._blocking.outlives_main:
                leave_at_exit(self)
            self._blocking.job(self._until_taken, f"rmq-leftovers-{self._topic.name}").start()
        except BaseException as error:
            self._is_idle()
            if not isinstance(error, RuntimeError):
                raise
            self.give_back()  # no more threads: the program ends, or has too many

    def _until_taken(self) -> None:
        try:
            while not self._is_idle(unless_kept=True):
                if self._ending.wait(LOOK_EVERY_S) or monotonic_s() - self._kept_s > self._topic.lease_s / 2:
                    self.give_back()
        except self._blocking.interruptions:
            self._ended = True
            self._blocking.last_words(self.give_back, EXIT_S)
            raise
        finally:
            self._is_idle()

    def _is_idle(self, *, unless_kept: bool = False) -> bool:
        with self._lock:
            if unless_kept and self._left:
                return False
            self._looked_after = False
            self._idle.set()
        has_left(self)
        return True
