"""Deliveries that a poll has claimed and not returned: they wait for the next poll, and go back if none comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rmq._claiming.leaving import Caretaker
from rmq._io.backend import Runtime
from rmq._model.claim_columns import spread
from rmq._model.deliveries import Delivery
from rmq._model.reports import reporter
from rmq._model.times import monotonic_s
from rmq._model.topics import Topic

log = reporter("rmq.leftovers")

LOOK_EVERY_S = 1.0
"""How often the job looks whether the next poll has come."""


class Leftovers:
    """Keeps deliveries between two polls. Thread-safe.

    They go back uncounted when it is closed, when the program ends, and when no poll has come in half a lease.

    Args:
        runtime: How to wait.
        topic: The registered definition.
        release: Gives deliveries back.
    """

    def __init__(self, runtime: Runtime, topic: Topic, release: Callable[[Sequence[Delivery]], object]) -> None:
        self._topic = topic
        self._release = release
        self._left: list[Delivery] = []
        self._kept_s = 0.0
        self._care = Caretaker(runtime, f"rmq-leftovers-{topic.name}", lambda: self._left, self._tidy, LOOK_EVERY_S)

    def take(self) -> list[Delivery]:
        """Return what was kept and still has its lease."""
        if not self._left:
            return []
        with self._care.lock:
            left, self._left = self._left, []
        now_s = monotonic_s()
        return [delivery for delivery in left if now_s < delivery.lease_until_s]

    def keep(self, deliveries: Sequence[Delivery]) -> None:
        """Keep deliveries for the next `take`, which may be that of another method, each for itself.

        Gives them back where it is closed.
        """
        if not deliveries:
            return
        with self._care.lock:
            self._left += spread(deliveries)
            self._kept_s = monotonic_s()
        if self._care.ending.is_set():
            self._tidy(True)
        else:
            self._care.begin()

    def close(self) -> None:
        """Give back what is kept, and keep nothing from now on. Does nothing after a fork."""
        if not self._care.forked:
            self._care.ending.set()
            self._tidy(True)

    def _tidy(self, everything: bool) -> None:
        """Release everything, or what is kept for too long; what cannot be released comes back with its lease."""
        if not everything and monotonic_s() - self._kept_s <= self._topic.lease_s / 2:
            return
        try:
            if left := self.take():
                self._release(left)
        except Exception as error:
            log.warning("topic %s: prefetched messages come back with their leases: %s", self._topic.name, error)
