"""A worker of a listener: claims messages, runs the handler, and sends the outcomes with its next claim.

`Worker` runs the handlers one after the other in its own thread. `rmq.aio.listener.TaskWorker` is a worker that runs
them in tasks: it overrides how many messages a round claims, how waiting rows start, and what a worker waits for.

A claim is in `held` until the outcomes of all its rows have reached Redis, so that its lease is renewed. Rows whose
handler has not started are also in `waiting`: each by itself, or with columns those of a claim together. A row with the
outcome `RELEASED` goes back to the backlog with the next call.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from math import inf

from rmq._broker.claims import MAX_BATCH, PIGGYBACKED_NACKS
from rmq._claiming.claim_planner import IDLE_S, REST_S, ClaimPlanner
from rmq._claiming.fetcher import PENDING_CHECK_S, Fetcher
from rmq._claiming.leases import InFlight
from rmq._claiming.rounds import MOST_BATCHED, MOST_PREFETCHED, PREFETCH_S, ClaimPlan, FetchResult
from rmq._io.backend import Background
from rmq._io.reports import reporter
from rmq._listening.handler_invoker import HandlerInvoker, ListenerSetup
from rmq._model.claims import Selection, deliveries_of, settle_open, size_of
from rmq._model.deliveries import Claim, Delivery
from rmq._model.outcomes import RELEASED
from rmq._model.times import monotonic_s
from rmq._ownership import Ownership
from rmq._transport.connections import AT_ONCE_S
from rmq.errors import ClientClosedError, RmqError

log = reporter("rmq.worker")

LOOK_EVERY_S = 1.0
"""Seconds between polls of a listener without a wakeup, since wakeups may get lost."""

SETTLE_AFTER_S = 0.1
"""Seconds that an outcome may wait while more messages are handled; then it is sent once the handler returns."""

PIGGYBACK_S = 0.25
"""Seconds that an ack may wait for the next claim from its slot, which carries it at little cost. An ack of a message
that was claimed longer ago is sent at once, and an idle thread sends all acks, `MOST_SETTLED` slots per round. If a
handler runs longer, the watcher sends the acks. Messages handled in this time are redelivered if the process is
killed."""

MOST_SETTLED = 64
"""Number of slots, or a sixteenth of all if more, that an idle thread settles per round, since new messages wait."""

LEAST_ROOM = PIGGYBACKED_NACKS // 2
"""Maximum number of messages to claim while many must be released; fewer than one call can release."""

TROUBLE_PAUSE_S = 0.2

SLOW_S = 0.5
"""Messages that wait behind a handler which runs longer than this are released to other workers."""

LEAST_AHEAD_S, AHEAD_S = 0.0003, PREFETCH_S / 2
"""The next claim is sent before the handlers run if their expected duration is within these bounds: a shorter one does
not pay for the extra cost, and after a longer one an urgent message would have to wait."""

BATCHES_S = 0.002
"""Batches are claimed together if they take no longer than this together. Their acks are sent together, too, so that
several are redelivered if the process is killed. For longer batches a round trip to Redis is below a tenth of the time.
"""


class Worker(Background):
    """Claims messages, and holds them until their outcomes have reached Redis.

    Args:
        setup: Settings shared by the threads of the listener.
        planner: Selects the slots; shared by all threads without owners, with this thread's slots with owners.
        number: Number of this thread in the listener.

    Attributes:
        keeps_order: Whether the messages of a slot must start in the order of their claims.
        may_claim_ahead: Whether the next messages may be claimed while quick handlers run.
    """

    survived: type[BaseException] = BaseException
    """Exceptions that do not end the worker, since its end would go unnoticed."""

    grace_s = 0.0
    """Time between the timeout of a call and its abandonment; 0, since a thread cannot be interrupted."""

    claims_for_all = False
    """Whether one worker claims for all handlers of a listener; else each claims for its own."""

    settle = None
    """None: outcomes are recorded on the delivery and sent with the next claim. For `Delivery`."""

    def __init__(self, setup: ListenerSetup, planner: ClaimPlanner, number: int) -> None:
        self.runtime = planner.connections.runtime
        super().__init__(self.runtime, f"rmq-{setup.listener.topic.name}-{number}")
        self.setup = setup
        self.planner = planner
        self._troubles = planner.troubles
        self.claims = Fetcher(planner, self)
        self.held = InFlight(setup.listener.topic.lease_s, self.runtime)
        self.keeps_order = setup.coordinator is not None and planner.broker.group is not None
        self.calls = HandlerInvoker(setup, self.give_back if self.keeps_order else None)
        self.waiting: deque[Selection] = deque()
        """Claimed rows whose handlers have not started."""
        self._topic = setup.listener.topic
        self._stop_s = inf
        # a claim in columns is acked as a whole, so it is not split
        self._batch, self._columns = setup.listener.batch, setup.listener.columns
        self._most_each = min(self._batch or 1, MAX_BATCH) if self._columns else MAX_BATCH
        self._permits = setup.permits
        self.may_claim_ahead = self._permits is None and not self.keeps_order

    def run(self) -> None:
        """Work until the listener stops."""
        stopping = self.setup.stopping
        while not stopping.is_set():
            try:
                if not self.permitted_round():
                    self.wait()
            except self.runtime.cancellations:
                raise
            except self.survived as error:
                foreign = not isinstance(error, RmqError)
                self._troubles.warning(log, type(error), "topic %s: %s", self._topic.name, error, exc_info=foreign)
                stopping.wait(TROUBLE_PAUSE_S)
            if self.runtime.cancelled():  # in a call of the handler, which takes every exception for a failure
                return
        self.finish()

    def request_stop(self) -> None:
        """Record that the listener stops: from now on outcomes are retried only until `gives_up_s`. Does not wait."""
        self._stop_s = monotonic_s()

    @property
    def gives_up_s(self) -> float:
        """Time at which to stop retrying outcomes, on the clock of `monotonic_s`. Their messages are then redelivered.

        This is one client deadline after the stop, or after the last handler ended if that was later.
        """
        return max(self._stop_s, self.calls.ended_s) + self.planner.connections.deadline_s

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended. If one of its own handlers calls this, wait for the other handlers only."""
        if self.calls.runs_here:
            self.join_others(0.0 if timeout is None else timeout)
        else:
            super().join(timeout)

    def join_others(self, timeout_s: float) -> None:
        """Wait for handlers other than the calling one; here there are none."""
        del timeout_s

    def wait(self) -> None:
        """Wait until messages may be claimed or outcomes must be sent."""
        longest_s = PENDING_CHECK_S if self.claims.has_earlier else SETTLE_AFTER_S if self.is_unsettled() else REST_S
        longest_s = min(longest_s, IDLE_S if self.held.deferred else REST_S)
        self.planner.wait(longest_s, self.is_interrupted)

    def is_interrupted(self) -> bool:
        """Return whether a wait for the next claim must end."""
        return self.setup.stopping.is_set()

    def take_waiting(self, most: int, but: Collection[int] = ()) -> list[Selection]:
        """Remove and return up to `most` waiting rows, or those of one claim in columns, which is not split.

        Args:
            most: The number of rows.
            but: Slots whose rows stay.
        """
        taken: list[Selection] = []
        staying: list[Selection] = []
        try:
            while most > 0:
                part = self.waiting.popleft()
                if but and part.claim.slot in but:
                    staying.append(part)
                    continue
                if (number := len(part.rows)) > most and not self._columns:
                    self.waiting.appendleft(Selection(part.claim, part.rows[most:]))
                    part = Selection(part.claim, part.rows[:most])
                elif number > most and taken:
                    self.waiting.appendleft(part)
                    break
                taken.append(part)
                most -= number
        except IndexError:  # none left; the stopping thread takes from it, too
            pass
        if staying:
            self.waiting.extendleft(reversed(staying))
        return taken

    def stop_starting(self) -> None:
        """Mark the waiting rows to be released with the next call. Does not wait; may be called by any thread."""
        settle_open(self.take_waiting(sys.maxsize), RELEASED)

    def release_waiting(self, go_on: Callable[[], bool] = lambda: True) -> None:
        """Release the waiting deliveries; also called from the thread that stops the listener.

        Args:
            go_on: Called after each call to decide about another one. The rest is released with later calls.
        """
        before = sys.maxsize
        try:
            while True:
                if self.waiting:  # the number to release may have grown
                    before = sys.maxsize
                self.stop_starting()
                went, left = self.settle_only(), self.going_back()
                # continue only while each call makes progress: an unresponsive server takes nothing
                if not (self.waiting or (went and 0 < left < before)) or not go_on():
                    return
                before = left
        except Exception as error:
            text = "topic %s: messages could not be released; they are redelivered when their leases expire: %s"
            log.warning(text, self._topic.name, error)

    def give_up_hung(self) -> bool:
        """Abandon calls of the handler that exceed their timeout; return whether there were any.

        Called from the watcher's thread, and from a thread that stops the listener. It does not wait for Redis: if
        another call has the lock, the next check abandons them. Their unsettled rows are no longer held: their
        leases are not renewed and their outcomes not sent. Outcomes that exist already are sent with the next call.
        The slots stay in use here until the handlers end.
        """
        calls, timeout_s = self.calls, self.setup.listener.timeout_s + self.grace_s
        now_s = monotonic_s()
        if all(now_s - began_s < timeout_s for began_s, _ in list(calls.running.values())):
            return False
        if not self.held.lock.acquire(timeout=TROUBLE_PAUSE_S):
            return False
        try:
            given_up = calls.give_up(now_s - timeout_s)
            lost: list[Delivery] = []
            for claim, rows in given_up:
                open_rows = claim.open_rows(rows)
                lost += claim.deliveries(open_rows)
                claim.lose(open_rows)
                claim.end(open_rows)
            self.held.drop_ended()
        finally:
            self.held.lock.release()
        text, name = "topic %s: a handler has exceeded its timeout of %g s; ", self._topic.name
        if given_up and not lost:
            log.error(text + "all its messages were already settled", name, self.setup.listener.timeout_s)
        for delivery in lost:
            left = "the lease on %r is no longer renewed, so the message will be redelivered"
            log.error(text + left, name, self.setup.listener.timeout_s, delivery)
            self.setup.on_lost(delivery)
        return bool(given_up)

    def still_owner(self, delivery: Delivery) -> bool:
        """Return whether no other worker can own the delivery's slot yet. For `Delivery`."""
        if self.setup.coordinator is None:
            return True
        owner, name = delivery.owner, self.setup.listener.ownership_name
        return self.setup.coordinator.still_owner(Ownership(name, delivery.slot, owner.epoch, owner.ensemble))

    def has_left(self, slot: int) -> bool:
        """Send outcomes; return whether the slot is not among `slots_held`."""
        self.try_to_settle()
        return slot not in self.slots_held()

    def slots_held(self) -> Collection[int]:
        """Return the slots with held deliveries, pending replies, or handlers that run, including abandoned ones.

        While a claim is in flight, these are all slots.
        """
        if not self.held.lock.acquire(timeout=TROUBLE_PAUSE_S):
            return range(self._topic.slots)
        try:
            calls = (*self.calls.running.copy().values(), *self.calls.hung.copy().values())
            handled = {claim.slot for _, ready in calls for claim, _ in ready}
            return {claim.slot for claim in self.held.all()} | self.claims.pending_slots() | handled
        finally:
            self.held.lock.release()

    def permitted_round(self) -> bool:
        """Claim, settle and handle once, with a permit if limited; return whether there was anything to do."""
        permits = self._permits
        if permits is None:
            return self.round()
        if (began_s := permits.begin(0.0, id(self))) is None:
            self.settle_only()  # outcomes do not wait for a permit
            if (began_s := permits.begin(LOOK_EVERY_S, id(self))) is None:
                return True
        try:
            return self.round()
        finally:
            permits.end(began_s)

    def round(self) -> bool:
        """Claim, settle and handle once; return whether there was anything to do."""
        room = self.room()
        if room is None:
            return False
        with self.held.lock:
            busy = collected = self.claims.is_ahead and self._collect(room)
            if not collected:
                busy = self._carry_out(self._plan(room))
            if self.claims.is_ahead:  # sent by `_collect`, while its reply was decoded
                pass
            elif self.claims_ahead(self.number_waiting(), len({part.claim.slot for part in list(self.waiting)})):
                self._begin(self._plan(room))
            elif collected:
                self._carry_out(ClaimPlan([], False))
        if self.setup.stopping.is_set():
            self.release_waiting()
        self.start_waiting()
        return busy

    def room(self) -> int | None:
        """Return how many messages to claim; `None` if a round would not even have an outcome to send."""
        if self._permits is not None and self._permits.one_at_a_time:
            return 1
        messages, nodes = self.calls.prefetch.messages, self.planner.nodes
        if self._batch is None:
            room = min(messages(AHEAD_S if self.may_claim_ahead else PREFETCH_S), nodes * MOST_PREFETCHED)
        else:
            ahead = min(messages(BATCHES_S), nodes * MOST_BATCHED) if self.may_claim_ahead else 0
            room = self._batch * max(1, ahead // self._batch)
        return self.room_beside(room)

    def claims_ahead(self, number: int, slots: int) -> bool:
        """Return whether to send the next claim before handling these messages, to hide its latency.

        The owner of a stream's slot claims only when all earlier entries are settled, so that a released entry does not
        come after later ones.
        """
        takes_s = self.calls.prefetch.takes_s(number)
        broker, is_known = self.planner.broker, self.calls.prefetch.is_known
        long = takes_s >= LEAST_AHEAD_S or (is_known and broker.takes_long(number, slots))
        return self.may_claim_ahead and takes_s <= AHEAD_S and long

    def start_waiting(self) -> None:
        """Call the handler with the waiting rows."""
        began_s = last_settled_s = monotonic_s()
        while self.waiting:
            if self.planner.held_back_s():
                self.release_waiting()
                return
            part = self.take_waiting(self._batch or 1)
            if self.setup.stopping.is_set():  # the stopping thread may be waiting for another thread's outcomes
                settle_open(part, RELEASED)  # and may not have seen the rest of a range while this thread cut it
                self.stop_starting()
                return
            self.calls.handle(part)
            if (self._permits is not None and self._permits.over_limit) or (
                self.waiting and self.waits_too_long(began_s)
            ):
                self.release_waiting()
            if self.waiting and self.calls.ended_s - last_settled_s > SETTLE_AFTER_S:
                self.settle_only()
                last_settled_s = monotonic_s()

    def waits_too_long(self, since_s: float, parallel: int = 1) -> bool:
        """Return whether handlers have become so slow that waiting messages would wait longer than `SLOW_S`.

        Args:
            since_s: Time at which they were claimed, on the clock of `monotonic_s`; recent claims are ignored, since
                one slow call proves nothing.
            parallel: Number of handlers that work on them.
        """
        late = self.calls.ended_s - since_s > 2 * PREFETCH_S
        return late and self.calls.prefetch.takes_s(self.number_waiting()) > SLOW_S * parallel

    def return_stalled(self) -> None:
        """Release messages that wait behind a slow handler, and send outcomes; called from the watcher's thread.

        Otherwise the claimed messages would wait for the handler while other workers are idle.
        """
        began_s = self.calls.began_s
        running_s = 0.0 if began_s is None else monotonic_s() - began_s
        if running_s > PIGGYBACK_S and self.held.deferred:
            self.try_to_settle()  # an error must not keep the watcher from the other threads and the wakeups
        if running_s < SLOW_S:
            return
        if self.is_unsettled() or self.waiting or self.claims.has_earlier:
            self.release_waiting(lambda: self.calls.began_s == began_s)

    def _plan(self, room: int) -> ClaimPlan:
        """Plan a claim of up to `room` messages, and select the acks to send with it."""
        held, since_s = self.held, monotonic_s() - PIGGYBACK_S
        if self._topic.slots > 1:
            held.defer_acks(since_s)
        plan = self.planner.plan(room, held.settled(), held.all, self._most_each)
        if plan.busy:
            held.take_deferred([request.slot for request in plan.requests], since_s)
        else:
            # without room the next round may be late; and many slots must not take too many rounds
            most = max(MOST_SETTLED, len(held.deferred) // 16) if room else None
            held.take_deferred((), inf, most)
        return plan

    def settle_only(self) -> bool:
        """Send outcomes and read pending replies, without claiming; return whether there were any."""
        with self.held.lock:
            self.held.take_deferred()
            has_outcomes = bool(self.held.settled()) or self.claims.has_earlier
            return has_outcomes and self._carry_out(ClaimPlan([], False))

    def try_to_settle(self) -> None:
        """Send outcomes; if that fails, they are sent later."""
        try:
            self.settle_only()
        except RmqError as error:
            text = "topic %s: acks and nacks could not be sent and will be retried: %s"
            self._troubles.warning(log, (text, type(error)), text, self._topic.name, error)

    def _carry_out(self, plan: ClaimPlan) -> bool:
        """Claim as planned, and send outcomes; return whether there was anything to do. The lock is held.

        Outcomes that are recorded meanwhile are sent with the next call.
        """
        held, deadline_s = self.held, None
        if self._stop_s < inf:
            deadline_s = max(AT_ONCE_S, self.gives_up_s - monotonic_s())
        settled = held.begin_settling()
        try:
            round_ = self.claims.carry_out(plan, settled, held.all(), deadline_s)
            self._take(round_)
        finally:
            self.claims.free(settled)
        return bool(round_.claims or round_.settled or round_.unconfirmed)

    def _take(self, round_: FetchResult) -> None:
        """Take over the claims of a round, and drop the rows that it has settled."""
        self.held.claims += round_.claims
        if self.keeps_order and round_.claims:
            self._release_behind(round_.claims)
        for claim in round_.claims:
            if rows := claim.open_rows():  # to cut one row after the other off a range would take longer
                self.waiting += [Selection(claim, part) for part in ([rows] if self._batch else zip(rows, strict=True))]
        self._drop(round_)
        for delivery in round_.lost:
            self.setup.on_lost(delivery)

    def _release_behind(self, claims: Sequence[Claim]) -> None:
        """Release claims that are behind a message of their slot which is still to be released."""
        slots = {
            claim.slot
            for claim in self.held.all()
            if any(claim.outcomes[row] is RELEASED for row in claim.settled_rows())
        }
        for claim in claims:
            if claim.slot in slots:
                claim.settle_open(RELEASED)

    def give_back(self, slots: Collection[int]) -> None:
        """Mark waiting rows of these slots to be released. Does not wait; may be called by any thread."""
        others = {claim.slot for claim, _ in list(self.waiting)}.difference(slots)
        settle_open(self.take_waiting(sys.maxsize, others), RELEASED)

    def _begin(self, plan: ClaimPlan) -> None:
        """Send a claim as planned, with outcomes; the next round collects its reply. The lock is held."""
        held = self.held
        settled = held.begin_settling()
        try:
            self._drop(self.claims.begin(plan, settled, held.all()))
        finally:
            self.claims.free(settled)

    def _collect(self, room: int) -> bool:
        """Collect the reply of the claim in flight; return whether it has messages. The lock is held.

        If there are many, the next claim of up to `room` messages is sent before they are decoded.
        """

        def begin_next(number: int, slots: int) -> None:
            if self.planner.broker.takes_long(number, slots) and self.claims_ahead(number, slots):
                self._begin(self._plan(room))

        round_ = self.claims.collect(begin_next)
        self._take(round_)
        return bool(round_.claims)

    def number_waiting(self) -> int:
        """Return the number of messages whose handlers have not started."""
        return size_of(list(self.waiting))

    def room_beside(self, room: int) -> int:
        """Return `room` reduced by the messages that must still be released, but at least `LEAST_ROOM`.

        So a server to which nothing can be released does not stop claims from the others.
        """
        later = sum([max(0, number - PIGGYBACKED_NACKS) for number in self._back_by_slot().values()])
        return max(min(room, LEAST_ROOM), room - later)  # those that the next calls do not release

    def going_back(self) -> int:
        """Return how many messages must be released with later calls."""
        return sum(self._back_by_slot().values())

    def _back_by_slot(self) -> Counter[int]:
        back = Counter[int]()
        for claim, rows in self.held.settled():
            if not claim.is_acked:
                back[claim.slot] += len(rows) - len(claim.acked_rows(rows))
        return back

    def is_unsettled(self) -> bool:
        """Return whether an outcome is still to be sent."""
        return any(claim.settled_rows() for claim in self.held.all())

    def _drop(self, round_: FetchResult) -> None:
        """Drop rows that have ended; keep unsent ones, to be sent again, as long as their leases last.

        Rows whose outcome may or may not have been executed have ended, too, without a call of the observers: if it was
        not, the messages are redelivered when their leases expire. Rows with a pending reply are kept.
        """
        if round_.unsent:
            now_s = monotonic_s()
            late = [part for part in round_.unsent if now_s >= part.claim.lease_until_s]
            for claim, rows in late:
                claim.end(rows)
            if late:
                text = "topic %s: the acks or nacks of %d messages did not reach Redis before their leases expired; "
                log.warning(text + "the messages are redelivered", self._topic.name, size_of(late))
                round_.lose(late)
        self.held.drop_ended()
        if self.setup.observers.all and round_.settled:
            self.setup.observers.settled(deliveries_of(round_.settled))

    def finish(self) -> None:
        """Send the last outcomes, and release messages of pending claims.

        Messages whose outcome does not reach Redis before their lease expires, or before `gives_up_s`, are redelivered.
        """
        self.stop_starting()
        with self.held.lock:  # while another thread moves deferred acks, they are in neither collection
            self.held.take_deferred()
        while self._is_unfinished():
            self.stop_starting()
            went = False
            try:
                went = self.settle_only()
            except Exception as error:
                log.warning("topic %s: sending the last acks and nacks failed: %s", self._topic.name, error)
                if isinstance(error, ClientClosedError):  # the messages are redelivered
                    return
            with self.held.lock:
                self._drop(FetchResult(unsent=self.held.settled()))
            if not went and self._is_unfinished():
                if monotonic_s() >= self.gives_up_s:
                    number = sum(len(claim.settled_rows()) for claim in self.held.all())
                    outcomes = "outcome" if number == 1 else "outcomes"
                    text = "topic %s: %d %s did not reach Redis before the stop; unacked messages are redelivered"
                    log.warning(text, self._topic.name, number, outcomes)
                    return
                self.runtime.sleep(TROUBLE_PAUSE_S)

    @property
    def hangs(self) -> bool:
        """Whether the only unfinished calls are abandoned ones, or the calling handler."""
        return bool(self.calls.hung or self.calls.runs_here) and not self.calls.others_run

    def _is_unfinished(self) -> bool:
        return bool(self.waiting or self.is_unsettled() or self.claims.has_earlier)
