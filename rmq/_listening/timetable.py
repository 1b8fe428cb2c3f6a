"""Runs schedules: a listener of the topic `rmq.recurring` in each process with started listeners.

For each schedule that is due it sends the message, waits for the reply, notes the due time, and gives the schedule back
with its next time. If the process dies in between, the lease expires and the schedule comes again: with the same due
time, or with the next one once the due time is noted. So each due time is sent at least once. A target that refuses the
message uses up no retry: the schedule comes again after a few seconds.

It starts once the topic is registered, so that a Redis without schedules has no such topic. It needs no owner: with
ZooKeeper, too, all processes claim from its one slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain

from rmq._broker import claims
from rmq._broker.keys import SCHEDULE_RUNS_KEY
from rmq._broker.known_topics import KnownTopics
from rmq._claiming.leases import LeaseKeeper, LeaseLostNotifier
from rmq._io.observers import Observer, Observers
from rmq._io.reports import Sparing, reporter
from rmq._listening.concurrency import ConcurrencyLimiter
from rmq._listening.idle_policy import IdlePolicy
from rmq._listening.listener import Listener
from rmq._listening.listener_runner import ListenerRunner
from rmq._listening.watcher import Watcher
from rmq._listening.worker import Worker
from rmq._model.deliveries import Delivery
from rmq._model.outcomes import ACKED, Outcome, Verb, describe
from rmq._model.schedules import RECURRING, REMOVED, Schedule, due_after, fields_of_runs, read_runs, read_schedule
from rmq._model.times import monotonic_s
from rmq._model.topics import WhenFull
from rmq._sending.producer import Producer
from rmq._transport.connections import Connections
from rmq._transport.refusals import NO_RIGHT
from rmq.errors import ClientClosedError, RmqError, ScriptFailedError, UnreadableDocumentError

log = reporter("rmq.schedules")

AGAIN_MS, UNREADABLE_MS = 5_000, 60_000
"""Delay of a schedule whose message was refused, and of one that this worker can't read, ms."""


class ScheduleRunner(Observer):
    """Sends the message of a schedule that is due, and gives the schedule back with its next time.

    Args:
        connections: Connections to Redis.
        known: The registered definitions of the topics.
        observers: Observers of the sends.

    Attributes:
        watching: Observers of the listener that has it as its handler: itself.
    """

    def __init__(self, connections: Connections, known: KnownTopics, observers: Observers) -> None:
        self._connections, self._known, self._observers = connections, known, observers
        self._producers: dict[str, Producer] = {}
        self._troubles = Sparing()
        self.watching = Observers()
        self.watching.all.append(self)

    def __call__(self, delivery: Delivery) -> None:
        """Handle a delivery of the topic of the schedules: afterwards it has an outcome."""
        if delivery.body == REMOVED:
            return
        try:
            delivery.mark(self._run(read_schedule(delivery.content, delivery.body), delivery))
        except UnreadableDocumentError as error:
            self._put_off(delivery, UNREADABLE_MS, error)
        except Exception as error:
            self._producers.clear()  # a topic may have been changed
            self._put_off(delivery, AGAIN_MS, error)

    def settled(self, deliveries: Sequence[Delivery]) -> None:
        """Forget the runs of schedules that have ended or were removed: not before, since they may come again."""
        ended = [each.text for each in deliveries if each.outcome is ACKED and not each.lost]
        if ended:
            with suppress(RmqError):  # a put, or a removal, forgets them, too
                self._connections.command("HDEL", SCHEDULE_RUNS_KEY, *chain.from_iterable(map(fields_of_runs, ended)))

    def _run(self, schedule: Schedule, delivery: Delivery) -> Outcome:
        """Send the message if its time has come; return the outcome of the delivery."""
        now_ms, due_ms, fields = delivery.claimed_ms, delivery.due_ms, fields_of_runs(schedule.name)
        if due_ms is None or schedule.next_ms(due_ms - 1) != due_ms:  # an expired lease, a failure, or a run by hand
            runs = read_runs(*self._connections.command("HMGET", SCHEDULE_RUNS_KEY, *fields))
            due_ms = min(filter(None, (due_ms, due_after(schedule, runs))), default=None)
        next_ms = due_ms
        if due_ms is not None and due_ms <= now_ms:
            if schedule.catch_up:
                due_ms = schedule.newest_missed_ms(due_ms, now_ms)
            next_ms = schedule.next_ms(due_ms if schedule.catch_up else now_ms)
            producer = self._producer(schedule)
            producer.send(schedule.message(producer.topic, due_ms))
            with suppress(RmqError):  # a full Redis: the next time is known all the same, unless this process dies
                self._connections.command("HDEL", SCHEDULE_RUNS_KEY, fields[1])
                self._connections.command("HSET", SCHEDULE_RUNS_KEY, fields[0], f"{due_ms} {now_ms}")
        return ACKED if next_ms is None else Outcome(Verb.RELEASE, due_ms=next_ms)

    def _producer(self, schedule: Schedule) -> Producer:
        producer = self._producers.get(schedule.topic_name)
        if producer is None:
            topic = self._known.named(schedule.topic_name)
            if topic.when_full is WhenFull.BLOCK:  # one full topic must not hold up the schedules of others
                topic = replace(topic, when_full=WhenFull.REFUSE)
            producer = self._producers[schedule.topic_name] = Producer(self._connections, topic, self._observers)
        return producer

    def _put_off(self, delivery: Delivery, delay_ms: int, error: Exception) -> None:
        text = "schedule %s will be tried again in %d s: %s: %s"
        what = (delivery.content, type(error))
        self._troubles.warning(log, what, text, delivery.text, delay_ms // 1_000, type(error).__name__, error)
        delivery.mark(Outcome(Verb.RELEASE, delay_ms, *describe(error)))


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
                log.warning("schedules are off in this process, which may not read topic %s: %s", RECURRING.name, error)
            else:
                self._troubles.warning(log, type(error), "cannot read the schedules, trying again: %s", error)

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
