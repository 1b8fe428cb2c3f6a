"""A process with running listeners says every few seconds that it is alive and what it does."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Sequence

from rmq._io.backend import Background
from rmq._listening.runtime import ListenerRuntime
from rmq._model.reports import reporter
from rmq._model.times import monotonic_s
from rmq._model.workers import ListenerInfo, WorkerInfo, process_name
from rmq._scripts import workers
from rmq._transport.connections import Connections
from rmq.errors import RmqError

log = reporter("rmq.census")

BEAT_S = 5.0
FORGET_MS = 60_000
"""A worker that was silent for so long is forgotten."""

PATIENCE_S = 2.0
"""A stop waits no longer than this to say goodbye."""

_MOST_BUSY = 1_000


class Heartbeat(Background):
    """Reports the listeners of this process until it is stopped.

    Args:
        connections: Where.
        runtimes: The listeners at work.
        zookeeper: Whether they own their slots through ZooKeeper.
    """

    def __init__(self, connections: Connections, runtimes: Sequence[ListenerRuntime], zookeeper: bool) -> None:
        super().__init__(connections.blocking, "rmq-census")
        self._connections = connections
        self._runtimes = runtimes
        self._zookeeper = zookeeper
        self._stopping = connections.blocking.event()
        self._host, self._pid, self._started_ms = socket.gethostname(), os.getpid(), int(time.time() * 1000)
        self.worker = process_name()
        """The name under which this process reports."""
        self._failing = False
        self._before = [(monotonic_s(), 0, 0) for _ in runtimes]

    def run(self) -> None:
        """Report every few seconds. What goes wrong is not worth more than a line of the log."""
        while True:
            try:
                self._beat(self._info().to_json())
                self._failing = False
            except Exception as error:
                level = logging.DEBUG if self._failing else logging.WARNING
                log.log(level, "worker %s cannot report: %s", self.worker, error)
                self._failing = True
            if self._stopping.wait(BEAT_S):
                break

    def stop(self) -> None:
        """End, and leave the registry."""
        self._stopping.set()
        self.join(PATIENCE_S)
        if self._failing:  # it will be forgotten
            return
        try:
            self._beat("")
        except RmqError as error:
            log.debug("worker %s cannot leave the registry: %s", self.worker, error)

    def _beat(self, info: str) -> None:
        answer = self._connections.run_many([workers.worker_beat(self.worker, info, FORGET_MS)], None, PATIENCE_S)[0]
        if isinstance(answer, RmqError):
            raise answer

    def _info(self) -> WorkerInfo:
        listeners = tuple(self._listener(number, runtime) for number, runtime in enumerate(self._runtimes))
        return WorkerInfo(self.worker, self._host, self._pid, self._started_ms, 0, 0, self._zookeeper, listeners)

    def _listener(self, number: int, runtime: ListenerRuntime) -> ListenerInfo:
        seen = runtime.counts()
        now_s, (before_s, handled, failed) = monotonic_s(), self._before[number]
        self._before[number] = now_s, seen.handled, seen.failed
        seconds = max(now_s - before_s, 0.001)
        return ListenerInfo(
            runtime.listener.topic.name,
            runtime.listener.group,
            runtime.listener.threads,
            tuple(sorted(seen.slots)),
            tuple(sorted(seen.busy_slots)[:_MOST_BUSY]),
            seen.in_flight,
            seen.handled,
            seen.failed,
            round((seen.handled - handled) / seconds, 3),
            round((seen.failed - failed) / seconds, 3),
        )
