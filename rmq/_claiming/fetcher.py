"""Runs planned claims, with outcomes in the same calls, and processes their replies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from rmq._broker.claims import CLAIM_BYTES, NO_OUTCOMES, PIGGYBACKED_NACKS, SETTLE_ONLY, ClaimPart, ClaimReplies
from rmq._claiming.claim_planner import ClaimPlanner
from rmq._claiming.rounds import PATIENCE_S, ClaimPlan, ClaimRequest, FetchResult, batch_outcomes, group_parts
from rmq._io.reports import reporter
from rmq._model.claims import Selection, size_of
from rmq._model.deliveries import Claim, Holder
from rmq._model.outcomes import RELEASED
from rmq._model.replies import NO_OWNER, ClaimReply, Owner
from rmq._model.times import monotonic_s
from rmq._transport.call import Call
from rmq._transport.call_queue import CallQueue
from rmq.errors import (
    CoordinationError,
    EnsembleMismatchError,
    FencedError,
    ReplyLostError,
    RmqError,
    ScriptFailedError,
)

log = reporter("rmq.claimer")

PENDING_CHECK_S = 0.05
"""Interval at which an idle holder checks for late replies, in seconds."""


@dataclass(eq=False, slots=True)
class _Round:
    """A round of claims that was sent.

    Attributes:
        requests: Its requests; those without a `reply` are under way.
        sent_s: When it was sent, on the clock of `monotonic_s`.
        metered: Whether tokens of the rate limit were taken for it.
        late: Whether its holder waits no longer: replies that have not arrived are part of a later result.
    """

    requests: Sequence[ClaimRequest]
    sent_s: float
    metered: bool
    late: bool = False


class _ClaimCall(NamedTuple):
    """A call under way, and the requests that share it."""

    round: _Round
    requests: Sequence[ClaimRequest]

    def drop(self) -> None:
        """Nobody knows whether it is carried out: what is not known to be settled is settled once more."""
        for request in self.requests:
            for claim, _ in _name(request.settled):
                claim.busy = False


class Fetcher:
    """Runs the plans of a planner for one holder of deliveries, and tracks replies that are late. For one thread.

    Args:
        planner: Plans the claims, and learns from the replies.
        holder: The object through which deliveries are settled.

    Attributes:
        is_ahead: Whether a claim was sent that `collect` has to wait for.
    """

    def __init__(self, planner: ClaimPlanner, holder: Holder) -> None:
        self._planner = planner
        self._connections = planner.connections
        self._broker = planner.broker
        self._calls: CallQueue[_ClaimCall] = CallQueue(planner.connections, _ClaimCall.drop)
        self._owed = self._calls.owed()
        self.is_ahead = False
        self._rate_limiter = planner.rate_limiter
        self._topic = planner.topic
        self._lease_s = planner.topic.lease_s
        self._holder = holder
        self._kept: FetchResult | None = None  # until it is returned
        self._next: Callable[[int, int], object] | None = None
        self._fenced_logged: dict[int, Owner] = {}

    @property
    def has_earlier(self) -> bool:
        """True if earlier claims may have deliveries that the holder has not received."""
        return bool(self._owed) or self._kept is not None

    def pending_slots(self) -> set[int]:
        """Return the slots whose reply to a claim has not arrived."""
        return {request.slot for call in self._owed for request in call.requests}

    def claim(self, limit: int, settled: Sequence[Selection] = (), held: Sequence[Claim] | None = None) -> FetchResult:
        """Plan a claim of up to `limit` messages, and carry it out; 0 only settles. Raises as `carry_out`."""
        return self.carry_out(self._planner.plan(limit, settled), settled, held)

    def carry_out(
        self,
        plan: ClaimPlan,
        settled: Sequence[Selection] = (),
        held: Sequence[Claim] | None = None,
        deadline_s: float | None = None,
    ) -> FetchResult:
        """Run the planned claims and send the given outcomes in one round trip.

        Args:
            plan: The plan of the claims.
            settled: Rows with outcomes to send.
            held: All claims of the holder; by default those of the settled rows.
            deadline_s: How long to repeat calls that may be repeated, in seconds; the client's deadline by default.

        Returns:
            The new claims, and the rows whose outcomes certainly did not reach Redis. In a cluster, a reply that takes
            longer than `PATIENCE_S` is part of a later result; until then `free` leaves the claims that it settles
            `busy`.

        Raises:
            RedisUnavailableError: Redis did not answer before the deadline.
            CoordinationError: A newer owner has claimed from a slot.

        An error is raised only if nothing was settled and nothing claimed; otherwise it is logged, so that the results
        of the other slots are not lost.
        """
        result = self._unreturned()
        if self._owed:
            self._take_owed(result)
        sent_s = monotonic_s()
        requests, unsent = self._requests(plan, settled, held, sent_s)
        result.unsent += unsent
        if plan.tokens:
            result.unused += plan.tokens - sum(request.limit for request in requests)
        if requests:
            try:
                error_ = self._run(_Round(requests, sent_s, metered=plan.tokens > 0), result, deadline_s)
            except BaseException:
                _name(settled)  # some may have been carried out
                raise
            if error_ is not None:
                if not (result.claims or any(request.settlements for request in requests)):
                    raise error_
                # no reason to forget what was claimed, or to send again what was settled
                self._planner.troubles.warning(log, type(error_), "%s", error_)
        return self._returned(result)

    def begin(
        self, plan: ClaimPlan, settled: Sequence[Selection] = (), held: Sequence[Claim] | None = None
    ) -> FetchResult:
        """Send the planned claims and the given outcomes without waiting: `collect` returns the result.

        `free` leaves the claims of the settled rows `busy` until then.

        Args:
            plan: The plan of the claims.
            settled: Rows with outcomes to send.
            held: All claims of the holder; by default those of the settled rows.

        Returns:
            A result without new claims, but with the settled rows that wait for a later call.
        """
        sent_s = monotonic_s()
        requests, unsent = self._requests(plan, settled, held, sent_s)
        if requests:
            round_ = _Round(requests, sent_s, metered=plan.tokens > 0)
            self._post(round_, CLAIM_BYTES // 2)
            self.is_ahead = True
            round_.late = True
        if plan.tokens:
            self._rate_limiter.refund(plan.tokens - sum(request.limit for request in requests))
        return FetchResult(unsent=unsent)

    def collect(self, begin_next: Callable[[int, int], object] | None = None) -> FetchResult:
        """Wait for the claims sent by `begin`; return their result and that of earlier ones.

        In a cluster, a reply that takes longer than `PATIENCE_S` is part of a later claim.

        Args:
            begin_next: Called with the number of messages and the number of slots that answered; may `begin` a claim.

        Raises:
            RedisUnavailableError: Nothing was carried out, because no server answered until the deadline.
        """
        result, self._next = self._unreturned(), begin_next
        try:
            error_ = self._take_owed(result)
        finally:
            self._next = None
        if error_ is not None and not (result.claims or result.settled or result.unsent):
            raise error_
        return self._returned(result)

    def free(self, settled: Iterable[Selection]) -> None:
        """Note that no call with the score of these claims is under way, unless its reply is still missing."""
        missing = {claim for call in self._owed for request in call.requests for claim, _ in request.settled}
        for claim, _ in settled:
            claim.busy = claim in missing

    def _unreturned(self) -> FetchResult:
        """Return the result to complete: a new one, or that of a call that has raised an error or was interrupted."""
        result = self._kept = self._kept or FetchResult()
        result.unsent = []  # of the holder's rows, which may have been sent since
        return result

    def _returned(self, result: FetchResult) -> FetchResult:
        """Refund unused tokens, and return the result, which the holder gets now."""
        if unused := result.unused:
            result.unused = 0
            self._rate_limiter.refund(unused)
        self._kept = None
        return result

    def _run(self, round_: _Round, result: FetchResult, deadline_s: float | None) -> RmqError | None:
        """Send a round, wait for replies, and add them to `result`; return the error of the round."""
        if self._connections.multi_node:
            self._post(round_, CLAIM_BYTES, deadline_s)
            error_ = self._take(self._calls.completions(PATIENCE_S), result, round_)
            round_.late = True
            return error_
        calls = self._build(round_, CLAIM_BYTES)  # nothing goes on while the only server is silent
        replies = self._connections.run_many([call for call, _ in calls], PATIENCE_S, deadline_s)
        return self._take([(tag, reply) for (_, tag), reply in zip(calls, replies, strict=True)], result, round_)

    def _returning_slots(self, held: Sequence[Claim], sent: Sequence[Selection]) -> set[int]:
        """Return the slots of which a message was not begun, and comes back with a later call or with a late reply.

        A claim from them in the name of their owner would overtake it.

        Args:
            held: All claims of the holder.
            sent: The rows whose outcomes this round sends.
        """
        slots, going = self.pending_slots(), {claim: set(rows) for claim, rows in sent}
        for claim in held:
            staying = set(claim.settled_rows()).difference(going.get(claim, ()))
            if any(claim.outcomes[row] is RELEASED for row in staying):
                slots.add(claim.slot)
        return slots

    def _requests(
        self, plan: ClaimPlan, settled: Sequence[Selection], held: Sequence[Claim] | None, sent_s: float
    ) -> tuple[list[ClaimRequest], list[Selection]]:
        """Return a plan's requests with outcomes, further requests that only settle, and rows that must wait."""
        waiting: list[Selection] = []
        sending = settled
        if self._connections.unresponsive_nodes:  # outcomes for servers that do not answer are sent once they do
            silent = {slot for slot in {claim.slot for claim, _ in settled} if self._planner.is_unresponsive(slot)}
            waiting = [part for part in settled if part.claim.slot in silent]
            sending = [part for part in settled if part.claim.slot not in silent]
        batches, later = batch_outcomes(sending, sent_s, PIGGYBACKED_NACKS) if sending else ({}, [])
        planned = plan.requests
        if self._broker.in_order and any(request.owner != NO_OWNER for request in planned):
            sent = [part for batch in batches.values() for part in batch.selections]
            returning = self._returning_slots([claim for claim, _ in settled] if held is None else held, sent)
            overtaking = [each.slot for each in planned if each.owner != NO_OWNER and each.slot in returning]
            self._planner.postpone(overtaking)
            planned = [request for request in planned if request.slot not in overtaking]
        for request in planned:
            request.settlements = batches.pop((request.slot, request.owner), None)
        settled_only = [
            ClaimRequest(batch.slot, batch.owner, picked=False, settlements=batch) for batch in batches.values()
        ]
        return [*planned, *settled_only], waiting + later

    def _post(self, round_: _Round, most_bytes: int, deadline_s: float | None = None) -> None:
        """Send a round without waiting for replies; arguments as for `_build`."""
        for call, tag in self._build(round_, most_bytes):
            self._calls.submit(call, tag)
        self._calls.flush(deadline_s)

    def _build(self, round_: _Round, most_bytes: int) -> list[tuple[Call[ClaimReplies[Any]], _ClaimCall]]:
        """Return the calls of a round. Slots of one server share calls.

        Args:
            round_: The round.
            most_bytes: Maximum bytes of contents and bodies in all replies; the first message may be larger.
        """
        parts = [self._part(request) for request in round_.requests]
        groups = group_parts(parts, self._planner.joins)
        claiming = groups if self._planner.joins else [part for part in parts if part.limit > 0]
        most_bytes //= len(claiming) or 1  # a node carries out one call after the other
        requests = iter(round_.requests)
        return [
            (self._broker.claim_call(group, most_bytes), _ClaimCall(round_, [*islice(requests, len(group))]))
            for group in groups
        ]

    def _part(self, request: ClaimRequest) -> ClaimPart:
        outcomes = NO_OUTCOMES
        if request.settlements is not None:
            outcomes = request.settlements.outcomes()
        limit = request.limit if request.picked else SETTLE_ONLY
        return ClaimPart(request.slot, limit, outcomes, request.owner, request.start)

    def _failed(self, requests: Sequence[ClaimRequest], error: RmqError) -> ClaimReplies[Any]:
        """Return the reply or the error of each of the requests that share a call with this error."""
        if isinstance(error, ScriptFailedError) and len(requests) > 1:
            # refused as a whole, before anything was done: no right to one of the slots, for one
            share = CLAIM_BYTES // len(requests)
            calls = [self._broker.claim_call([self._part(request)], share) for request in requests]
            alone = self._connections.run_many(calls, PATIENCE_S)
            return [each if isinstance(each, RmqError) else each[0] for each in alone]
        return [error] * len(requests)

    def _take(
        self, completed: Sequence[tuple[_ClaimCall, Any]], result: FetchResult, mine: _Round | None = None
    ) -> RmqError | None:
        """Add replies that have arrived to `result`; return an error of the round `mine`, or by default of any."""
        rounds: defaultdict[_Round, list[ClaimRequest]] = defaultdict(list)
        for call, reply in completed:
            replies = self._failed(call.requests, reply) if isinstance(reply, RmqError) else reply
            for request, answer in zip(call.requests, replies, strict=True):
                request.reply = answer
                rounds[call.round].append(request)
        error_ = None
        for round_, answered in rounds.items():
            failed = self._take_round(round_, answered, result)
            error_ = failed if failed is not None and mine in (None, round_) else error_
        return error_

    def _take_round(self, round_: _Round, answered: Sequence[ClaimRequest], result: FetchResult) -> RmqError | None:
        """Add the replies of one round that have arrived to `result`; return the error, if any."""
        self._planner.learn(answered, round_.sent_s, len([request for request in round_.requests if request.limit]))
        try:
            if self._next is not None:
                self._begin_next(answered)
            error_ = self._deliver(answered, round_, result)
        finally:  # not before: the next claim, which begins in between, would settle them once more
            if settled := [part for request in answered if request.settlements for part in request.settled]:
                self.free(settled)
        if round_.late and error_ is not None:
            self._planner.troubles.warning(log, type(error_), "%s", error_)
        closed = [each for each in answered if each.picked and not each.limit and isinstance(each.reply, ClaimReply)]
        if closed:  # slots taken over from an earlier owner
            self._planner.open_drained(closed)
        return error_

    def _deliver(self, answered: Sequence[ClaimRequest], round_: _Round, result: FetchResult) -> RmqError | None:
        """Add the claims and the outcomes' results of replies to `result`; return an error."""
        lease_until_s = round_.sent_s + self._lease_s
        failed: list[ClaimRequest] = []
        for request in answered:
            reply, slot = request.reply, request.slot
            if round_.metered and not isinstance(reply, ReplyLostError):
                result.unused += request.limit
            if not isinstance(reply, ClaimReply):
                failed.append(request)
                continue
            if round_.metered:
                result.unused -= len(reply.messages)
            self._planner.foreign.pop(slot, None)
            if request.settlements is not None:
                done = request.settlements.take(reply.stale, reply.unmatched, reply.nacked)
                result.settled += done.done
                result.unsent += done.unsent
                if done.stale:
                    self._take_stale(slot, done.stale, result)
            owner = request.owner.moved(reply.token_base) if reply.token_base else request.owner
            result.claims += self._broker.claims(slot, reply, lease_until_s, self._holder, owner)
        return self._take_failed(failed, result) if failed else None

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
                result.unconfirmed += request.settled
            elif isinstance(reply, CoordinationError) and request.owner != NO_OWNER:
                self._take_fenced(request, reply, result)
            elif isinstance(reply, RmqError):
                error_ = reply
                result.unsent += _name(request.settled)  # refused, or not sent
        for error in lost.values():
            log.warning("%s", error)
        if result.unconfirmed:
            for claim, rows in result.unconfirmed:
                claim.end(rows)
            log.warning(
                "topic %s: the reply to the outcomes of %d deliveries was lost; messages not settled are redelivered",
                self._topic.name,
                size_of(result.unconfirmed),
            )
        return error_

    def _take_fenced(self, request: ClaimRequest, error: CoordinationError, result: FetchResult) -> None:
        """Record that a newer owner has claimed from the slot, so that calls of this one are refused."""
        slot, owner, settled = request.slot, request.owner, request.settled
        result.lose(settled)
        for claim, rows in settled:
            claim.end(rows)
        logged = self._fenced_logged.get(slot) == owner and not settled
        self._fenced_logged[slot] = owner
        if not logged:  # in every round else: a slot stays fenced until its owner node is given away
            log.warning("%s (%d outcomes refused)", error, size_of(settled))
        if isinstance(error, EnsembleMismatchError):
            self._planner.foreign[slot] = str(error)
        if isinstance(error, FencedError) and self._planner.on_fenced is not None:
            self._planner.on_fenced(slot, error.epoch, owner.ensemble)

    def _take_stale(self, slot: int, stale: Sequence[Selection], result: FetchResult) -> None:
        result.lose(stale)
        text = "topic %s, slot %d: %d outcomes were ignored, because the leases of their messages had been lost"
        log.warning(text, self._topic.name, slot, size_of(stale))

    def _take_owed(self, result: FetchResult) -> RmqError | None:
        """Add replies of earlier rounds to `result`, waiting for those sent ahead; return an error."""
        patience_s, self.is_ahead = PATIENCE_S if self.is_ahead else 0.0, False
        return self._take(self._calls.completions(patience_s), result)


def _name(selections: Sequence[Selection]) -> Sequence[Selection]:
    """Mark claims that cannot be acked as a whole: some rows are gone, or have bodies or failures to delete."""
    for claim, _ in selections:
        claim.named = True
    return selections
