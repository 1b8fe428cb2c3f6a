"""Watches over all listeners of a client in one job: wake hints, slots that may be due, and running handlers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rmq._claiming.wakeups import Wakeups, WakeupSubscriber
from rmq._io.backend import Background
from rmq._io.reports import Sparing, reporter
from rmq._listening.idle_policy import IdlePolicy
from rmq._listening.listener_runner import ListenerRunner
from rmq._listening.slot_poller import SlotPoller
from rmq._listening.worker import TROUBLE_PAUSE_S
from rmq._model.times import monotonic_s
from rmq._transport.connections import Connections

log = reporter("rmq.runtime")

DEAF_S = 0.25
"""Longest wait while no hint can arrive, so that the subscription is tried again soon."""


class Watcher(Background):
    """Passes hints to the listeners, polls their slots in case one was lost, and checks their running handlers.

    Its cost to an idle process does not depend on the number of listeners: one job, and one connection to each server.

    Args:
        connections: Connections to Redis.
        runners: The running listeners.
        pace: Pauses between calls to Redis while no message is due.
    """

    def __init__(self, connections: Connections, runners: Sequence[ListenerRunner], pace: IdlePolicy) -> None:
        super().__init__(connections.runtime, "rmq-watch")
        self._runners = runners
        self._by_topic: dict[str, list[ListenerRunner]] = defaultdict(list)
        for runner in runners:
            self._by_topic[runner.topic.name].append(runner)
        self._places = list(
            dict.fromkeys((runner.topic.name, slot) for runner in runners for slot in range(runner.topic.slots))
        )
        """The topic and slot of each number that a hint may have."""
        self._hints = WakeupSubscriber.of_places(connections, self._places)
        self._slots = SlotPoller(
            connections, [planner for runner in runners for planner in runner.planners], self._hints, pace
        )
        self._stopping = connections.runtime.event()
        self._troubles = Sparing()
        self._check_s = 0.0

    def request_stop(self) -> None:
        """Stop; does not wait."""
        self._stopping.set()
        self._hints.end()

    def run(self) -> None:
        """Watch until `request_stop`."""
        while not self._stopping.is_set():
            try:
                hints = self._hints.read(self._pause_s())
                self._check(self._pass_on(hints))
                if self._slots.step(missed=hints.missed):
                    self._check_s = 0.0  # what was found may be due
                if not self._hints.connected:
                    self._stopping.wait(min(DEAF_S, self._pause_s()))
            except Exception as error:
                self._troubles.warning(log, type(error), "due slots could not be checked; trying again: %s", error)
                self._stopping.wait(TROUBLE_PAUSE_S)
        self._hints.close()

    def _pause_s(self) -> float:
        """Return the seconds that the watcher may wait for hints."""
        check_s = max(0.0, self._check_s - monotonic_s())
        return min(check_s, self._slots.wait_s(), self._hints.max_wait_s())

    def _pass_on(self, hints: Wakeups) -> Sequence[ListenerRunner]:
        """Pass hints to the listeners of their topics; return these listeners."""
        by_topic: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for number, due_ms in hints.due:
            topic, slot = self._places[number]
            by_topic[topic].append((slot, due_ms))
        for topic, due in by_topic.items():
            for runner in self._by_topic[topic]:
                runner.take_wakeups(due)
        return [runner for topic in by_topic for runner in self._by_topic[topic]]

    def _check(self, hinted: Sequence[ListenerRunner]) -> None:
        """Check the handlers of listeners that got hints, and at intervals of all."""
        now_s = monotonic_s()
        if now_s >= self._check_s:
            self._check_s, hinted = float("inf"), self._runners
        for runner in hinted:
            self._check_s = min(self._check_s, now_s + runner.check())
