"""Calls a listener's handler, and notes an outcome for each of its deliveries, whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any

from rmq._claiming.prefetch_size import MOST_PREFETCHED, PrefetchSize
from rmq._io.backend import Event
from rmq._listening.arguments import with_arguments
from rmq._listening.concurrency import ListenerPermits
from rmq._listening.listener import Listener
from rmq._model.claim_columns import ClaimColumns, number_of, spread
from rmq._model.deliveries import ACKED, RELEASED, Delivery, Outcome, Verb, describe
from rmq._model.delivery_columns import DeliveryColumns
from rmq._model.handlers import refuse_unfinished
from rmq._model.observers import Observers
from rmq._model.reports import reporter, traced
from rmq._model.retry_after import RetryAfterError
from rmq._model.times import monotonic_s
from rmq._model.typed import Typed
from rmq._model.workers import TimesCounter
from rmq._ownership import Coordinator
from rmq._processes import signals
from rmq.errors import PayloadError
from rmq.logs import about

log = reporter("rmq.worker")

UNWATCHED = nullcontext()

_handled: ContextVar[Sequence[Delivery]] = ContextVar("rmq_handled_here", default=())
"""What the caller's handler got, also in the tasks that it has made."""

RESULT_NOT_RECORDED = Outcome(Verb.NACK, None, "", "internal error: the handler's result could not be recorded")


@dataclass(frozen=True, slots=True)
class ListenerSetup:
    """What the threads of a listener have in common.

    Attributes:
        listener: What to call.
        stopping: Set when no more messages may be claimed or begun.
        coordinator: This process as a worker in ZooKeeper; `None` without.
        permits: Where threads wait for their turns; `None` where their number is not limited.
        observers: Watch the handlers.
        on_lost: Called with each delivery whose lease was lost; must not wait.
        hold_back: Called with how long, in seconds, a handler wants nothing more; must not wait.
    """

    listener: Listener
    stopping: Event
    coordinator: Coordinator | None = None
    permits: ListenerPermits | None = None
    observers: Observers = field(default_factory=Observers)
    on_lost: Callable[[Delivery], None] = lambda delivery: None
    hold_back: Callable[[float], None] = lambda delay_s: None


class HandlerInvoker:
    """Calls the handler, and learns from it.

    Args:
        setup: What to call, and who watches.
        give_back: Where messages of a slot have to be begun in order: gives back what waits of some slots.

    Attributes:
        handled: Messages that were handled.
        failed: Those of them whose handler raised.
        prefetch: How many messages to claim at once.
        times: How long its calls took.
        running: The calls that run: when each began, on the clock of `monotonic_s`, and what it got.
        hung: Those of them that have run for too long, and were given up: what comes of them counts no more.
        began_s: When the handler began that runs, on the clock of `monotonic_s`; `None` while none does.
        ended_s: When its last call ended, on the same clock.
    """

    def __init__(self, setup: ListenerSetup, give_back: Callable[[Collection[int]], object] | None = None) -> None:
        self.handled = self.failed = 0
        self.prefetch = PrefetchSize(MOST_PREFETCHED)
        self.times = TimesCounter()
        self.running: dict[int, tuple[float, Sequence[Delivery]]] = {}
        self.hung: dict[int, tuple[float, Sequence[Delivery]]] = {}
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

    def handle(self, part: Sequence[Delivery]) -> None:
        """Call the handler. Whatever happens here, each delivery of the part has an outcome in the end."""
        started_s, outcome, error = monotonic_s(), RELEASED, None
        ready: Sequence[Delivery] = ()
        try:
            ready = self._ready(part, started_s)
            if not ready:
                return
            self.began_s = started_s
            self.running[id(part)] = started_s, ready
            if self._permits is not None:
                self._permits.call_started(id(part))
            outcome = RESULT_NOT_RECORDED
            try:
                copy_context().run(self._call, part, ready)
                outcome = ACKED
            except BaseException as caught:  # SystemExit, too: it would end this thread without a line in the log
                outcome, error = _outcome_of(caught), caught
        finally:
            if self._permits is not None:
                self._note_permits(self._permits, id(part), ready, outcome, error)
            self.began_s, self.ended_s = None, monotonic_s()
            if self.running.pop(id(part), None) is None:
                self._log_late_end(id(part))
            for delivery in part:
                if delivery.outcome is None:
                    delivery.outcome = outcome
        self._count(ready, started_s, error)
        error = None  # this frame is in its traceback: they would keep each other, and all that the handler held

    def give_up(self, before_s: float) -> list[Delivery]:
        """Give up the calls that began before a moment of `monotonic_s` and still run; return their deliveries.

        From any thread. The caller lets go of them: a call that ends by itself meanwhile is not among these.
        """
        deliveries: list[Delivery] = []
        for call, (began_s, ready) in list(self.running.items()):
            if began_s < before_s:
                self.hung[call] = began_s, ready
                if self.running.pop(call, None) is None:  # it has just ended
                    self.hung.pop(call, None)
                else:
                    deliveries += ready
                    if self._permits is not None:
                        self._permits.give_up(call)
        return deliveries

    def _log_late_end(self, call: int) -> None:
        """Say that a call has ended that was given up."""
        if (given_up := self.hung.pop(call, None)) is not None:
            began_s, ready = given_up
            log.warning(
                "topic %s: a handler has ended %g s after it began; it had been given up, so what came of it counts no "
                "more, and what it had not settled by then is delivered again; its first message: %r",
                self._listener.topic.name,
                round(monotonic_s() - began_s, 1),
                ready[0],
            )

    def _count(self, ready: Sequence[Delivery], started_s: float, error: BaseException | None) -> None:
        """Count what was handled, and learn how long it took; log what has failed, or wishes to wait."""
        if isinstance(error, RetryAfterError):
            delay_s = error.delay_ms / 1000
            self._hold_back(delay_s)
            text = "topic %s: a handler holds it back in this process, for %g s: %s"
            log.warning(text, self._listener.topic.name, delay_s, describe(error)[1])
            return
        number = number_of(ready) if self._listener.columns else len(ready)
        self.handled += number
        elapsed_s = self.ended_s - started_s
        self.prefetch.note(number, elapsed_s)
        self.times.note(elapsed_s)
        if error is not None:
            self._note(ready, error)
        if self._typed is not None:  # a payload that lives on until its claim is settled costs the garbage collector
            for delivery in ready:
                delivery.forget_payload()

    @property
    def runs_here(self) -> bool:
        """Whether a handler that runs, be it one that was given up, is the caller, or a task that it has made."""
        call = id(_handled.get())
        return call in self.running or call in self.hung

    @property
    def others_run(self) -> bool:
        """Whether handlers run beside the caller, without those that were given up."""
        return any(call != id(_handled.get()) for call in list(self.running))

    def _call(self, part: Sequence[Delivery], ready: Sequence[Delivery]) -> None:
        """Call the handler while observers watch; both may set context variables, which end with the call.

        A process that the handler has forked ends where it leaves the handler.
        """
        _handled.set(part)
        given = self._given(ready)
        with self._observers.handling(spread(ready)) if self._observers.all else UNWATCHED:
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

    def _ready(self, part: Sequence[Delivery], now_s: float) -> Sequence[Delivery]:
        """Return the deliveries whose lease and slot we still hold, with decoded payloads; release the others."""
        ready = [delivery for delivery in part if not delivery.lost and now_s < delivery.lease_until_s]
        if self._coordinator is not None or len(ready) < len(part):
            ready = self._release_others(part, ready)
        return ready if self._typed is None else self._decoded(ready, self._typed)

    def _given(self, ready: Sequence[Delivery]) -> Any:
        """Return what the handler gets."""
        if self._listener.columns:
            return DeliveryColumns(self._listener.topic, ready)
        return list(ready) if self._listener.batch else ready[0]

    def _decoded(self, ready: list[Delivery], typed: Typed) -> list[Delivery]:
        """Decode the payloads; return the deliveries with one. What does not decode never will: it is buried."""
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
        """Decode with a readable reason; bury what does not decode, and return True.

        What fails for another reason, such as too little memory, uses up a retry: given back, it came again for ever.
        """
        try:
            delivery.decode()
        except PayloadError as error:
            delivery.outcome = Outcome(Verb.BURY, 0, *describe(error))
            log.warning("topic %s: a message went to the dead letters: %s", delivery.topic.name, error)
            return True
        except BaseException as error:
            delivery.outcome = Outcome(Verb.NACK, None, *describe(error))
            log.warning("topic %s: a payload could not be decoded: %s(%r)", delivery.topic.name, *describe(error))
            return True
        return False

    def _release_others(self, part: Sequence[Delivery], ready: list[Delivery]) -> list[Delivery]:
        """Give back what is not ready, or lies in slots of other owners; return the rest."""
        if self._coordinator is not None:
            owned, name = self._coordinator.owned(), self._listener.ownership_name
            epochs = {delivery.slot: owned.get((name, delivery.slot)) for delivery in ready}
            ready = [
                each for each in ready if (owner := epochs[each.slot]) is not None and owner.epoch == each.owner.epoch
            ]
        begun = set(ready)
        late = [delivery for delivery in part if delivery not in begun]
        if late and self._give_back is not None:  # what was claimed behind them comes back behind them
            slots = {delivery.slot for delivery in late}
            ready = [delivery for delivery in ready if delivery.slot not in slots]
            late = [delivery for delivery in part if delivery.slot in slots]
            self._give_back(slots)
        for delivery in late:
            delivery.outcome = RELEASED
        if late:
            log.warning("topic %s: %d messages were not begun in time", self._listener.topic.name, number_of(late))
        return ready

    def _note_permits(
        self,
        permits: ListenerPermits,
        call: int,
        ready: Sequence[Delivery],
        outcome: Outcome,
        error: BaseException | None,
    ) -> None:
        """Tell the gate how a call has ended; let what failed since its downstream is down use up no retry.

        What goes wrong here changes no outcome.
        """
        if outcome is RELEASED:
            if error is not None:  # else it did not begin
                permits.call_rejected(call)
            return
        try:
            candidates = ready if outcome is not ACKED else [each for each in ready if _is_marked(each)]
            failed = [each for each in spread(candidates) if (each.outcome or outcome).verb is Verb.NACK]
            tried = [(each.name, each.attempt, each.retries_left) for each in failed]
            delays_ms = permits.call_ended(call, number_of(ready), tried)
            for delivery, delay_ms in zip(failed, delays_ms, strict=True):
                if delay_ms is not None:
                    nack = delivery.outcome or outcome
                    delay_ms = max(delay_ms, nack.delay_ms or 0)
                    delivery.outcome = Outcome(Verb.RELEASE, delay_ms, nack.error_type, nack.error_message)
        except BaseException:
            log.exception("topic %s: a handler's end was not noted", self._listener.topic.name)

    def _note(self, ready: Sequence[Delivery], error: BaseException) -> None:
        """Log a failure. What fails here changes no outcome."""
        name = self._listener.topic.name
        ready = spread(ready)
        self.failed += len(ready)
        try:
            kind, message = describe(error)
            seen = traced(error)
            log.warning("handler of topic %s failed: %s(%r)", name, kind, message, exc_info=seen, extra=about(ready))
        except BaseException:  # SystemExit, too: a method of the error may raise it while the error is logged
            log.exception("topic %s: a handler's end was not noted", name)


def _outcome_of(error: BaseException) -> Outcome:
    """Return what becomes of the messages of a call that has raised."""
    return RELEASED if isinstance(error, RetryAfterError) else Outcome(Verb.NACK, None, *describe(error))


def _is_marked(delivery: Delivery) -> bool:
    """Return whether a handler has settled it, or a part of it, by itself."""
    return delivery.outcome is not None or (isinstance(delivery, ClaimColumns) and delivery.is_spread)
