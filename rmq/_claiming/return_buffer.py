"""Deliveries that a poll has claimed but not returned: kept for the next poll, and released if there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rmq._claiming.background_flush import BackgroundFlush
from rmq._io.backend import Runtime
from rmq._io.reports import reporter
from rmq._model.deliveries import Delivery
from rmq._model.delivery_columns import spread
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
        release: Function that releases deliveries.
    """

    def __init__(self, runtime: Runtime, topic: Topic, release: Callable[[Sequence[Delivery]], object]) -> None:
        self._topic = topic
        self._release = release
        self._deliveries: list[Delivery] = []
        self._kept_s = 0.0
        self._flush = BackgroundFlush(
            runtime, f"rmq-leftovers-{topic.name}", lambda: self._deliveries, self._release_stale, LOOK_EVERY_S
        )

    def take(self) -> list[Delivery]:
        """Remove and return the kept deliveries whose lease has not expired."""
        if not self._deliveries:
            return []
        with self._flush.lock:
            deliveries, self._deliveries = self._deliveries, []
        now_s = monotonic_s()
        return [delivery for delivery in deliveries if now_s < delivery.lease_until_s]

    def keep(self, deliveries: Sequence[Delivery]) -> None:
        """Keep deliveries for the next `take`; release them if the buffer is closed.

        Columns are split into single deliveries, since the next poll may not be one for columns.
        """
        if not deliveries:
            return
        with self._flush.lock:
            self._deliveries += spread(deliveries)
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
            if deliveries := self.take():
                self._release(deliveries)
        except Exception as error:
            log.warning(
                "topic %s: prefetched messages are redelivered when their leases expire: %s", self._topic.name, error
            )
