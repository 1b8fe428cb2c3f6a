"""Runs the handlers of a client in the caller's thread, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Any

from rmq._broker.broker import Broker
from rmq._broker.stream_broker import join_group
from rmq._claiming.consumer import MAX_POLL, Consumer
from rmq._claiming.rate_limit import RateLimiter
from rmq._io.observers import Observers
from rmq._listening.arguments import with_arguments
from rmq._listening.handler_invoker import HandlerInvoker, ListenerSetup
from rmq._listening.listener import Listener
from rmq._listening.timetable import ScheduleRunner
from rmq._model.claims import deliveries_of
from rmq._model.deliveries import Delivery
from rmq._model.handlers import refuse_unfinished
from rmq._model.outcomes import Verb
from rmq._model.schedules import RECURRING
from rmq._model.times import moment_at
from rmq._model.topics import Topic
from rmq._transport.connections import Connections, call_slots
from rmq.client import RmqClient
from rmq.errors import PayloadError, RedisUnavailableError, RmqError
from rmq.testing.clock import Clock


@dataclass(frozen=True, slots=True)
class Ran:
    """Outcomes of the deliveries of a run.

    Attributes:
        acked: Number of acked deliveries.
        nacked: Number of nacked deliveries, which wait for a retry, or are dead if none was left.
        buried: Number of deliveries that became dead at once, for example because of an invalid payload.
        released: Number of deliveries released as if they had never been claimed.
        lost: Number of deliveries whose lease expired before they were settled. They are not in the other numbers.
        errors: Errors of the handlers, in order, and the `PayloadError` of each invalid payload.

    Examples:
        >>> from rmq.testing import run_until_empty
        >>> jobs = Topic("jobs", TopicType.PRIORITY, max_retries=0)
        >>> @client.listener(jobs)
        ... def work(delivery): raise ValueError("no photo")
        >>> _ = client.producer(jobs).send(PriorityMessage("job:1", 5))
        >>> run_until_empty(client, raises=False)
        Ran(acked=0, nacked=1, buried=0, released=0, lost=0, errors=(ValueError('no photo'),))
    """

    acked: int = 0
    nacked: int = 0
    buried: int = 0
    released: int = 0
    lost: int = 0
    errors: tuple[BaseException, ...] = ()

    @property
    def total(self) -> int:
        """Total number of deliveries."""
        return self.acked + self.nacked + self.buried + self.released + self.lost


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of a run.

    Attributes:
        most: Maximum number of deliveries.
        clock: The clock to move to the next due time when no message is due; `None` to end then.
        raises: Raise the first error, which ends the run.
        must_end: Raise an error if more than `most` deliveries are due.
    """

    most: int
    clock: Clock | None
    raises: bool
    must_end: bool


def run(client: RmqClient, added: Sequence[Listener], rules: Rules) -> Ran:
    """Run the handlers of listeners, one after the other.

    Args:
        client: The client of the listeners.
        added: The listeners.
        rules: Settings of the run.

    Raises:
        RmqError: There are no listeners, or they have been started.
        AssertionError: More deliveries are due than the rules allow.
    """
    if client._listeners.runners:  # pyright: ignore[reportPrivateUsage]
        raise RmqError("the listeners of this client have been started; do not start the client in this test")
    if not added:
        raise RmqError(
            "this client has no listeners; decorate a handler with @client.listener(topic), or call client.add"
        )
    tally = _Tally()
    with ExitStack() as stack:
        runners = [_Runner(client, each, tally.errors, client.observers) for each in added]
        for runner in runners:
            stack.callback(runner.close)
        most = rules.most + rules.must_end  # one more than allowed, to detect that there are too many
        while tally.handled < most:
            if _run_once(runners, tally, most, rules.raises):
                continue
            if rules.clock is None or not _advance(rules.clock, runners):
                break
    if tally.handled > rules.most:
        raise AssertionError(
            f"more than {rules.most} messages were due: does a handler send to its own topic, or always fail? "
            "Use run_at_most, or a larger limit"
        )
    return tally.ran()


def run_schedules(client: RmqClient, added: Sequence[Listener], most: int) -> int:
    """Put the schedules of listeners, send the messages of all schedules that are due, and return their number.

    Raises:
        AssertionError: A schedule could not be sent, or more than `most` times are due.
    """
    client._put_scheduled(added)  # pyright: ignore[reportPrivateUsage]
    if not client._known.check(RECURRING):  # pyright: ignore[reportPrivateUsage]
        return 0
    handler = ScheduleRunner(client._connections, client._known, client.observers)  # pyright: ignore[reportPrivateUsage]
    sent = 0
    with closing(_Runner(client, Listener(RECURRING, handler), [], handler.watching)) as runner:
        while part := runner.step(1):
            for delivery in part:
                outcome = delivery.outcome
                if outcome is not None and outcome.error_type:
                    raise AssertionError(
                        f"schedule {delivery.text} was not sent: {outcome.error_type}: {outcome.error_message}"
                    )
                sent += 1
            if sent > most:
                raise AssertionError(
                    f"more than {most} times of schedules are due; move the clock less, or raise limit"
                )
    return sent


def _run_once(runners: Sequence[_Runner], tally: _Tally, most: int, raises: bool) -> bool:
    """Run each handler for one claim; return whether there was any message."""
    before = tally.handled
    for runner in runners:
        if (room := most - tally.handled) > 0:
            tally.add(runner.step(room))
            if raises and tally.errors:
                raise tally.errors[0]
    return tally.handled > before


def _advance(clock: Clock, runners: Sequence[_Runner]) -> bool:
    """Move the clock to the next due time; return False if there is none."""
    times = [due_ms for runner in runners for due_ms in runner.due_ms() if due_ms > clock.now_ms]
    if times:
        clock.move_to(moment_at(min(times)))
    return bool(times)


@dataclass(slots=True)
class _Tally:
    """Outcomes of the deliveries so far."""

    handled: int = 0
    lost: int = 0
    verbs: dict[Verb, int] = field(default_factory=lambda: dict.fromkeys(Verb, 0))
    errors: list[BaseException] = field(default_factory=list[BaseException])

    def add(self, part: Sequence[Delivery]) -> None:
        for delivery in part:
            self.handled += 1
            if delivery.lost:
                self.lost += 1
            elif delivery.outcome is not None:
                self.verbs[delivery.outcome.verb] += 1
            error = _decoding_error(delivery)
            self.errors += [] if error is None else [error]

    def ran(self) -> Ran:
        verbs = self.verbs
        ended = (verbs[Verb.ACK], verbs[Verb.NACK], verbs[Verb.BURY], verbs[Verb.RELEASE])
        return Ran(*ended, self.lost, tuple(self.errors))


def _decoding_error(delivery: Delivery) -> PayloadError | None:
    """Return the error of a delivery that was buried because of its payload, else None."""
    if delivery.outcome is None or delivery.outcome.error_type != PayloadError.__name__:
        return None
    try:
        delivery.decode()
    except PayloadError as error:
        return error
    return None


class _Unlimited(RateLimiter):
    """A rate limit without effect, since a real one would make tests wait."""

    def follow(self) -> None:
        """Do nothing, as the topic's limit is ignored."""


class _Runner(Consumer[Any]):
    """Claims messages of one listener, calls its handler, and settles the deliveries.

    Args:
        client: The client of the listener.
        added: The listener.
        errors: Errors of the handler are appended to it.
        observers: Observers of the handler.
    """

    settle = None  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride] - see Holder

    def __init__(self, client: RmqClient, added: Listener, errors: list[BaseException], observers: Observers) -> None:
        connections = client._connections  # pyright: ignore[reportPrivateUsage]
        topic = client._known.registered(added.topic)  # pyright: ignore[reportPrivateUsage]
        self._listener = _noting_errors(replace(added, topic=topic), errors)
        super().__init__(connections, topic, source=_source_of(connections, topic, added))
        self._planner.rate_limiter = _Unlimited(connections, replace(topic, max_rate=None))
        self._observers = observers
        stopping = connections.runtime.event()
        self._calls = HandlerInvoker(ListenerSetup(self._listener, stopping, observers=observers))

    def step(self, most: int) -> list[Delivery]:
        """Handle as many due messages as the handler takes at once, and return the settled deliveries."""
        listener = self._listener
        part = self._claimed((self,), min(listener.batch or 1, most, MAX_POLL), 0.0)
        if not part:
            return []
        self._calls.handle(part)
        settled = part
        while settled:  # a call may settle fewer
            round_ = self._claims.claim(0, settled)
            if round_.unconfirmed or not round_.settled:
                raise RedisUnavailableError(f"could not store outcomes of topic {self.topic.name} in Redis")
            settled = round_.unsent
            for delivery in round_.lost:
                if listener.on_lost is not None:
                    listener.on_lost(delivery)
        ended = deliveries_of(part)
        if self._observers.all:
            self._observers.settled(ended)
        return ended

    def due_ms(self) -> list[int]:
        """Return the next due times of the slots, epoch ms."""
        looks = call_slots(self._connections, self.slots, lambda slot: self._broker.look_call([slot]))
        return [due_ms for _, times in looks for due_ms in times]


def _source_of(connections: Connections, topic: Topic[Any], listener: Listener) -> Broker | None:
    """Return the slots of a stream's group. A new group starts with the first entry, since the test has sent all."""
    if listener.group is None:
        return None
    start = "all" if listener.start == "new" else listener.start
    return join_group(connections, topic, listener.group, start, resume_as=listener.resume_as)


def _noting_errors(listener: Listener, errors: list[BaseException]) -> Listener:
    """Wrap a listener's handler to record its errors."""
    handler: Callable[[Any], Any] = with_arguments(
        listener.topic, listener.handler, listener.batch is not None, listener.columns
    )

    def handle(argument: Any) -> None:
        try:
            if (result := handler(argument)) is not None:
                refuse_unfinished(result)
        except BaseException as error:
            errors.append(error)
            raise

    return replace(listener, handler=handle)
