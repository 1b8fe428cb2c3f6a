"""Trims stream topics by their retention while listeners run."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rmq._io.backend import Background, Event, Runtime
from rmq._io.reports import reporter
from rmq._listening.listener_runner import ListenerRunner
from rmq._model.retry import draw_jitter
from rmq._model.times import monotonic_s
from rmq.errors import RmqError

log = reporter("rmq.upkeep")


class StreamUpkeep:
    """The clean-up of the slots that a listener serves; see `Broker.look_after`.

    Args:
        runner: The running listener.
        every_s: Interval between clean-ups, in seconds.
        rest_s: If not 0: while no entry is handled, only one slot, in turn, is cleaned up in so many seconds.
    """

    def __init__(self, runner: ListenerRunner, every_s: float, rest_s: float) -> None:
        self._runner, self._broker = runner, runner.leases.broker
        self._pause_s = every_s * (0.5 + draw_jitter() / 2)  # so that the processes do not all ask at once
        self._rest_s, self._rest_until_s = rest_s, 0.0
        self._before = self._turn = 0
        self.next_s = monotonic_s() + self._pause_s
        """Time of the next clean-up, on the clock of `monotonic_s`."""

    def clean_up(self, stopping: Event) -> None:
        """Clean up the slots whose turn it is. Errors are logged, and the clean-up is repeated."""
        for slot in self._slots_in_turn():
            try:
                while not stopping.is_set() and self._broker.look_after(slot):
                    pass
            except RmqError as error:
                log.warning("slot %d of topic %s could not be cleaned up: %s", slot, self._broker.topic.name, error)
        self.next_s = monotonic_s() + self._pause_s

    def _slots_in_turn(self) -> Collection[int]:
        slots = self._runner.slots()
        finished, before = self._runner.finished(), self._before
        self._before = finished
        if not self._rest_s or finished != before or not slots:
            return slots
        if monotonic_s() < self._rest_until_s:
            return ()
        self._rest_until_s = monotonic_s() + self._rest_s
        self._turn += 1
        return [sorted(slots)[self._turn % len(slots)]]


class StreamJanitor(Background):
    """Cleans up the slots of all stream topics of a client while listeners run.

    Args:
        upkeeps: The clean-ups, at least one.
        runtime: Provides locks and waits, for threads or an event loop.
    """

    def __init__(self, upkeeps: Sequence[StreamUpkeep], runtime: Runtime) -> None:
        super().__init__(runtime, "rmq-upkeep")
        self._upkeeps = upkeeps

    def run(self) -> None:
        """Clean up until `request_stop`."""
        while True:
            upkeep = min(self._upkeeps, key=lambda each: each.next_s)
            if self._stopping.wait(max(0.0, upkeep.next_s - monotonic_s())):
                return
            upkeep.clean_up(self._stopping)
