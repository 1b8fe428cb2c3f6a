"""A thread of a listener: it claims, has the handler called, and settles what came of it with its next claim."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import TYPE_CHECKING

from rmq._broker.claims import PIGGYBACKED_NACKS
from rmq._claiming.claim_plan import ClaimPlan, FetchResult
from rmq._claiming.claim_planner import IDLE_S, REST_S, ClaimPlanner
from rmq._claiming.fetcher import PENDING_CHECK_S, Fetcher, note_lost
from rmq._claiming.leases import InFlight
from rmq._io.backend import Background
from rmq._listening.handler_invoker import HandlerInvoker, ListenerSetup
from rmq._model.claim_columns import number_of, size_of, spread, take_up_to
from rmq._model.deliveries import ACKED, RELEASED, Delivery
from rmq._model.reports import reporter
from rmq._model.times import monotonic_s
from rmq._ownership import Ownership
from rmq._transport.connections import AT_ONCE_S
from rmq.errors import ClientClosedError, RmqError

if TYPE_CHECKING:
    from rmq._listening.thread_executor import ThreadExecutor

log = reporter("rmq.worker")

LOOK_EVERY_S = 1.0
"""How often a listener looks by itself, since hints may get lost."""

SETTLE_AFTER_S = 0.1
"""How long an outcome may wait while more messages wait for the handler; it goes once the handler returns then."""

PIGGYBACK_S = 0.25
"""How long an ack may wait for the next claim from its slot, which carries it for little. An ack of a message that was
claimed longer ago does not wait, and an idle thread sends all, `MOST_SETTLED` slots a round. Beside a handler that runs
for longer, the watcher sends the acks. What a killed process had handled in this time is delivered again."""

MOST_SETTLED = 64
"""So many slots, or a sixteenth of them, an idle thread settles in a round: what becomes due meanwhile waits for it."""

LEAST_ROOM = PIGGYBACKED_NACKS // 2
"""Most messages that are claimed at once while many have to go back: fewer than go back with a call."""

_STAYING = (None, ACKED)

TROUBLE_PAUSE_S = 0.2


class ListenerThread(Background):
    """Claims, settles, and holds what it has claimed until the outcome is in Redis.

    Args:
        setup: What the threads of its listener have in common.
        planner: Where to claim; shared by all threads without ZooKeeper, of this thread's own slots with it.
        number: Which of the listener's threads this is.
        handlers: How the handlers run.

    Attributes:
        keeps_order: Whether the messages of a slot have to be begun in the order in which they were claimed.
    """

    settle = None
    """None: outcomes are recorded on the delivery and sent with the next claim. For `Delivery`."""

    def __init__(
        self, setup: ListenerSetup, planner: ClaimPlanner, number: int, handlers: type[ThreadExecutor]
    ) -> None:
        self.runtime = planner.connections.runtime
        super().__init__(self.runtime, f"rmq-{setup.listener.topic.name}-{number}")
        self.setup = setup
        self.planner = planner
        self._troubles = planner.troubles
        columns = setup.listener.columns
        self.claims = Fetcher(planner, self, columns=columns)
        self.held = InFlight(setup.listener.topic.lease_s, self.runtime, columns=columns)
        self.keeps_order = setup.coordinator is not None and planner.broker.group is not None
        self.calls = HandlerInvoker(setup, self.give_back if self.keeps_order else None)
        self.waiting: deque[Delivery] = deque()
        """What is claimed and not begun."""
        self._topic = setup.listener.topic
        self._stop_s = inf
        self.handlers = handlers(self)

    def run(self) -> None:
        """Work until the listener stops."""
        stopping = self.setup.stopping
        while not stopping.is_set():
            try:
                if not self.handlers.round():
                    self.handlers.wait()
            except self.handlers.survived as error:
                foreign = not isinstance(error, RmqError)
                self._troubles.warning(log, type(error), "topic %s: %s", self._topic.name, error, exc_info=foreign)
                stopping.wait(TROUBLE_PAUSE_S)
        self.handlers.finish()

    def request_stop(self) -> None:
        """Note that the listener stops: from now on outcomes do not wait for Redis for ever. Does not wait."""
        self._stop_s = monotonic_s()

    @property
    def gives_up_s(self) -> float:
        """When outcomes that do not reach Redis are left to their leases, on the clock of `monotonic_s`.

        One deadline after the stop, or after the last call of the handler that ended later; a claim that was under way
        at the stop has used up its part of that.
        """
        return max(self._stop_s, self.calls.ended_s) + self.planner.connections.deadline_s

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end; where a handler of its own asks for that, which has to end first, for the other ones."""
        if self.calls.runs_here:
            self.handlers.join_others(0.0 if timeout is None else timeout)
        else:
            super().join(timeout)

    def wait(self, unless: Callable[[], bool] = lambda: False) -> None:
        """Wait until something may be claimed, or outcomes have to go; as `ClaimPlanner.wait`."""
        longest_s = PENDING_CHECK_S if self.claims.has_earlier else SETTLE_AFTER_S if self.is_unsettled() else REST_S
        longest_s = min(longest_s, IDLE_S if self.held.deferred else REST_S)
        self.planner.wait(longest_s, lambda: self.setup.stopping.is_set() or unless())

    def take_waiting(self, most: int) -> list[Delivery]:
        """Take up to so many messages of what is claimed and not begun."""
        if self.setup.listener.columns:
            return take_up_to(self.waiting, most)
        taken: list[Delivery] = []
        try:
            for _ in range(most):
                taken.append(self.waiting.popleft())
        except IndexError:  # no more, or the stopping thread was faster
            pass
        return taken

    def stop_starting(self) -> None:
        """Let what was claimed and not begun go back with the next call. Does not wait; from any thread."""
        for delivery in self.take_waiting(sys.maxsize):
            delivery.outcome = RELEASED

    def release_waiting(self, go_on: Callable[[], bool] = lambda: True) -> None:
        """Give back what was claimed and not begun; called from the thread that stops the runtime, too.

        Args:
            go_on: Asked after each call whether to make another one. What is left then goes back with later calls.
        """
        before = sys.maxsize
        try:
            while True:
                if self.waiting:  # more than before may have to go
                    before = sys.maxsize
                self.stop_starting()
                went, left = self.settle_only(), self.going_back()
                # else it was on its way, or too much; what a silent server does not take is no reason to go on
                if not (self.waiting or (went and 0 < left < before)) or not go_on():
                    return
                before = left
        except Exception as error:
            log.warning("topic %s: messages not begun come back with their leases: %s", self._topic.name, error)

    def give_up_hung(self) -> bool:
        """Give up the calls of the handler that have run for too long; return whether there were any.

        Called from the watcher's thread, and from one that stops the listener. It waits for no reply of Redis: where a
        call has the lock, the next look gives them up. Those of their deliveries that have no outcome yet are held no
        more: their leases are not renewed, and what comes of them is not sent. What was settled before is, with the
        next call. The slots stay in use here until the handlers end.
        """
        calls, timeout_s = self.calls, self.setup.listener.timeout_s + self.handlers.grace_s
        now_s = monotonic_s()
        if all(now_s - began_s < timeout_s for began_s, _ in list(calls.running.values())):
            return False
        if not self.held.lock.acquire(timeout=TROUBLE_PAUSE_S):
            return False
        try:
            given_up = calls.give_up(now_s - timeout_s)
            open_ = dict.fromkeys(each for each in given_up if each.outcome is None)
            lost = [each for each in spread(open_) if each.outcome is None]
            for delivery in lost:
                delivery.lost = True
            held = [part for each in self.held.deliveries for part in (spread((each,)) if each in open_ else (each,))]
            gone = set(lost)
            self.held.deliveries = [each for each in held if each not in gone]
        finally:
            self.held.lock.release()
        if given_up and not lost:
            log.error(
                "topic %s: a handler has hung for longer than its timeout of %g s; its messages were all settled",
                self._topic.name,
                self.setup.listener.timeout_s,
            )
        for delivery in lost:
            log.error(
                "topic %s: a handler has hung for longer than its timeout of %g s; %r is given up, its lease ends",
                self._topic.name,
                self.setup.listener.timeout_s,
                delivery,
            )
            self.setup.on_lost(delivery)
        return bool(given_up)

    def still_owner(self, delivery: Delivery) -> bool:
        """Return whether nobody else can own the delivery's slot yet. For `Delivery`."""
        if self.setup.coordinator is None:
            return True
        owner, name = delivery.owner, self.setup.listener.ownership_name
        return self.setup.coordinator.still_owner(Ownership(name, delivery.slot, owner.epoch, owner.ensemble))

    def has_left(self, slot: int) -> bool:
        """Settle what is done; return whether nothing of a slot is held any more and no claim is under way."""
        self.try_to_settle()
        return slot not in self.slots_held()

    def slots_held(self) -> Collection[int]:
        """Return the slots of which something is held, or whose server owes a reply; all slots while a claim runs."""
        if not self.held.lock.acquire(timeout=TROUBLE_PAUSE_S):
            return range(self._topic.slots)
        try:
            hung = {each.slot for _, ready in list(self.calls.hung.values()) for each in ready}
            return {delivery.slot for delivery in self.held.all()} | self.claims.pending_slots() | hung
        finally:
            self.held.lock.release()

    def round(self) -> bool:
        """Claim, settle and handle once; return whether there was anything to do."""
        room = self.handlers.room()
        if room is None:
            return False
        with self.held.lock:
            busy = collected = self.claims.is_ahead and self._collect(room)
            if not collected:
                busy = self._carry_out(self._plan(room))
            if self.claims.is_ahead:  # begun while what has come was made ready for the handler
                pass
            elif self.handlers.claims_ahead(*size_of(list(self.waiting))):
                self._begin(self._plan(room))
            elif collected:
                self._carry_out(ClaimPlan([], False))
        if self.setup.stopping.is_set():
            self.release_waiting()
        self.handlers.run()
        return busy

    def _plan(self, room: int) -> ClaimPlan:
        """Plan a claim of up to `room` messages, and make up which acks go along."""
        held, since_s = self.held, monotonic_s() - PIGGYBACK_S
        if self._topic.slots > 1:
            held.defer_acks(since_s)
        plan = self.planner.plan(room, held.deliveries, held.all)
        if plan.busy:
            held.take_deferred([visit.slot for visit in plan.requests], since_s)
        else:
            # without room it may be a while until the next round; and many slots must not take many rounds
            most = max(MOST_SETTLED, len(held.deferred) // 16) if room else None
            held.take_deferred((), inf, most)
        return plan

    def settle_only(self) -> bool:
        """Send off what is done, and take what a server still owed; return whether there was any of it."""
        with self.held.lock:
            self.held.take_deferred()
            has_outcomes = bool(self.held.settled()) or self.claims.has_earlier
            return has_outcomes and self._carry_out(ClaimPlan([], False))

    def try_to_settle(self) -> None:
        """Send off what is done; where that fails, it goes later."""
        try:
            self.settle_only()
        except RmqError as error:
            text = "topic %s: outcomes wait for Redis: %s"
            self._troubles.warning(log, (text, type(error)), text, self._topic.name, error)

    def _carry_out(self, plan: ClaimPlan) -> bool:
        """Claim as planned, and settle what is done; return whether there was anything to do. The lock is held.

        What is settled while this is under way is not among it.
        """
        held, deadline_s = self.held, None
        if self._stop_s < inf:
            deadline_s = max(AT_ONCE_S, self.gives_up_s - monotonic_s())
        with held.marks:  # the keeper leaves alone what is in `settling`
            settled = held.settling = held.settled()
        try:
            round_ = self.claims.carry_out(plan, settled, held.deliveries, deadline_s)
            held.deliveries += round_.deliveries
            self.waiting.extend(self._in_turn(round_, settled) if self.keeps_order else round_.deliveries)
            self._drop(settled, round_)  # last: it tells observers
        finally:
            held.settling = ()
        for delivery in round_.lost:
            self.setup.on_lost(delivery)
        # what is unsent may be of an earlier round, whose reply has come with this one's
        return bool(round_.deliveries) or not set(settled).issubset(round_.unsent)

    def _in_turn(self, round_: FetchResult, settled: Sequence[Delivery]) -> list[Delivery]:
        """Return what may be begun of what has come.

        The rest comes behind a message of its slot that has still to be given back, and goes back with it.
        """
        sent = set(settled).difference(round_.unsent)
        slots = {each.slot for each in self.held.deliveries if each.outcome is RELEASED and each not in sent}
        for delivery in round_.deliveries:
            if delivery.slot in slots:
                delivery.outcome = RELEASED
        return [delivery for delivery in round_.deliveries if delivery.outcome is None]

    def give_back(self, slots: Collection[int]) -> None:
        """Let what waits of some slots go back with the next call. Does not wait; from any thread."""
        stay: list[Delivery] = []
        for delivery in self.take_waiting(sys.maxsize):
            if delivery.slot in slots:
                delivery.outcome = RELEASED
            else:
                stay.append(delivery)
        self.waiting.extendleft(reversed(stay))

    def _begin(self, plan: ClaimPlan) -> None:
        """Send a claim as planned, with what is done; the next round collects what it brings. The lock is held."""
        held = self.held
        with held.marks:
            settled = held.settling = held.settled()
        try:
            self._drop(settled, self.claims.begin(plan, settled, held.deliveries))
        finally:
            held.settling = ()

    def _collect(self, room: int) -> bool:
        """Take what the claim brings that is on its way; return whether it brought anything. The lock is held.

        Where that is much, the next claim of up to `room` messages begins first.
        """

        def begin_next(number: int, slots: int) -> None:
            if self.planner.broker.takes_long(number, slots) and self.handlers.claims_ahead(number, slots):
                self._begin(self._plan(room))

        round_ = self.claims.collect(begin_next)
        self.held.deliveries += round_.deliveries
        self.waiting.extend(round_.deliveries)
        self._drop((), round_)
        for delivery in round_.lost:
            self.setup.on_lost(delivery)
        return bool(round_.deliveries)

    def room_beside(self, room: int) -> int:
        """Return for how many of `room` messages there is room beside those that have still to go back.

        That is some room at least: a server that takes none back must not keep others from being claimed from.
        """
        return max(min(room, LEAST_ROOM), room - self._going_back_later())

    def going_back(self) -> int:
        """Return how many messages have to go back with later calls."""
        return sum(self._back_by_slot().values())

    def _going_back_later(self) -> int:
        """Return how many messages have to go back beyond those that the next calls to their slots take along."""
        return sum([max(0, number - PIGGYBACKED_NACKS) for number in self._back_by_slot().values()])

    def _back_by_slot(self) -> Counter[int]:
        back = Counter[int]()
        for each in [each for each in self.held.deliveries if each.outcome not in _STAYING and not each.under_way]:
            back[each.slot] += number_of((each,))
        return back

    def is_unsettled(self) -> bool:
        """Return whether an outcome is still to be sent, now or once a server has answered."""
        return any(delivery.outcome is not None for delivery in self.held.all())

    def _drop(self, settled: Sequence[Delivery], round_: FetchResult) -> None:
        """Let go of what is settled; what did not reach Redis is kept and sent again as long as its lease runs.

        Outcomes whose execution is unknown are dropped, too: what was not acked is redelivered, and
        observers do not hear of them. Those of which a server still owes the reply stay.
        """
        settled = [delivery for delivery in (*round_.arrived, *settled) if not delivery.under_way]
        if not settled:
            return
        gone = set(settled)
        if round_.unsent:
            now_s = monotonic_s()
            gone.difference_update([delivery for delivery in round_.unsent if now_s < delivery.lease_until_s])
        self.held.deliveries = [delivery for delivery in self.held.deliveries if delivery not in gone]
        if late := [delivery for delivery in round_.unsent if delivery in gone]:
            log.warning(
                "topic %s: %d outcomes did not reach Redis before their leases ended: the messages are delivered again",
                self._topic.name,
                len(late),
            )
            note_lost(late, round_)
        if self.setup.observers.all:
            missed = {*round_.unsent, *round_.unconfirmed}
            if arrived := [delivery for delivery in settled if delivery not in missed]:
                self.setup.observers.settled(spread(arrived) if self.setup.listener.columns else arrived)

    def finish(self) -> None:
        """Send the last outcomes, and give back what a server still owes.

        What does not reach Redis until its lease ends, or until `gives_up_s`, is delivered again.
        """
        self.stop_starting()
        with self.held.lock:  # another thread may just move deferred acks, and they are in neither place meanwhile
            self.held.take_deferred()
        while self._is_unfinished():
            self.stop_starting()
            went = False
            try:
                went = self.settle_only()
            except Exception as error:
                log.warning("topic %s: last outcomes: %s", self._topic.name, error)
                if isinstance(error, ClientClosedError):  # the leases settle it
                    return
            with self.held.lock:
                settled = self.held.settled()
                self._drop(settled, FetchResult([], settled))
            if not went and self._is_unfinished():
                if monotonic_s() >= self.gives_up_s:
                    number = number_of([each for each in self.held.all() if each.outcome is not None])
                    outcomes = "outcome" if number == 1 else "outcomes"
                    text = "topic %s: %d %s did not reach Redis before the stop; unacked messages are redelivered"
                    log.warning(text, self._topic.name, number, outcomes)
                    return
                self.runtime.sleep(TROUBLE_PAUSE_S)

    @property
    def hangs(self) -> bool:
        """Whether only calls of the handler are left that were given up, or that asks for this itself."""
        return bool(self.calls.hung or self.calls.runs_here) and not self.calls.others_run

    def _is_unfinished(self) -> bool:
        return bool(self.waiting or self.is_unsettled() or self.claims.has_earlier)
