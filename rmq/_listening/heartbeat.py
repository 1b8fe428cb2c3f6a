"""Reports every few seconds that a process with running listeners is alive, and the state of its listeners."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Sequence

from rmq._io.backend import Background
from rmq._io.reports import reporter
from rmq._listening.listener_runner import ListenerRunner
from rmq._listening.watcher import IdlePolicy
from rmq._model.times import monotonic_s
from rmq._model.workers import BEAT_S, WorkerInfo, process_name
from rmq._registry import shared
from rmq._transport.connections import Connections
from rmq.errors import RmqError

log = reporter("rmq.census")

FORGET_MS = 60_000
"""A worker that has not reported for this long is removed."""

PATIENCE_S = 2.0
"""Seconds for which a report is retried."""

TRUST_S = 1_200.0
"""Seconds for which economy mode extrapolates Redis' time by this machine's clock, which may drift, jump or stop."""


class Heartbeat(Background):
    """Reports the listeners of this process until it is stopped.

    Args:
        connections: Connections to Redis.
        runners: The running listeners.
        zookeeper: Whether they own their slots.
        pace: Sets the interval. In economy mode an unchanged report is one command instead of a script.
        on_beat: Called after each report.
    """

    def __init__(
        self,
        connections: Connections,
        runners: Sequence[ListenerRunner],
        zookeeper: bool,
        pace: IdlePolicy,
        on_beat: Callable[[], None],
    ) -> None:
        super().__init__(connections.runtime, "rmq-census")
        self._on_beat = on_beat
        self._connections = connections
        self._runners = runners
        self._zookeeper = zookeeper
        self._host, self._pid, self._started_ms = socket.gethostname(), os.getpid(), int(time.time() * 1000)
        self.worker = process_name()
        """The name under which this process reports."""
        self._beat_s = max(BEAT_S, pace.beat_s)
        self._economical = pace.economical
        self._last_report: tuple[WorkerInfo, int, float] | None = None
        self.reached: bool | None = None
        """Whether Redis accepted the last report; `None` before the first."""

    def run(self) -> None:
        """Report every few seconds, and remove the worker at the end. Log the first of several failures."""
        while True:
            wait_s = self._beat_s
            try:
                self._report(self._info())
                self.reached = True
            except Exception as error:
                level = logging.DEBUG if self.reached is False else logging.WARNING
                log.log(level, "the heartbeat of worker %s failed: %s", self.worker, error)
                self.reached, wait_s = False, BEAT_S  # in economy mode the worker would expire before its next report
            if self.reached:
                self._on_beat()
            if self._stopping.wait(wait_s):
                break
        if self.reached is False:  # the worker will expire
            return
        try:
            self._beat("")
        except RmqError as error:
            log.debug("the report of worker %s could not be deleted: %s", self.worker, error)

    def _report(self, info: WorkerInfo) -> None:
        if self._economical and self._last_report is not None:
            reported, redis_ms, reported_s = self._last_report
            since_s = monotonic_s() - reported_s
            now_ms, trusted = redis_ms + int(since_s * 1000), since_s < TRUST_S
            again = shared.worker_beat_again(self.worker, now_ms)
            if reported == info and trusted and self._connections.run(again, PATIENCE_S):
                return
        self._last_report = info, self._beat(info.to_json()), monotonic_s()

    def _beat(self, info: str) -> int:
        return self._connections.run(shared.worker_beat(self.worker, info, FORGET_MS), PATIENCE_S)

    def _info(self) -> WorkerInfo:
        listeners = tuple(runner.info(economical=self._economical) for runner in self._runners)
        started_ms, beat_s = self._started_ms, self._beat_s
        return WorkerInfo(self.worker, self._host, self._pid, started_ms, 0, 0, self._zookeeper, listeners, beat_s)
