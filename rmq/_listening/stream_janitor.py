"""Keeps stream topics within their bounds while listeners run: old entries, consumers that are gone."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

from rmq._io.backend import Background, Blocking, Event
from rmq._model.reports import reporter
from rmq._model.times import monotonic_s
from rmq._slots.stream_slots import StreamWriter
from rmq.errors import RmqError

log = reporter("rmq.upkeep")

LONGEST_PAUSE_S = 60.0
GONE_LEASES, GONE_S = 10, 600
"""A consumer that holds nothing is forgotten after so many leases, but not before so many seconds."""


class StreamJanitor(Background):
    """Trims the slots of a stream topic when it is time, and forgets consumers that are gone.

    Every process that listens looks; the script that trims knows when it was done last, so one of them does it.

    Args:
        writer: The topic's slots.
        group: The group whose consumers are looked after.
        slots: Tells the slots to look after.
        stopping: Set when it has to end.
        blocking: How to wait.
    """

    def __init__(
        self,
        writer: StreamWriter,
        group: str,
        slots: Callable[[], Collection[int]],
        stopping: Event,
        blocking: Blocking,
    ) -> None:
        super().__init__(blocking, f"rmq-upkeep-{writer.topic.name}")
        self._writer = writer
        self._group = group
        self._slots = slots
        self._stopping = stopping
        retention = writer.topic.retention
        every_s = LONGEST_PAUSE_S if retention is None else retention.every_ms / 1000
        self._pause_s = min(every_s, LONGEST_PAUSE_S)
        self._rest_s = self._next_s = 0.0
        self._finished: Callable[[], int] = lambda: 0
        self._before = self._turn = 0

    def rest(self, rest_s: float, finished: Callable[[], int]) -> None:
        """Trim one slot in so many seconds only, in turn, while nothing is handled.

        Args:
            rest_s: Seconds.
            finished: Tells how many entries were handled.
        """
        self._rest_s, self._finished = rest_s, finished

    def run(self) -> None:
        """Look after the slots until the listener stops."""
        spread = random.random()  # noqa: S311 - so that the processes do not all ask at once
        while not self._stopping.wait(self._pause_s * (0.5 + spread / 2)):
            for slot in self._slots_in_turn():
                if self._stopping.is_set():
                    return
                try:
                    self.look_after(slot)
                except RmqError as error:
                    log.warning("slot %d of topic %s: %s", slot, self._writer.topic.name, error)

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

    def look_after(self, slot: int) -> None:
        """Clean up one slot if it is time."""
        trimmed = self._writer.trim(slot)
        while trimmed.more and not self._stopping.is_set():
            trimmed = self._writer.trim(slot)
        if trimmed.due:
            gone_ms = max(GONE_S, GONE_LEASES * self._writer.topic.lease_s) * 1000
            self._writer.forget(slot, self._group, "", gone_ms)
