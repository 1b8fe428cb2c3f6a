"""Calls a listener's handler and records an outcome for each of its deliveries, also after errors.

A `HandlerInvoker` is part of a worker. An `InlineRunner` uses one in the caller's thread, for tests: it claims, calls
and settles as a worker does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field, replace
from itertools import starmap
from typing import Any

from rmq._broker.stream_broker import join_group
from rmq._claiming.consumer import MAX_POLL, Consumer
from rmq._claiming.rate_limit import RateLimiter
from rmq._claiming.rounds import PrefetchSize
from rmq._io.backend import Event
from rmq._io.observers import Observers
from rmq._io.reports import reporter, traced
from rmq._listening.arguments import with_arguments
from rmq._listening.concurrency import ListenerPermits
from rmq._listening.listener import Listener
from rmq._model.claims import DeliveryColumns, Selection, deliveries_of, select, settle_open, size_of
from rmq._model.deliveries import Claim, Delivery
from rmq._model.handlers import refuse_unfinished
from rmq._model.outcomes import ACKED, RELEASED, Outcome, Verb, describe, failed
from rmq._model.retry import retry_after_ms
from rmq._model.times import monotonic_s
from rmq._model.topics import Topic
from rmq._model.typed import Typed
from rmq._model.workers import TimesCounter
from rmq._ownership import Coordinator
from rmq._processes import signals
from rmq._transport.connections import Connections, call_slots
from rmq.errors import PayloadError, RedisUnavailableError
from rmq.logs import about

log = reporter("rmq.worker")

UNWATCHED = nullcontext()

_handled: ContextVar[Sequence[Selection]] = ContextVar("rmq_handled_here", default=())
"""The rows of the running handler, also in tasks that it created."""

RESULT_NOT_RECORDED = Outcome(Verb.NACK, None, "", "internal error: the handler's result could not be recorded")


@dataclass(frozen=True, slots=True)
class ListenerSetup:
    """Settings that the threads of a listener share.

    Attributes:
        listener: The listener.
        stopping: Set when no more messages may be claimed or started.
        coordinator: This process as a worker that owns slots; `None` without owners.
        permits: The permits of running handlers; `None` if their number is not limited.
        observers: Observers of the handlers.
        on_lost: Called with each delivery whose lease was lost; must not wait.
        hold_back: Called with the seconds for which a handler wants no more messages; must not wait.
    """

    listener: Listener
    stopping: Event
    coordinator: Coordinator | None = None
    permits: ListenerPermits | None = None
    observers: Observers = field(default_factory=Observers)
    on_lost: Callable[[Delivery], None] = lambda delivery: None
    hold_back: Callable[[float], None] = lambda delay_s: None


class HandlerInvoker:
    """Calls the handler, and measures its duration.

    Args:
        setup: The listener's settings.
        give_back: If the messages of a slot must start in order: releases the waiting messages of slots.

    Attributes:
        handled: Number of handled messages.
        failed: Number of messages whose handler raised.
        prefetch: Decides how many messages to claim at once.
        times: Histogram of the durations of calls.
        running: Start of each running call, on the clock of `monotonic_s`, and its rows.
        hung: Calls that exceeded their timeout and were abandoned; their results are ignored.
        began_s: Start of the running call, on the clock of `monotonic_s`; `None` if none runs.
        ended_s: End of the last call, on the same clock.
    """

    def __init__(self, setup: ListenerSetup, give_back: Callable[[Collection[int]], object] | None = None) -> None:
        self.handled = self.failed = 0
        self.prefetch = PrefetchSize()
        self.times = TimesCounter()
        self.running: dict[int, tuple[float, Sequence[Selection]]] = {}
        self.hung: dict[int, tuple[float, Sequence[Selection]]] = {}
        self.began_s: float | None = None
        self.ended_s = float("-inf")
        self._listener = listener = setup.listener
        self._handler = with_arguments(listener.topic, listener.handler, listener.batch is not None, listener.columns)
        self._typed = None if listener.columns else listener.topic.typed
        self._collects = listener.topic.collects
        self._coordinator = setup.coordinator
        self._permits = setup.permits
        self._observers = setup.observers
        self._hold_back = setup.hold_back
        self._give_back = give_back
        self._forks = signals.forks

    def handle(self, part: Sequence[Selection]) -> None:
        """Call the handler. Afterwards each row has an outcome, also after an internal error."""
        started_s, call, outcome, error = monotonic_s(), id(part), RELEASED, None
        ready: Sequence[Selection] = ()
        deliveries: list[Delivery] = []
        try:
            ready = self._ready(part, started_s)
            if not self._listener.columns:
                deliveries = deliveries_of(ready)
                if self._typed is not None and (decoded := self._decoded(deliveries, self._typed)) is not deliveries:
                    deliveries, ready = decoded, select(decoded)
            if not ready:
                return
            self.began_s = started_s
            self.running[call] = started_s, ready
            if self._permits is not None:
                self._permits.call_started(call)
            outcome = RESULT_NOT_RECORDED
            try:
                copy_context().run(self._call, part, ready, deliveries)
                outcome = ACKED
            except BaseException as caught:  # SystemExit, too, which would end this thread without a log record
                outcome, error = _outcome_of(caught, self._listener.topic.keep_attempts), caught
        finally:
            if self._permits is not None:
                self._note_permits(self._permits, call, ready, outcome, error)
            self.began_s, self.ended_s = None, monotonic_s()
            if self.running.pop(call, None) is None:
                self._log_late_end(call)
            settle_open(part, outcome)
        self._count(ready, deliveries, started_s, error)
        error = None  # breaks the reference cycle of the error, its traceback and this frame

    def give_up(self, before_s: float) -> list[Selection]:
        """Abandon running calls that started before `before_s`, on the clock of `monotonic_s`; return their rows.

        May be called from any thread. A call that ends meanwhile is not abandoned.
        """
        given_up: list[Selection] = []
        for call, (began_s, ready) in list(self.running.items()):
            if began_s < before_s:
                self.hung[call] = began_s, ready
                if self.running.pop(call, None) is None:  # it has just ended
                    self.hung.pop(call, None)
                else:
                    given_up += ready
                    if self._permits is not None:
                        self._permits.give_up(call)
        return given_up

    def _log_late_end(self, call: int) -> None:
        """Log the end of a call that was abandoned."""
        if (given_up := self.hung.pop(call, None)) is not None:
            (began_s, ready), name = given_up, self._listener.topic.name
            text = (
                "topic %s: a handler ended after %g s; it had exceeded its timeout, so its result is ignored and "
                "messages that it had not settled by then are redelivered; its first message: %r"
            )
            log.warning(text, name, round(monotonic_s() - began_s, 1), ready[0].claim.delivery(ready[0].rows[0]))

    def _count(
        self, ready: Sequence[Selection], deliveries: Iterable[Delivery], started_s: float, error: BaseException | None
    ) -> None:
        """Count a call and its duration; log a failure or a `RetryAfterError`."""
        if error is not None and (delay_ms := retry_after_ms(error)) is not None:
            delay_s = delay_ms / 1000
            self._hold_back(delay_s)
            text = "topic %s: a handler raised RetryAfterError; this listener claims no messages for %g s: %s"
            log.warning(text, self._listener.topic.name, delay_s, describe(error)[1])
            return
        number = 1 if self._listener.batch is None else size_of(ready)
        self.handled += number
        elapsed_s = self.ended_s - started_s
        self.prefetch.note(number, elapsed_s)
        self.times.note(elapsed_s)
        if error is not None:
            self._note(ready, error)
        if self._typed is not None:  # payloads of deliveries that a handler keeps would cost garbage collections
            for delivery in deliveries:
                delivery.forget_payload()

    @property
    def runs_here(self) -> bool:
        """Whether the caller is a running (or abandoned) handler, or a task that it created."""
        call = id(_handled.get())
        return call in self.running or call in self.hung

    @property
    def others_run(self) -> bool:
        """Whether handlers other than the caller are running, not counting abandoned ones."""
        return any(call != id(_handled.get()) for call in list(self.running))

    def _call(self, part: Sequence[Selection], ready: Sequence[Selection], deliveries: list[Delivery]) -> None:
        """Call the handler inside the observers' contexts. Context variables that they set end with the call.

        A child process that the handler has forked exits here instead of leaving the handler.
        """
        _handled.set(part)
        if self._listener.columns:
            given: Any = DeliveryColumns(self._listener.topic, ready)
        else:
            given = deliveries if self._listener.batch else deliveries[0]
        observers = self._observers
        with observers.handling(deliveries or deliveries_of(ready)) if observers.all else UNWATCHED:
            try:
                result = self._handler(given)
            except BaseException as error:
                if signals.forks != self._forks:
                    signals.end_fork(error)
                raise
            if signals.forks != self._forks:
                signals.end_fork(None)
            if result is not None:
                refuse_unfinished(result)

    def _ready(self, part: Sequence[Selection], now_s: float) -> Sequence[Selection]:
        """Return the rows whose lease and slot we still hold; release the others."""
        ready: list[Selection] = []
        late: list[Selection] = []
        for each in part:
            claim, rows = each
            if now_s >= claim.lease_until_s:
                late.append(each)
            elif 1 in claim.lost and (lost := [row for row in rows if claim.lost[row]]):
                late.append(Selection(claim, lost))
                ready.append(Selection(claim, [row for row in rows if row not in lost]))
            else:
                ready.append(each)
        if self._coordinator is not None or late:
            ready = self._release_others([each for each in ready if each.rows], late)
        return ready

    def _decoded(self, ready: list[Delivery], typed: Typed) -> list[Delivery]:
        """Decode the payloads; return the deliveries that have one. Bury the others, which could never be decoded."""
        if self._collects:
            return [delivery for delivery in ready if not self._is_buried(delivery)]
        decode, bad = typed.decode, 0
        for delivery in ready:
            try:
                delivery.decoded = decode(delivery.body)  # pyright: ignore[reportArgumentType] - else it raises
            except BaseException:  # SystemExit, too: the class is the program's
                bad += self._is_buried(delivery)
        return [delivery for delivery in ready if delivery.outcome is None] if bad else ready

    def _is_buried(self, delivery: Delivery) -> bool:
        """Decode a payload again to get a readable error; bury or nack the delivery and return True if it fails.

        A failure for another reason, such as a lack of memory, uses up a retry, so that it cannot repeat for ever.
        """
        try:
            delivery.decode()
        except PayloadError as error:
            delivery.claim.settle_open(failed(Verb.BURY, 0, error, delivery.topic.keep_attempts), (delivery.row,))
            log.warning("%r was buried: %s", delivery, error)
            return True
        except BaseException as error:
            delivery.claim.settle_open(failed(Verb.NACK, None, error, delivery.topic.keep_attempts), (delivery.row,))
            log.warning("the payload of %r could not be decoded: %s(%r)", delivery, *describe(error))
            return True
        return False

    def _release_others(self, ready: list[Selection], late: list[Selection]) -> list[Selection]:
        """Release rows that are late, and those whose slots have other owners; return the rest."""
        if self._coordinator is not None:
            owned, name = self._coordinator.owned(), self._listener.ownership_name
            foreign = [
                each
                for each in ready
                if (owner := owned.get((name, each.claim.slot))) is None or owner.epoch != each.claim.owner.epoch
            ]
            late += foreign
            ready = [each for each in ready if each not in foreign] if foreign else ready
        if late and self._give_back is not None:  # later messages of the slot must stay behind them
            slots = {claim.slot for claim, _ in late}
            late += [each for each in ready if each.claim.slot in slots]
            ready = [each for each in ready if each.claim.slot not in slots]
            self._give_back(slots)
        settle_open(late, RELEASED)
        if late:
            text = "topic %s: messages released because their lease or slot was lost before a handler started: %d"
            log.warning(text, self._listener.topic.name, size_of(late))
        return ready

    def _note_permits(
        self,
        permits: ListenerPermits,
        call: int,
        ready: Sequence[Selection],
        outcome: Outcome,
        error: BaseException | None,
    ) -> None:
        """Report the end of a call to the permits. Messages that failed because the downstream is down keep a retry.

        An error here changes no outcome.
        """
        if outcome is RELEASED:
            if error is not None:  # else it did not begin
                permits.call_rejected(call)
            return
        try:
            failed = [
                (claim, row)
                for claim, rows in ready
                if outcome is not ACKED or len(claim.open_rows(rows)) < len(rows)
                for row in rows
                if (claim.outcomes[row] or outcome).verb is Verb.NACK
            ]
            tried = [(each.name, each.attempt, each.retries_left) for each in starmap(Claim.delivery, failed)]
            delays_ms = permits.call_ended(call, size_of(ready), tried)
            for (claim, row), delay_ms in zip(failed, delays_ms, strict=True):
                if delay_ms is not None:
                    nack = claim.outcomes[row] or outcome
                    delay_ms = max(delay_ms, nack.delay_ms or 0)
                    claim.outcomes[row] = replace(nack, verb=Verb.RELEASE, delay_ms=delay_ms)
        except BaseException:
            log.exception("topic %s: internal error after a handler ended", self._listener.topic.name)

    def _note(self, ready: Sequence[Selection], error: BaseException) -> None:
        """Log a failure. An error here changes no outcome."""
        name = self._listener.topic.name
        self.failed += size_of(ready)
        try:
            kind, message = describe(error)
            seen, extra = traced(error), about(deliveries_of(ready))
            log.warning("handler of topic %s failed: %s(%r)", name, kind, message, exc_info=seen, extra=extra)
        except BaseException:  # SystemExit, too, which a method of the error may raise while it is logged
            log.exception("topic %s: the failure of a handler could not be logged", name)


def _outcome_of(error: BaseException, keep_attempts: int | None) -> Outcome:
    """Return the outcome of the messages of a call that raised."""
    return failed(Verb.NACK, None, error, keep_attempts) if retry_after_ms(error) is None else RELEASED


class _Unlimited(RateLimiter):
    """A rate limit without effect, since a real one would make tests wait."""

    def refresh(self) -> None:
        """Do nothing, as a limit in Redis is ignored, too."""


class InlineRunner(Consumer[Any]):
    """Claims messages of one listener, calls its handler, and settles the deliveries.

    Args:
        connections: Connections to Redis.
        topic: The registered definition of the listener's topic.
        observers: Observers of the client.
        added: The listener.
        errors: Errors of the handler are appended to it.
    """

    settle = None  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride] - see Holder

    def __init__(
        self,
        connections: Connections,
        topic: Topic[Any],
        observers: Observers,
        added: Listener,
        errors: list[BaseException],
    ) -> None:
        self._listener = _noting_errors(replace(added, topic=topic), errors)
        group, start = added.group, "all" if added.start == "new" else added.start  # the test has sent all
        source = None if group is None else join_group(connections, topic, group, start, resume_as=added.resume_as)
        super().__init__(connections, topic, source=source)
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
                raise RedisUnavailableError(f"Redis did not confirm all outcomes of topic {self.topic.name}")
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
