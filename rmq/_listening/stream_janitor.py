"""Trims stream topics by their retention while listeners run."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

from rmq._broker.broker import Broker
from rmq._io.backend import Background, Event, Runtime
from rmq._io.reports import reporter
from rmq._model.times import monotonic_s
from rmq.errors import RmqError

log = reporter("rmq.upkeep")


class StreamJanitor(Background):
    """Cleans up the slots of a stream topic while listeners run; see `Broker.look_after`.

    Args:
        source: The broker of the topic.
        every_s: Interval between clean-ups, in seconds.
        slots: Returns the slots to clean up.
        stopping: Set when the listener stops.
        runtime: Provides locks and waits, for threads or an event loop.
    """

    def __init__(
        self,
        source: Broker,
        every_s: float,
        slots: Callable[[], Collection[int]],
        stopping: Event,
        runtime: Runtime,
    ) -> None:
        super().__init__(runtime, f"rmq-upkeep-{source.topic.name}")
        self._source = source
        self._slots = slots
        self._stopping = stopping
        self._pause_s = every_s
        self._rest_s = self._next_s = 0.0
        self._finished: Callable[[], int] = lambda: 0
        self._before = self._turn = 0

    def rest(self, rest_s: float, finished: Callable[[], int]) -> None:
        """While no entry is handled, clean up only one slot, in turn, every `rest_s` seconds.

        Args:
            rest_s: Seconds between two slots.
            finished: Returns the number of entries handled so far.
        """
        self._rest_s, self._finished = rest_s, finished

    def run(self) -> None:
        """Clean up the slots until the listener stops. Errors are logged, and the clean-up is repeated."""
        spread = random.random()  # noqa: S311 - so that the processes do not all ask at once
        while not self._stopping.wait(self._pause_s * (0.5 + spread / 2)):
            for slot in self._slots_in_turn():
                if self._stopping.is_set():
                    return
                try:
                    while self._source.look_after(slot) and not self._stopping.is_set():
                        pass
                except RmqError as error:
                    log.warning("slot %d of topic %s could not be cleaned up: %s", slot, self._source.topic.name, error)

    def _slots_in_turn(self) -> Collection[int]:
        slots = self._slots()
        finished, before = self._finished(), self._before
        self._before = finished
        if not self._rest_s or finished != before or not slots:
            return slots
        if monotonic_s() < self._next_s:
            return ()
        self._next_s = monotonic_s() + self._rest_s
        self._turn += 1
        return [sorted(slots)[self._turn % len(slots)]]
