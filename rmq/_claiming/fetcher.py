"""Runs planned claims, with outcomes in the same calls, and processes their replies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from rmq._broker.claims import CLAIM_BYTES, PIGGYBACKED_NACKS
from rmq._claiming.claim_calls import ClaimCalls, PendingFetch
from rmq._claiming.claim_plan import PATIENCE_S, ClaimPlan, ClaimRequest, FetchResult, merged_results
from rmq._claiming.claim_planner import ClaimPlanner
from rmq._claiming.outcome_batches import batch_outcomes, stale_among
from rmq._io.reports import reporter
from rmq._model.deliveries import RELEASED, Delivery, Holder
from rmq._model.delivery_columns import number_of, spread
from rmq._model.replies import NO_OWNER, ClaimReply, Owner
from rmq._model.times import monotonic_s
from rmq._transport.dispatch import AWAITED, Awaited
from rmq.errors import CoordinationError, EnsembleMismatchError, FencedError, ReplyLostError, RmqError

log = reporter("rmq.claimer")

PENDING_CHECK_S = 0.05
"""Interval at which an idle holder checks for late replies, in seconds."""


class Fetcher:
    """Runs the plans of a planner for one holder of deliveries, and tracks replies that are late. For one thread.

    Args:
        planner: Plans the claims, and learns from the replies.
        holder: The object through which deliveries are settled.
        columns: Whether the messages of a claim may arrive as one delivery: see `ClaimColumns`.
    """

    def __init__(self, planner: ClaimPlanner, holder: Holder, *, columns: bool = False) -> None:
        self.columns = columns
        self._planner = planner
        self._connections = planner.connections
        self._broker = planner.broker
        self._calls = ClaimCalls(planner)
        self._rate_limiter = planner.rate_limiter
        self._topic = planner.topic
        self._lease_s = planner.topic.lease_s
        self._holder = holder
        self._pending: deque[PendingFetch] = deque()
        self._kept: FetchResult | None = None  # what came late, when the claim after it failed
        self._next: Callable[[int, int], object] | None = None
        self._fenced_logged: dict[int, Owner] = {}

    @property
    def has_earlier(self) -> bool:
        """True if earlier claims may have deliveries that the holder has not received."""
        return bool(self._pending) or self._kept is not None

    @property
    def is_ahead(self) -> bool:
        """True if a claim was sent that `collect` has to wait for."""
        return any(pending.patience_s for pending in self._pending)

    def pending_slots(self) -> set[int]:
        """Return the slots whose reply to a claim has not arrived."""
        if not self._pending:
            return set()
        return {request.slot for pending in self._pending for request in pending.requests if request.reply is None}

    def claim(
        self, limit: int, settled: Sequence[Delivery] = (), held: Sequence[Delivery] | None = None
    ) -> FetchResult:
        """Plan a claim of up to `limit` messages, and carry it out; 0 only settles. Raises as `carry_out`."""
        return self.carry_out(self._planner.plan(limit, settled), settled, held)

    def carry_out(
        self,
        plan: ClaimPlan,
        settled: Sequence[Delivery] = (),
        held: Sequence[Delivery] | None = None,
        deadline_s: float | None = None,
    ) -> FetchResult:
        """Run the planned claims and send the given outcomes in one round trip.

        Args:
            plan: The plan of the claims.
            settled: Deliveries with outcomes to send.
            held: All deliveries that the holder has, including the settled ones; only these by default.
            deadline_s: How long to repeat calls that may be repeated, in seconds; the client's deadline by default.

        Returns:
            The claimed deliveries, and the settled ones whose outcomes certainly did not reach Redis. In a cluster, a
            reply that takes longer than `PATIENCE_S` is part of a later result; its settled deliveries are `under_way`
            until then.

        Raises:
            RedisUnavailableError: Redis did not answer until the deadline.
            CoordinationError: A newer owner has claimed from a slot.

        An error is raised only if nothing was settled and nothing claimed; otherwise it is logged, so that the results
        of the other slots are not lost.
        """
        earlier = self._take_earlier()[0] if self._pending or self._kept is not None else None
        result: FetchResult | None = None
        try:
            result = self._carry_out(plan, settled, held, deadline_s)
            if plan.tokens:
                self._rate_limiter.refund(plan.tokens - number_of(result.deliveries) - result.doubtful)
        except BaseException:
            if result is not None:  # the holder sends the outcomes again, and gets the deliveries from the next claim
                _ack_individually(settled)
                result = FetchResult(result.deliveries, [])
            self._kept = merged_results(earlier, result)
            raise
        if earlier is None:
            return result
        earlier.add(result)
        return earlier

    def begin(
        self, plan: ClaimPlan, settled: Sequence[Delivery] = (), held: Sequence[Delivery] | None = None
    ) -> FetchResult:
        """Send the planned claims and the given outcomes without waiting: `collect` returns the result.

        The settled deliveries are `under_way` until then.

        Args:
            plan: The plan of the claims.
            settled: Deliveries with outcomes to send.
            held: All deliveries that the holder has, including the settled ones; only these by default.

        Returns:
            A result without claimed deliveries, but with the settled ones that wait for a later call.
        """
        sent_s = monotonic_s()
        requests, unsent = self._requests(plan, settled, held, sent_s)
        if not requests:
            self._rate_limiter.refund(plan.tokens)
            return FetchResult([], unsent)
        try:
            pending = self._calls.post(requests, sent_s, CLAIM_BYTES // 2)
        except BaseException:
            _ack_individually(settled)  # some may have been sent
            raise
        pending.patience_s = PATIENCE_S
        doubtful = self._keep_pending(pending)
        if plan.tokens:
            self._rate_limiter.refund(plan.tokens - doubtful)
        return FetchResult([], unsent, doubtful=doubtful)

    def collect(self, begin_next: Callable[[int, int], object] | None = None) -> FetchResult:
        """Wait for the claims sent by `begin`; return their result and that of earlier ones.

        In a cluster, a reply that takes longer than `PATIENCE_S` is part of a later claim.

        Args:
            begin_next: Called with the number of messages and the number of slots that answered; may `begin` a claim.

        Raises:
            RedisUnavailableError: Nothing was carried out, because no server answered until the deadline.
        """
        self._next = begin_next
        try:
            result, error_ = self._take_earlier()
        finally:
            self._next = None
        result = result or FetchResult([], [])
        if error_ is not None and not (result.deliveries or result.arrived):
            raise error_
        return result

    def _carry_out(
        self,
        plan: ClaimPlan,
        settled: Sequence[Delivery],
        held: Sequence[Delivery] | None,
        deadline_s: float | None,
    ) -> FetchResult:
        sent_s = monotonic_s()
        requests, unsent = self._requests(plan, settled, held, sent_s)
        if not requests:
            return FetchResult([], unsent)
        try:
            result, error_ = self._send(requests, sent_s, deadline_s)
        except BaseException:
            _ack_individually(settled)  # some may have been carried out
            raise
        if error_ is not None:
            if not result.deliveries and not any(request.settlements for request in requests):
                raise error_
            # no reason to forget what was claimed, or to send again what was settled
            self._planner.troubles.warning(log, type(error_), "%s", error_)
        result.unsent += unsent
        self._open_drained(requests)
        return result

    def _open_drained(self, requests: Iterable[ClaimRequest]) -> None:
        """Check whether slots taken over from an earlier owner may be claimed from now."""
        closed = [each for each in requests if each.picked and not each.limit and isinstance(each.reply, ClaimReply)]
        if closed:
            self._planner.open_drained(closed)

    def _overtaking_slots(
        self, requests: Sequence[ClaimRequest], held: Sequence[Delivery], waiting: Sequence[Delivery]
    ) -> list[int]:
        """Return the slots from which a claim would overtake a message that the holder still has.

        Such a message was not begun and is released with a later call, or arrives with a late reply. Messages claimed
        meanwhile would be handled before it.

        Args:
            requests: The planned requests in the names of owners.
            held: All deliveries that the holder has.
            waiting: Those of them whose outcome is sent with a later call, in addition to those that are `under_way`.
        """

        @cache
        def returning() -> set[int]:
            later = set(map(id, waiting))
            released = (each for each in held if each.outcome is RELEASED and (each.under_way or id(each) in later))
            return {each.slot for each in released} | self.pending_slots()

        return [request.slot for request in requests if self._broker.in_order and request.slot in returning()]

    def _requests(
        self, plan: ClaimPlan, settled: Sequence[Delivery], held: Sequence[Delivery] | None, sent_s: float
    ) -> tuple[list[ClaimRequest], list[Delivery]]:
        """Return a plan's requests with outcomes, further requests that only settle, and deliveries that must wait."""
        waiting: list[Delivery] = []
        if self._connections.unresponsive_nodes:  # outcomes for servers that do not answer are sent once they do
            silent = {slot for slot in {delivery.slot for delivery in settled} if self._planner.is_unresponsive(slot)}
            waiting = [delivery for delivery in settled if delivery.slot in silent]
            settled = [delivery for delivery in settled if delivery.slot not in silent]
        held = settled if held is None else held
        batches, later = batch_outcomes(settled, held, sent_s, PIGGYBACKED_NACKS)
        planned = plan.requests
        owned = [request for request in planned if request.owner != NO_OWNER]
        if owned and (overtaking := self._overtaking_slots(owned, held, [*waiting, *later])):
            self._planner.postpone(overtaking)
            planned = [request for request in planned if request.slot not in overtaking]
        for request in planned:
            request.settlements = batches.pop((request.slot, request.owner), None)
        settled_only = [
            ClaimRequest(slot, owner, picked=False, settlements=each) for (slot, owner), each in batches.items()
        ]
        return [*planned, *settled_only], waiting + later

    def _send(
        self, requests: Sequence[ClaimRequest], sent_s: float, deadline_s: float | None
    ) -> tuple[FetchResult, RmqError | None]:
        """Send one round; return its result, and the error, if any.

        In a cluster, replies that have not arrived are left for a later round.
        """
        replies, pending = self._calls.send(requests, sent_s, deadline_s)
        result, error_ = self._take(requests, replies, sent_s)
        if pending is not None:
            result.doubtful += self._keep_pending(pending)
        return result, error_

    def _take(
        self, requests: Sequence[ClaimRequest], replies: Sequence[ClaimReply[Any] | RmqError | Awaited], sent_s: float
    ) -> tuple[FetchResult, RmqError | None]:
        """Process the replies that have arrived; return their result, and the error, if any."""
        answered: list[ClaimRequest] = []
        for request, reply in zip(requests, replies, strict=True):
            if request.reply is None and not isinstance(reply, Awaited):
                request.reply = reply
                answered.append(request)
        self._planner.learn(answered, sent_s, len([request for request in requests if request.limit]))
        if self._next is not None and answered:
            self._begin_next(answered)
        result, lease_until_s = FetchResult([], []), sent_s + self._lease_s
        make_deliveries = self._broker.columns if self.columns else self._broker.deliveries
        failed: list[ClaimRequest] = []
        for request in answered:
            reply, slot = request.reply, request.slot
            if not isinstance(reply, ClaimReply):
                failed.append(request)
                continue
            self._planner.foreign.pop(slot, None)
            if reply.stale:
                self._take_stale(request, reply.stale, result)
            if request.settlements is not None:
                if reply.unmatched:
                    result.unsent.extend(_ack_individually(request.settlements.of_claims(reply.unmatched)))
                if reply.nacked is not None:  # the others would have taken the call too long
                    result.unsent.extend(request.settlements.nacked[reply.nacked :])
            owner = request.owner.moved(reply.token_base)
            result.deliveries += make_deliveries(slot, reply, lease_until_s, self._holder, owner)
        return result, self._take_failed(failed, result) if failed else None

    def _begin_next(self, requests: Iterable[ClaimRequest]) -> None:
        """Begin the next claim. If that fails, the result of the present requests is kept."""
        begin_next, self._next = self._next, None
        if begin_next is None or self._planner.regained or self._rate_limiter.limited:
            return  # it has to be known what is held of slots that came back; and tokens may take a while
        try:
            answered = [len(request.reply.messages) for request in requests if isinstance(request.reply, ClaimReply)]
            begin_next(sum(answered), len(answered))
        except Exception as error:
            log.warning("topic %s: the next claim could not be sent: %s", self._topic.name, error)

    def _take_failed(self, requests: Iterable[ClaimRequest], result: FetchResult) -> RmqError | None:
        """Record failed requests; return an error if nothing was carried out."""
        error_: RmqError | None = None
        lost: dict[int, ReplyLostError] = {}
        for request in requests:
            reply = request.reply
            if isinstance(reply, ReplyLostError):
                lost[id(reply)] = reply  # one for all the slots of a call
                result.doubtful += request.limit
                result.unconfirmed.extend(request.settled)
            elif isinstance(reply, CoordinationError) and request.owner != NO_OWNER:
                self._take_fenced(request, reply, result)
            elif isinstance(reply, RmqError):
                error_ = reply
                result.unsent.extend(_ack_individually(request.settled))  # refused, or not sent
        for error in lost.values():
            log.warning("%s", error)
        if result.unconfirmed:
            log.warning(
                "topic %s: the reply to %d outcomes was lost; messages whose outcome was not recorded are redelivered",
                self._topic.name,
                len(result.unconfirmed),
            )
        return error_

    def _take_fenced(self, request: ClaimRequest, error: CoordinationError, result: FetchResult) -> None:
        """Record that a newer owner has claimed from the slot, so that calls of this one are refused."""
        slot, owner, settled = request.slot, request.owner, request.settled
        note_lost(settled, result)
        logged = self._fenced_logged.get(slot) == owner and not settled
        self._fenced_logged[slot] = owner
        if not logged:  # in every round else: a slot stays fenced until ZooKeeper gives it away
            log.warning("%s (%d outcomes refused)", error, len(settled))
        if isinstance(error, EnsembleMismatchError):
            self._planner.foreign[slot] = str(error)
        if isinstance(error, FencedError) and self._planner.on_fenced is not None:
            self._planner.on_fenced(error.epoch, owner.ensemble)

    def _take_stale(self, request: ClaimRequest, stale: Sequence[bytes], result: FetchResult) -> None:
        note_lost(stale_among(request.settled, stale), result)
        log.warning(
            "topic %s, slot %d: %d outcomes were ignored, because their leases had been lost",
            self._topic.name,
            request.slot,
            len(stale),
        )

    def _keep_pending(self, pending: PendingFetch) -> int:
        """Keep the calls whose replies have not arrived for a later round; their outcomes are under way until then.

        Returns:
            The most messages that they may have claimed.
        """
        unanswered = [request for request in pending.requests if request.reply is None]
        for request in unanswered:
            for delivery in request.settled:
                delivery.under_way = True
        if unanswered:
            self._pending.append(pending)
        return sum(request.limit for request in unanswered)

    def _take_earlier(self) -> tuple[FetchResult | None, RmqError | None]:
        """Process late replies of earlier rounds that have arrived; return their result, and the error, if any."""
        earlier, self._kept = self._kept, None
        error_: RmqError | None = None
        try:
            for _ in range(len(self._pending)):
                pending = self._pending.popleft()
                result, unused, failed = self._take_pending(pending)
                earlier, error_ = merged_results(earlier, result), failed or error_
                self._keep_pending(pending)
                self._rate_limiter.refund(unused)
        except BaseException:
            self._kept = earlier
            raise
        return earlier, error_

    def _take_pending(self, pending: PendingFetch) -> tuple[FetchResult, int, RmqError | None]:
        """Process the arrived replies of a round; return its result, its unused rate-limit tokens, and any error."""
        patience_s, pending.patience_s = pending.patience_s, 0.0
        try:
            replies = self._calls.replies(pending, patience_s)
        except BaseException:  # nobody asks again: what is not known to be settled is settled once more
            for delivery in _ack_individually([each for request in pending.requests for each in request.settled]):
                delivery.under_way = False
            raise
        answered = [
            request
            for request, reply in zip(pending.requests, replies, strict=True)
            if request.reply is None and reply is not AWAITED
        ]
        arrived = [delivery for request in answered for delivery in request.settled]
        try:
            result, error_ = self._take(pending.requests, replies, pending.sent_s)
        finally:  # not before: the next claim, which begins in between, would settle them once more
            for delivery in arrived:
                delivery.under_way = False
        if error_ is not None:
            self._planner.troubles.warning(log, type(error_), "%s", error_)
        self._open_drained(answered)
        result.arrived.extend(arrived)
        result.doubtful = 0  # their tokens were counted when they were owed
        limit = sum(request.limit for request in answered if not isinstance(request.reply, ReplyLostError))
        return result, limit - number_of(result.deliveries), error_


def note_lost(deliveries: Iterable[Delivery], result: FetchResult) -> None:
    """Mark deliveries as lost; add those that were not known to be lost to the result."""
    for delivery in spread(deliveries):
        if not delivery.lost:
            delivery.lost = True
            result.lost.append(delivery)


def _ack_individually(deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
    """Mark deliveries that cannot be acked as whole claims: some are gone, or have bodies or failures to delete."""
    for delivery in deliveries:
        delivery.ack_individually = True
    return deliveries
