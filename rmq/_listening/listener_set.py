"""The listeners of a client: added first, then started and stopped together.

Beside them run the heartbeat, which reports every few seconds that the process is alive and the state of its listeners,
the listener that runs schedules, and the janitor of streams.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from rmq._broker import claims
from rmq._claiming.leases import LeaseKeeper, LeaseLostNotifier
from rmq._io.backend import Background, Event, Runtime
from rmq._io.observers import Observers
from rmq._io.reports import Sparing, reporter
from rmq._listening.concurrency import ConcurrencyLimiter
from rmq._listening.listener import Listener, check_shared
from rmq._listening.listener_runner import WATCHER_S, ListenerRunner
from rmq._listening.watcher import NORMAL, IdlePolicy, Watcher, idle_policy
from rmq._listening.worker import Worker
from rmq._model.deliveries import Delivery
from rmq._model.handlers import check_plain
from rmq._model.retry import draw_jitter
from rmq._model.times import monotonic_s, seconds
from rmq._model.workers import BEAT_S, IDLE, Health, WorkerInfo, process_name
from rmq._ownership.follower import OwnershipFollower
from rmq._ownership.redis_keeper import Owners, new_coordinator
from rmq._registry import shared
from rmq._registry.known_topics import LOOK_S, KnownTopics
from rmq._schedules.schedule import RECURRING
from rmq._schedules.schedules import ScheduleRunner
from rmq._transport.call import Call
from rmq._transport.connections import Connections
from rmq._transport.refusals import NO_RIGHT
from rmq.errors import ClientClosedError, RmqError, ScriptFailedError

log, schedules_log, upkeep_log, census_log = map(reporter, ("rmq.client", "rmq.schedules", "rmq.upkeep", "rmq.census"))

PATIENCE_S = 2.0
"""Maximum wait of a stop, after the drain, for this process to leave the registry and the cluster."""

FORGET_MS = 60_000
"""A worker that has not reported for this long is removed."""

BEAT_PATIENCE_S = 2.0
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
                census_log.log(level, "the heartbeat of worker %s failed: %s", self.worker, error)
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
            census_log.debug("the report of worker %s could not be deleted: %s", self.worker, error)

    def _report(self, info: WorkerInfo) -> None:
        if self._economical and self._last_report is not None:
            reported, redis_ms, reported_s = self._last_report
            since_s = monotonic_s() - reported_s
            now_ms, trusted = redis_ms + int(since_s * 1000), since_s < TRUST_S
            if reported == info and trusted and self._call(shared.worker_beat_again(self.worker, now_ms)):
                return
        self._last_report = info, self._beat(info.to_json()), monotonic_s()

    def _beat(self, info: str) -> int:
        return self._call(shared.worker_beat(self.worker, info, FORGET_MS))

    def _call(self, call: Call[int]) -> int:
        [answer] = self._connections.run_many([call], None, BEAT_PATIENCE_S)
        if isinstance(answer, RmqError):
            raise answer
        return answer

    def _info(self) -> WorkerInfo:
        listeners = tuple(runner.info(economical=self._economical) for runner in self._runners)
        started_ms, beat_s = self._started_ms, self._beat_s
        return WorkerInfo(self.worker, self._host, self._pid, started_ms, 0, 0, self._zookeeper, listeners, beat_s)


class ListenerSet:
    """The listeners of a client.

    Args:
        connections: Connections to Redis.
        known: The registered definitions of the topics.
        observers: Observers of the handlers.
        worker: The class of the listeners' workers.
    """

    def __init__(
        self, connections: Connections, known: KnownTopics, observers: Observers, worker: type[Worker]
    ) -> None:
        self.runners: list[ListenerRunner] = []
        """The running listeners."""
        self.leaving: list[ListenerRunner] = []
        """Listeners that were asked to stop, until a stop that none of their handlers called has waited for them."""
        self.stopped = False
        """Whether listeners have run, and a stop has ended."""
        self.pace = NORMAL
        """Pauses between calls to Redis while no message is due."""
        self.added: list[Listener] = []
        """All listeners, as they were added."""
        self._connections, self._known = connections, known
        self._observers = observers
        self._worker = worker
        self._follower: OwnershipFollower | None = None
        self._heartbeat: Heartbeat | None = None
        self._keeper: LeaseKeeper | None = None
        self._timetable: Timetable | None = None
        self._watchers: list[Watcher | StreamJanitor | Timetable] = []
        """Jobs that only look after Redis."""

    @property
    def ensemble(self) -> str | None:
        """Identity of the ensemble that assigns the slots; `None` while no listener owns slots."""
        return None if self._follower is None else self._follower.ensemble

    def finished(self) -> int:
        """Return the number of deliveries whose handlers have ended, with or without an error."""
        return sum(runner.finished() for runner in self.runners)

    @property
    def runs_here(self) -> bool:
        """Whether the caller is a handler of one of the listeners."""
        return any(runner.runs_here for runner in (*self.runners, *self.leaving))

    @property
    def hang(self) -> bool:
        """Whether a handler has exceeded the timeout of its listener and was abandoned."""
        return any(runner.hangs for runner in self.runners)

    def health(self) -> Health:
        """Return the state of the listeners; see `RmqClient.health`."""
        runners, heartbeat, follower = self.runners, self._heartbeat, self._follower
        if not runners:
            return Health(True, ("the listeners are stopping",)) if self.leaving else IDLE
        reasons = [] if follower is None else follower.unsettled()
        if heartbeat is None or not heartbeat.reached:
            reasons.insert(0, "Redis has not accepted this worker's last report")
        return Health(all(runner.works for runner in runners), tuple(reasons))

    def look_for_schedules(self) -> None:
        """Begin to run schedules at once if listeners run, since this client has just put one."""
        if (timetable := self._timetable) is not None:
            timetable.look(now=True)

    def add(self, *listeners: Listener) -> None:
        """Add listeners; see `RmqClient.add`."""
        if self.runners:
            raise RmqError("the listeners of this client are already running; add listeners before they are started")
        for listener in listeners:
            check_plain(listener.handler)
        check_shared(self.added, *listeners)
        self.added += listeners

    def start(
        self, owners: Owners | None, threads: int | None, handlers: int | None, drain_s: float, idle: str = "normal"
    ) -> None:
        """Start all listeners; see `RmqClient.start`."""
        drain_s = seconds(drain_s, "drain_s")
        self._connections.refuse_misuse()  # known topics need no call that would
        if self.runners:
            raise RmqError("the listeners of this client are already running")
        if not self.added:
            raise RmqError("this client has no listener; decorate a handler with @client.listener(topic)")
        runtime = self._connections.runtime
        coordinator = runtime.call(new_coordinator, owners, self._connections.url)  # not in an event loop: it may wait
        registered = [replace(listener, topic=self._known.registered(listener.topic)) for listener in self.added]
        listeners = registered if threads is None else [replace(listener, threads=threads) for listener in registered]
        pool = ConcurrencyLimiter(runtime, handlers)
        pace = self.pace = idle_policy(idle, listeners, multi_node=self._connections.multi_node)
        self._known.look_s = max(LOOK_S, pace.identify_s)
        self._connections.router.look_seldom(pace.identify_s)  # a report that is refused tells sooner
        common = (coordinator, pool, self._observers, LeaseLostNotifier(runtime), self._worker)
        runners = [ListenerRunner(self._connections, listener, *common) for listener in listeners]
        if coordinator is not None:
            follower = OwnershipFollower(coordinator, runners, self._connections, drain_s, pace.identify_s)
            follower.start()
            self._follower = follower
        self.runners, self.stopped = runners, False
        timetable = self._timetable = Timetable(self._connections, self._known, self._observers, pace)
        self._heartbeat = Heartbeat(self._connections, runners, coordinator is not None, pace, timetable.look)
        intervals = [(runner, runner.leases.broker.upkeep_s) for runner in runners]
        upkeeps = [StreamUpkeep(runner, every_s, pace.tidy_s) for runner, every_s in intervals if every_s is not None]
        janitors = [StreamJanitor(upkeeps, runtime)] if upkeeps else []
        watchers = [Watcher(self._connections, runners, pace), *janitors]
        self._watchers = [*watchers, timetable]  # which the heartbeat starts
        self._keeper = LeaseKeeper(self._connections, [runner.leases for runner in runners])
        self._heartbeat.start()  # before the first handler, which may stop this client
        for job in (self._keeper, *watchers):
            job.start()
        for runner in runners:
            runner.start()

    def stop(self, drain_s: float) -> list[Delivery]:
        """Stop all listeners; see `RmqClient.stop`.

        A second stop waits for handlers that outlasted the first. Two handlers that stop do not wait for each other.
        """
        until_s = monotonic_s() + drain_s
        runs_here, runners = self.runs_here, self.runners
        follower = self._follower
        if not runs_here:  # else the caller's slot is handed over when it has returned, or `drain_s` is over
            self._follower = None
        self.leaving = awaited = [*self.leaving, *runners]
        self.runners, self.pace = [], NORMAL
        watchers, self._watchers = self._watchers, []
        keeper, self._keeper = self._keeper, None
        watchers_until_s = min(until_s, monotonic_s() + WATCHER_S)
        for job in (*runners, *watchers):
            job.request_stop()
        if follower is not None:
            follower.leave(drain_s)
        left = [delivery for runner in (runners if runs_here else awaited) for delivery in runner.join(until_s)]
        late = left and monotonic_s() >= until_s  # a handler that stops its client leaves itself, but is not late
        if keeper is not None:  # the lease of a handler that has called this is renewed until it returns
            keeper.stop([runner.leases for runner in runners if runner.runs_here])
        _join(watchers, watchers_until_s)
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is not None:
            heartbeat.request_stop()
        until_s = monotonic_s() + PATIENCE_S
        if follower is not None and not runs_here:
            follower.stop(PATIENCE_S)
        if heartbeat is not None:
            _join([heartbeat], until_s)
        if not runs_here:
            self.leaving = [runner for runner in self.leaving if runner not in awaited]
        self.stopped = self.stopped or bool(awaited)
        if late:
            deliveries, they = ("delivery", "it is") if len(left) == 1 else ("deliveries", "they are")
            text = "%d %s did not finish within %g s; %s redelivered when the lease expires"
            log.warning(text, len(left), deliveries, drain_s, they)
        return left


def _join(jobs: Sequence[Background | Timetable], until_s: float) -> None:
    for job in jobs:
        job.join(max(0.0, until_s - monotonic_s()))


class Timetable:
    """Runs schedules: a listener of the topic `rmq.recurring`, whose handler is `ScheduleRunner`, until it is stopped.

    It starts once the topic is registered, so that a Redis without schedules has no such topic. It needs no owner: with
    ZooKeeper, too, all processes claim from its one slot.

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
                schedules_log.warning(
                    "schedules are off in this process, which has no right to read topic %s: %s", RECURRING.name, error
                )
            else:
                self._troubles.warning(schedules_log, type(error), "cannot read the schedules; trying again: %s", error)

    def _start(self) -> None:
        runtime, topic = self._connections.runtime, self._known.registered(RECURRING)
        common = (None, ConcurrencyLimiter(runtime), self._handler.watching, LeaseLostNotifier(runtime))
        runner = ListenerRunner(self._connections, Listener(topic, self._handler), *common)
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
                upkeep_log.warning(
                    "slot %d of topic %s could not be cleaned up: %s", slot, self._broker.topic.name, error
                )
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
