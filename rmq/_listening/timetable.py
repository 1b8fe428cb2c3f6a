"""Runs schedules: a listener of the topic `rmq.recurring` in each process with started listeners.

Its handler is `ScheduleRunner`. It starts once the topic is registered, so that a Redis without schedules has no such
topic. It needs no owner: with ZooKeeper, too, all processes claim from its one slot.
"""

from __future__ import annotations

from collections.abc import Sequence

from rmq._broker import claims
from rmq._broker.known_topics import KnownTopics
from rmq._claiming.leases import LeaseKeeper, LeaseLostNotifier
from rmq._io.observers import Observers
from rmq._io.reports import Sparing, reporter
from rmq._listening.concurrency import ConcurrencyLimiter
from rmq._listening.idle_policy import IdlePolicy
from rmq._listening.listener import Listener
from rmq._listening.listener_runner import ListenerRunner
from rmq._listening.watcher import Watcher
from rmq._listening.worker import Worker
from rmq._model.times import monotonic_s
from rmq._schedules.runner import ScheduleRunner
from rmq._schedules.schedule import RECURRING
from rmq._transport.connections import Connections
from rmq._transport.refusals import NO_RIGHT
from rmq.errors import ClientClosedError, RmqError, ScriptFailedError

log = reporter("rmq.schedules")


class Timetable:
    """Runs the schedules in this process from the time at which there are any, until it is stopped.

    Args:
        connections: Connections to Redis.
        known: The registered definitions of the topics.
        observers: Observers of the sends.
        pace: Pauses between calls to Redis while nothing is due.
    """

    def __init__(self, connections: Connections, known: KnownTopics, observers: Observers, pace: IdlePolicy) -> None:
        self._connections, self._known, self._pace = connections, known, pace
        self._handler = ScheduleRunner(connections, known, observers)
        self._lock = connections.runtime.lock(long=True)
        self._jobs: Sequence[ListenerRunner | Watcher] = ()
        self._keeper: LeaseKeeper | None = None
        self._over = False
        self._looked = False
        self._troubles = Sparing()

    def look(self, now: bool = False) -> None:
        """Begin to run schedules if there are any. Logs its errors.

        After the first time it relies on the periodic check of the topics in use, unless `now` is set.
        """
        if self._over or self._jobs or (self._looked and not now and not self._known.has_schedules):
            return
        try:
            there, self._looked = self._known.check(RECURRING), True
            if there:
                self._connections.run(claims.look(RECURRING, [0]))
                with self._lock:
                    if not (self._over or self._jobs):
                        self._start()
        except ClientClosedError:
            pass
        except RmqError as error:
            if isinstance(error, ScriptFailedError) and any(words in str(error) for words in NO_RIGHT):
                self._over = True
                log.warning(
                    "schedules are off in this process, which has no right to read topic %s: %s", RECURRING.name, error
                )
            else:
                self._troubles.warning(log, type(error), "cannot read the schedules; trying again: %s", error)

    def _start(self) -> None:
        runtime, topic = self._connections.runtime, self._known.registered(RECURRING)
        listener = Listener(topic, self._handler)
        pool, lost_calls = ConcurrencyLimiter(runtime, None), LeaseLostNotifier(runtime)
        shared = (None, pool, self._handler.watching, lost_calls, Worker, self._pace)
        runner = ListenerRunner(self._connections, listener, *shared)
        self._keeper = LeaseKeeper(self._connections, [runner.leases])
        self._jobs = (runner, Watcher(self._connections, [runner], self._pace))
        for job in (self._keeper, *self._jobs):
            job.start()

    def request_stop(self) -> None:
        """Claim no more schedules. Does not wait."""
        self._over = True
        with self._lock:
            for job in self._jobs:
                job.request_stop()

    def join(self, timeout: float) -> None:
        """Wait for a schedule that is being sent, `timeout` seconds at most."""
        until_s = monotonic_s() + timeout
        for job in self._jobs:
            job.join(until_s if isinstance(job, ListenerRunner) else max(0.0, until_s - monotonic_s()))
        if self._keeper is not None:
            self._keeper.stop()
