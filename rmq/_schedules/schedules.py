"""Schedules: put, listed, removed and run by hand, and who sends their messages.

`ScheduleRunner` is the handler of the topic `rmq.recurring`, in each process with started listeners. For each schedule
that is due it sends the message, waits for the reply, notes the due time, and gives the schedule back with its next
time. If the process dies in between, the lease expires and the schedule comes again: with the same due time, or with
the next one once the due time is noted. So each due time is sent at least once. A target that refuses the message uses
up no retry: the schedule comes again after a few seconds.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain

from rmq._admin.calls import viewing
from rmq._admin.control import Control
from rmq._admin.inspection import Inspection
from rmq._admin.messages import Failure, PeekedMessage, Place, Whereabouts
from rmq._broker.keys import SCHEDULE_LOCK_KEY, SCHEDULE_RUNS_KEY
from rmq._io.observers import Observer, Observers
from rmq._io.reports import Sparing, reporter
from rmq._model.deliveries import Delivery
from rmq._model.display import brief
from rmq._model.messages import FixedTimeMessage
from rmq._model.outcomes import ACKED, Outcome, Verb, describe
from rmq._model.replies import ControlResult
from rmq._model.times import monotonic_s
from rmq._model.topics import WhenFull
from rmq._registry.known_topics import KnownTopics
from rmq._registry.shared import take_lock
from rmq._schedules.schedule import (
    MAX_SCHEDULES,
    RECURRING,
    REMOVED,
    Schedule,
    ScheduleInfo,
    SchedulePut,
    check_schedule_name,
    due_after,
    fields_of_runs,
    read_runs,
    read_schedule,
)
from rmq._sending.producer import Producer
from rmq._transport.connections import Connections
from rmq._transport.exchange import results_of
from rmq.errors import (
    BacklogFullError,
    FixedTimePassedError,
    InvalidValueError,
    RmqError,
    UnreadableDocumentError,
)

log = reporter("rmq.schedules")

AGAIN_MS, UNREADABLE_MS = 5_000, 60_000
"""Delay of a schedule whose message was refused, and of one that this worker can't read, ms."""
HOLD_MS = 10_000
"""Time for which one process may put schedules. A process that dies meanwhile delays the others by as much."""

TURN_S, RETRY_S = 15.0, 0.02
"""Seconds for which to try to be the one that puts a schedule, and between two tries."""

MOST_TRIES = 10
"""Maximum number of sends of a schedule whose first due time is over when it reaches Redis."""

_PLACES: tuple[Place, ...] = ("store", "prepare", "retry")


class Schedules:
    """The schedules of a Redis: messages that are sent again and again. Every process with started listeners runs them.

    They stay until they are removed, even if no program puts them any more.

    Args:
        connections: Connections to Redis.
        known: The registered definitions of the topics.
        put_here: Called after this client has put a schedule.

    Examples:
        >>> closing = Topic("closing", TopicType.FIXED_TIME)
        >>> nightly = Schedule("close-orders", closing, "close-orders", cron="30 2 * * *", tz="Europe/Berlin")
        >>> client.schedules.put(nightly).name, client.schedules.put(nightly).name
        ('NEW', 'UNCHANGED')
        >>> [each.name for each in client.schedules.list()], client.schedules.remove("close-orders")
        (['close-orders'], True)
    """

    def __init__(self, connections: Connections, known: KnownTopics, put_here: Callable[[], object]) -> None:
        self._connections, self._known, self._put_here = connections, known, put_here

    def put(self, schedule: Schedule) -> SchedulePut:
        """Store a schedule, as every worker may do at its start, and register the topic of its messages.

        Returns:
            `UNCHANGED` if the same schedule already exists: its due time is unchanged. `OUTRANKED` if a schedule of
            this name with a higher `version` exists and is kept. `OVER` if no due time is left: nothing is stored.
            Otherwise `NEW` or `CHANGED`: the next due time is the first one from now on, by Redis' clock.

        Raises:
            InvalidValueError: The value is not a `Schedule`; `cron` cannot be read, or its extra `rmq[cron]` is not
                installed; or `priority` does not fit the type of the topic.
            InvalidMessageError: The topic does not take the messages.
            UnknownTopicError: The topic is given by name and is not registered.
            TopicMismatchError: The topic is registered with another type, number of slots or `merge`.
            BacklogFullError: There are already 10,000 schedules.
            RmqError: Other clients have been putting schedules for 15 s, or the first due time had passed at each of
                ten attempts. Try again.

        Guarantee: safe to repeat. One process at a time compares and writes versions, unless it is suspended for more
            than 10 s meanwhile.
        """
        if not isinstance(schedule, Schedule):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(f"schedule is {brief(schedule)}; it must be a Schedule")
        topic = schedule.topic
        if isinstance(topic, str) or self._known.check(topic):
            topic = self._known.resolved(topic)
        schedule.check_for(topic)
        self._known.registered(topic)
        registered = self._known.registered(RECURRING)
        result = self._standing(schedule, self._find(schedule.name))
        if result in (SchedulePut.NEW, SchedulePut.CHANGED):
            with self._turn():
                try:
                    result = self._send(schedule, Producer(self._connections, registered))
                except BacklogFullError as error:
                    text = f"schedule {schedule.name} was not stored: there are {MAX_SCHEDULES:,} schedules already"
                    raise BacklogFullError(f"{text}, which is the maximum; remove some", topic=error.topic) from None
        self._put_here()
        return result

    def list(self) -> list[ScheduleInfo]:
        """Return all schedules that RMQ can read, by name, with their next and last due times; empty for none."""
        if not self._known.check(RECURRING):
            return []
        view = Inspection(self._connections, RECURRING)
        found: dict[bytes, PeekedMessage] = {}
        for place in _PLACES:
            found |= {each.content: each for each in view.pages(0, place) if each.content not in found}
        flat: list[bytes] = self._connections.command("HGETALL", SCHEDULE_RUNS_KEY)
        runs = dict(zip(flat[::2], flat[1::2], strict=True))
        names = {field.partition(b"/")[0] for field in runs} - found.keys()  # they moved while the pages were read
        names |= {name for name, each in found.items() if each.place == "retry"}  # with an error
        failures: dict[bytes, Failure | None] = {}
        for each in results_of(self._connections.run_many([viewing.find(RECURRING, 0, name) for name in names])):
            failures[each.content] = each.failure
            if (present := _present(each)) is not None:
                found[each.content] = present
        infos = [
            _info(each, [runs.get(field.encode()) for field in fields_of_runs(each.text)], failures.get(name))
            for name, each in sorted(found.items())
        ]
        return [info for info in infos if info is not None]

    def get(self, name: str) -> ScheduleInfo | None:
        """Return a schedule with its next and last due times; `None` if it does not exist or RMQ cannot read it.

        Raises:
            InvalidValueError: `name` is not a valid name of a schedule.
        """
        check_schedule_name(name)
        if not self._known.check(RECURRING) or (present := _present(found := self._find(name))) is None:
            return None
        runs = self._connections.command("HMGET", SCHEDULE_RUNS_KEY, *fields_of_runs(name))
        return _info(present, runs, found.failure)

    def remove(self, name: str, actor: str | None = None) -> bool:
        """Remove a schedule; return whether there was one. A message that was sent already is still delivered.

        Args:
            name: Name of the schedule.
            actor: Recorded in the audit of the topic `rmq.recurring`; the default is `user@host`.

        Raises:
            InvalidValueError: `name` is not a valid name of a schedule, or `actor` is empty or too long.

        Guarantee: safe to repeat.
        """
        check_schedule_name(name)
        if not self._known.check(RECURRING):
            return False
        topic = self._known.registered(RECURRING)
        was = _present(self._find(name))
        Control(self._connections, topic, actor).cancel(name)
        if _present(self._find(name)) is not None:  # in flight: a release does not replace what was sent meanwhile
            Producer(self._connections, topic).send(FixedTimeMessage(name, delay="0s", body=REMOVED))
        else:
            self._forget(name)
        return was is not None and was.body != REMOVED

    def run_now(self, name: str, actor: str | None = None) -> bool:
        """Make a schedule due now, in addition to its due times; return whether it exists.

        `{scheduled}` then stands for the time of this call, even if the message is sent later because the topic refused
        it at first or a worker died. If the schedule is due already, or its message is being sent, nothing changes.

        Args:
            name: Name of the schedule.
            actor: As for `remove`.

        Raises:
            InvalidValueError: `name` is not a valid name of a schedule, or `actor` is empty or too long.

        Guarantee: a repeat changes nothing until the message is sent; after that, it makes the schedule due once more.
        """
        check_schedule_name(name)
        if not self._known.check(RECURRING) or (found := _present(self._find(name))) is None or found.body == REMOVED:
            return False
        topic = self._known.registered(RECURRING)
        self._connections.command("HSET", SCHEDULE_RUNS_KEY, fields_of_runs(name)[1], found.now_ms)
        return Control(self._connections, topic, actor).promote(name) is not ControlResult.ABSENT

    def _find(self, name: str) -> Whereabouts:
        return self._connections.run(viewing.find(RECURRING, 0, name.encode()))

    def _forget(self, name: str) -> None:
        """Forget the runs of a schedule that there is no more."""
        self._connections.command("HDEL", SCHEDULE_RUNS_KEY, *fields_of_runs(name))

    def _standing(self, schedule: Schedule, found: Whereabouts) -> SchedulePut:
        """Return what a put would do to what is there."""
        present = _present(found)
        if present is None or present.body == REMOVED:
            return SchedulePut.NEW
        try:
            there = read_schedule(present.content, present.body)
        except UnreadableDocumentError:
            return SchedulePut.CHANGED
        if there.to_fields() == schedule.to_fields():
            return SchedulePut.UNCHANGED
        return SchedulePut.OUTRANKED if there.outranks(schedule) else SchedulePut.CHANGED

    @contextmanager
    def _turn(self) -> Generator[None]:
        """Let one process at a time compare and put schedules."""
        holder, until_s = uuid.uuid4().hex, monotonic_s() + TURN_S
        while self._lock(holder, HOLD_MS) != holder:
            if monotonic_s() > until_s:
                raise RmqError(f"other clients have been storing schedules for {TURN_S:g} s; try again")
            self._connections.runtime.sleep(RETRY_S)
        try:
            yield
        finally:
            self._lock(holder, 0)

    def _lock(self, holder: str, hold_ms: int) -> str:
        return self._connections.run(take_lock(SCHEDULE_LOCK_KEY, "put", holder, hold_ms)).holder

    def _send(self, schedule: Schedule, producer: Producer) -> SchedulePut:
        for _ in range(MOST_TRIES):
            found = self._find(schedule.name)
            result = self._standing(schedule, found)
            if result not in (SchedulePut.NEW, SchedulePut.CHANGED):
                return result
            if result is SchedulePut.NEW:  # a process may have died before it forgot one that has ended
                self._forget(schedule.name)
            if (due_ms := schedule.next_ms(found.now_ms)) is None:
                return SchedulePut.OVER
            body = schedule.put_at(found.now_ms).to_json()
            try:
                producer.send(FixedTimeMessage(schedule.name, fixed_time_ms=due_ms, body=body))
                with suppress(RmqError):  # it is stored; without this, a list may miss it until its first run
                    self._connections.command("HSETNX", SCHEDULE_RUNS_KEY, schedule.name, "")
                return result
            except FixedTimePassedError:  # a slow connection, and a time that was near
                continue
        raise RmqError(f"schedule {schedule.name} fell due during each of {MOST_TRIES} attempts to store it; try again")


def sending_to(schedules: Schedules, topic: str) -> tuple[str, ...]:
    """Return the names of the schedules that send to a topic."""
    return tuple(info.name for info in schedules.list() if info.schedule.topic_name == topic)


def _info(message: PeekedMessage, stored: Iterable[bytes | None], failure: Failure | None) -> ScheduleInfo | None:
    try:
        schedule = read_schedule(message.content, message.body)
    except UnreadableDocumentError:
        return None
    runs = read_runs(*stored)
    due_ms = message.due_ms if message.place == "store" else None
    if due_ms is None:
        with suppress(InvalidValueError):  # without the extra for cron
            due_ms = due_after(schedule, runs)
    error = f"{failure.type}: {failure.message}" if failure is not None and message.place == "retry" else ""
    return ScheduleInfo(schedule, due_ms, message.now_ms, runs.due_ms, runs.sent_ms, error)


def _present(found: Whereabouts) -> PeekedMessage | None:
    """Return the form of a schedule that counts: a copy that was sent while an earlier one is in flight replaces it."""
    return found.stored or found.in_flight or found.waiting


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
