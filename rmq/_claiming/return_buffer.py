"""Deliveries that a poll has claimed but not returned: kept for the next poll, and released if there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rmq._claiming.background_flush import BackgroundFlush
from rmq._io.backend import Runtime
from rmq._io.reports import reporter
from rmq._model.claims import Selection
from rmq._model.outcomes import RELEASED, Outcome
from rmq._model.times import monotonic_s
from rmq._model.topics import Topic

log = reporter("rmq.leftovers")

LOOK_EVERY_S = 1.0
"""Interval at which the background job checks for deliveries to release, in seconds."""


class ReturnBuffer:
    """Keeps deliveries between two polls. Thread-safe.

    They are released without using up a retry when the buffer is closed, when the program ends, and when no poll has
    taken them within half a lease.

    Args:
        runtime: The runtime: threads, or an event loop.
        topic: The registered definition.
        release: Function that settles rows with an outcome.
    """

    def __init__(
        self, runtime: Runtime, topic: Topic, release: Callable[[Sequence[Selection], Outcome], object]
    ) -> None:
        self._topic = topic
        self._release = release
        self._kept: list[Selection] = []
        self._kept_s = 0.0
        self._flush = BackgroundFlush(
            runtime, f"rmq-leftovers-{topic.name}", lambda: self._kept, self._release_stale, LOOK_EVERY_S
        )

    def take(self) -> list[Selection]:
        """Remove and return the kept messages whose lease has not expired."""
        if not self._kept:
            return []
        with self._flush.lock:
            kept, self._kept = self._kept, []
        now_s = monotonic_s()
        return [part for part in kept if now_s < part.claim.lease_until_s]

    def keep(self, selections: Sequence[Selection]) -> None:
        """Keep messages for the next `take`; release them if the buffer is closed."""
        if not selections:
            return
        with self._flush.lock:
            self._kept += selections
            self._kept_s = monotonic_s()
        if self._flush.ending.is_set():
            self._release_stale(True)
        else:
            self._flush.begin()

    def close(self) -> None:
        """Release all deliveries, and keep none from now on. Does nothing after a fork."""
        if not self._flush.forked:
            self._flush.ending.set()
            self._release_stale(True)

    def _release_stale(self, all_: bool) -> None:
        """Release all deliveries, or those kept too long. If that fails, their leases expire."""
        if not all_ and monotonic_s() - self._kept_s <= self._topic.lease_s / 2:
            return
        try:
            if kept := self.take():
                self._release(kept, RELEASED)
        except Exception as error:
            log.warning(
                "topic %s: prefetched messages are redelivered when their leases expire: %s", self._topic.name, error
            )
