"""Sends the messages of schedules: the handler of the topic `rmq.recurring`, in each process with started listeners.

For each schedule that is due it sends the message, waits for the reply, notes the due time, and gives the schedule back
with its next time. If the process dies in between, the lease expires and the schedule comes again: with the same due
time, or with the next one once the due time is noted. So each due time is sent at least once. A target that refuses the
message uses up no retry: the schedule comes again after a few seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain

from rmq._broker.keys import SCHEDULE_RUNS_KEY
from rmq._io.observers import Observer, Observers
from rmq._io.reports import Sparing, reporter
from rmq._model.deliveries import Delivery
from rmq._model.outcomes import ACKED, Outcome, Verb, describe
from rmq._model.topics import WhenFull
from rmq._registry.known_topics import KnownTopics
from rmq._schedules.schedule import REMOVED, Schedule, due_after, fields_of_runs, read_runs, read_schedule
from rmq._sending.producer import Producer
from rmq._transport.connections import Connections
from rmq.errors import RmqError, UnreadableDocumentError

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
            outcome = self._run(read_schedule(delivery.content, delivery.body), delivery)
            delivery.claim.settle_open(outcome, (delivery.row,))
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
        delivery.claim.settle_open(Outcome(Verb.RELEASE, delay_ms, *describe(error)), (delivery.row,))
