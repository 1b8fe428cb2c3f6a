"""Sends the script calls of a round of claims. Slots of one server share calls; replies may be awaited later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rmq._broker.claims import CLAIM_BYTES, NO_OUTCOMES, SETTLE_ONLY, ClaimPart
from rmq._claiming.claim_plan import PATIENCE_S, ClaimRequest, group_parts
from rmq._claiming.claim_planner import ClaimPlanner
from rmq._model.replies import ClaimReply
from rmq._transport.call import Call
from rmq._transport.dispatch import Awaited, Dispatch
from rmq.errors import ClientClosedError, ForkedClientError, RmqError, ScriptFailedError

Reply = ClaimReply[Any] | RmqError | Awaited


@dataclass(slots=True)
class PendingFetch:
    """A round of claims with replies that have not arrived: those of requests without a `reply`.

    Attributes:
        requests: The requests of the round.
        groups: The claims of each call, in the order of the requests.
        dispatch: The calls that were sent.
        sent_s: Time at which the calls were sent, on the clock of `monotonic_s`.
        patience_s: Seconds that the next check waits for a server that does not answer.
    """

    requests: Sequence[ClaimRequest]
    groups: Sequence[Sequence[ClaimPart]]
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
        """Send one round, in few calls if one script may access several slots.

        Args:
            requests: The requests of the round.
            sent_s: The present time, on the clock of `monotonic_s`.
            deadline_s: How long to repeat calls that may be repeated, in seconds; the client's deadline by default.

        Returns:
            The reply to each request, and with several servers the round, since replies may be missing.
        """
        if len(requests) == 1 and requests[0].picked and not self._connections.multi_node:
            try:
                return self._connections.run(self._broker.claim_call((self._part(requests[0]),)), deadline_s), None
            except (ClientClosedError, ForkedClientError):
                raise
            except RmqError as error:
                return [error], None
        groups, calls = self._build(requests)
        if not self._joins:
            pending = PendingFetch(requests, groups, self._connections.dispatch(calls, deadline_s), sent_s)
            return self.replies(pending, PATIENCE_S), pending
        return self._per_request(groups, self._connections.run_many(calls, PATIENCE_S, deadline_s)), None

    def post(self, requests: Sequence[ClaimRequest], sent_s: float, most_bytes: int) -> PendingFetch:
        """Send one round without waiting for replies.

        Args:
            requests: The requests of the round.
            sent_s: The present time, on the clock of `monotonic_s`.
            most_bytes: Maximum bytes of contents and bodies in all replies; the first message may be larger.
        """
        groups, calls = self._build(requests, most_bytes)
        return PendingFetch(requests, groups, self._connections.dispatch(calls), sent_s)

    def replies(self, pending: PendingFetch, patience_s: float) -> Sequence[Reply]:
        """Return the reply to each request of a round; with several servers, wait at most `patience_s` for them."""
        return self._per_request(pending.groups, pending.dispatch.results(patience_s, leave=True))

    def _build(
        self, requests: Sequence[ClaimRequest], most_bytes: int = CLAIM_BYTES
    ) -> tuple[Sequence[Sequence[ClaimPart]], list[Call[list[ClaimReply[Any] | RmqError]]]]:
        """Return the claims of each call of a round, and the calls. Slots of one server share calls."""
        parts = [self._part(request) for request in requests]
        groups = group_parts(parts) if self._joins else [[part] for part in parts]
        claiming = len(groups) if self._joins else len([part for part in parts if part.limit > 0])
        most_bytes //= max(1, claiming)  # a node carries out one call after the other
        return groups, [self._broker.claim_call(group, most_bytes) for group in groups]

    def _part(self, request: ClaimRequest) -> ClaimPart:
        outcomes = NO_OUTCOMES
        if request.settlements is not None:
            outcomes = request.settlements.outcomes(partial(self._broker.is_whole, request.slot))
        limit = request.limit if request.picked else SETTLE_ONLY
        return ClaimPart(request.slot, limit, outcomes, request.owner, request.start)

    def _per_request(self, groups: Sequence[Sequence[ClaimPart]], replies: Sequence[Any]) -> list[Reply]:
        """Return the reply to each claim from the replies to the calls that claims share."""
        replies_: list[Reply] = []
        for parts, reply in zip(groups, replies, strict=True):
            if isinstance(reply, ScriptFailedError) and len(parts) > 1:
                # refused as a whole, before anything was done: no right to one of the slots, for one
                calls = [self._broker.claim_call([part], CLAIM_BYTES // len(parts)) for part in parts]
                replies_ += self._per_request([[part] for part in parts], self._connections.run_many(calls, PATIENCE_S))
            elif isinstance(reply, RmqError | Awaited):
                replies_ += [reply] * len(parts)
            else:
                replies_ += reply
        return replies_
