"""Sends the script calls of a round of claims. Slots of one server share calls; replies may be awaited later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rmq._broker.claims import CLAIM_BYTES, NO_OUTCOMES, Outcomes
from rmq._claiming.claim_plan import PATIENCE_S, ClaimRequest, group_calls
from rmq._claiming.claim_planner import ClaimPlanner
from rmq._model.replies import ClaimReply
from rmq._transport.call import Call
from rmq._transport.dispatch import Awaited, Dispatch
from rmq.errors import ClientClosedError, ForkedClientError, RmqError, ScriptFailedError

ClaimCall = Call[ClaimReply[Any]]
Reply = ClaimReply[Any] | RmqError | Awaited


@dataclass(slots=True)
class PendingFetch:
    """A round of claims with replies that have not arrived: those of requests without a `reply`.

    Attributes:
        requests: The requests of the round.
        calls: The call of each request.
        groups: If slots share calls, the range of requests of each call, end exclusive; otherwise `None`.
        dispatch: The calls that were sent.
        sent_s: When the calls were sent, on the clock of `monotonic_s`.
        patience_s: How long the next check waits for a server that does not answer, in seconds.
    """

    requests: Sequence[ClaimRequest]
    calls: Sequence[ClaimCall]
    groups: Sequence[tuple[int, int]] | None
    dispatch: Dispatch
    sent_s: float
    patience_s: float = 0.0


class ClaimCalls:
    """Sends the calls of a planner's rounds.

    Args:
        planner: Chooses the slots of each round.
    """

    def __init__(self, planner: ClaimPlanner) -> None:
        self._connections = planner.connections
        self._broker = planner.broker
        self._joins = planner.joins

    def send(
        self, requests: Sequence[ClaimRequest], sent_s: float, deadline_s: float | None = None
    ) -> tuple[Sequence[Reply], PendingFetch | None]:
        """Send one round, in few calls if one script may touch several slots.

        Args:
            requests: The requests of the round.
            sent_s: Now, on the clock of `monotonic_s`.
            deadline_s: How long to repeat calls that may be repeated, in seconds; the client's deadline by default.

        Returns:
            The reply to each request, and with several servers the round, since replies may be missing.
        """
        calls = self._build(requests)
        if len(requests) == 1 and requests[0].picked and not self._connections.multi_node:
            try:
                return [self._connections.run(calls[0], deadline_s)], None
            except (ClientClosedError, ForkedClientError):
                raise
            except RmqError as error:
                return [error], None
        if not self._joins:
            pending = PendingFetch(requests, calls, None, self._connections.dispatch(calls, deadline_s), sent_s)
            return pending.dispatch.results(PATIENCE_S, leave=True), pending
        groups, many = self._joined(requests, calls)
        return self._per_request(calls, groups, self._connections.run_many(many, PATIENCE_S, deadline_s)), None

    def post(self, requests: Sequence[ClaimRequest], sent_s: float, most_bytes: int) -> PendingFetch:
        """Send one round without waiting for replies.

        Args:
            requests: The requests of the round.
            sent_s: Now, on the clock of `monotonic_s`.
            most_bytes: Most bytes of contents and bodies in all replies; the first message of each call may have more.
        """
        calls = self._build(requests, most_bytes)
        if not self._joins:
            return PendingFetch(requests, calls, None, self._connections.dispatch(calls), sent_s)
        groups, many = self._joined(requests, calls, most_bytes)
        return PendingFetch(requests, calls, groups, self._connections.dispatch(many), sent_s)

    def replies(self, pending: PendingFetch, patience_s: float) -> Sequence[Reply]:
        """Return the reply to each request of a round; with several servers, wait at most `patience_s` for them."""
        replies_ = pending.dispatch.results(patience_s, leave=True)
        return replies_ if pending.groups is None else self._per_request(pending.calls, pending.groups, replies_)

    def _build(self, requests: Sequence[ClaimRequest], most_bytes: int = CLAIM_BYTES) -> list[ClaimCall]:
        claim_call = self._broker.claim_call
        most_bytes //= max(1, len([each for each in requests if each.limit]))
        return [
            claim_call(
                request.slot,
                request.limit,
                self._outcomes(request),
                owner=request.owner,
                start=request.start,
                most_bytes=most_bytes,
            )
            for request in requests
        ]

    def _outcomes(self, request: ClaimRequest) -> Outcomes:
        if request.settlements is None:
            return NO_OUTCOMES
        return request.settlements.outcomes(partial(self._broker.is_whole, request.slot))

    def _per_request(
        self, calls: Sequence[ClaimCall], groups: Sequence[tuple[int, int]], replies: Sequence[Any]
    ) -> list[ClaimReply[Any] | RmqError | Awaited]:
        """Return the reply to each claim from the replies to the calls that claims share."""
        replies_: list[ClaimReply[Any] | RmqError | Awaited] = []
        for (first, last), reply in zip(groups, replies, strict=True):
            if isinstance(reply, ScriptFailedError):
                # refused as a whole, before anything was done: no right to one of the slots, for one
                replies_ += self._connections.run_many(calls[first:last], PATIENCE_S)
            elif isinstance(reply, RmqError | Awaited):
                replies_ += [reply] * (last - first)
            else:
                replies_ += reply
        return replies_

    def _joined(
        self, requests: Sequence[ClaimRequest], calls: Sequence[ClaimCall], most_bytes: int = CLAIM_BYTES
    ) -> tuple[list[tuple[int, int]], list[Call[Any]]]:
        """Join claims from slots of one server; return the range of requests of each call, and the calls."""
        groups = group_calls(calls, requests)
        most_bytes //= max(1, len(groups))  # a node works off one call after the other
        settle_only = [not request.picked for request in requests]
        join = self._broker.claim_many_call
        return groups, [join(calls[first:last], settle_only[first:last], most_bytes) for first, last in groups]
