"""The calls of a round of claims: slots that share a server share calls, too, and replies may be waited for later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rmq._broker.claims import CLAIM_BYTES, NO_OUTCOMES, Outcomes
from rmq._claiming.claim_round import PATIENCE_S, Visit, groups_of
from rmq._claiming.claimer import Claimer
from rmq._model.replies import ClaimReply
from rmq._transport.call import Call
from rmq._transport.dispatch import Awaited, Dispatch
from rmq.errors import ClientClosedError, ForkedClientError, RmqError, ScriptFailedError

ClaimCall = Call[ClaimReply[Any]]
Reply = ClaimReply[Any] | RmqError | Awaited


@dataclass(slots=True)
class LateRound:
    """A round of which a server still owes replies: those of visits without a reply.

    Attributes:
        visits: Its parts.
        calls: Their calls.
        groups: Where slots share calls, the first and the one after the last visit of each call; else `None`.
        dispatch: The calls on their way.
        sent_s: When they were sent, on the clock of `monotonic_s`.
        patience_s: How long the next look waits for a server that sends nothing.
    """

    visits: Sequence[Visit]
    calls: Sequence[ClaimCall]
    groups: Sequence[tuple[int, int]] | None
    dispatch: Dispatch
    sent_s: float
    patience_s: float = 0.0


class ClaimCalls:
    """Sends the calls of a claimer's rounds.

    Args:
        claimer: Whose slots are called.
    """

    def __init__(self, claimer: Claimer) -> None:
        self._connections = claimer.connections
        self._source = claimer.source
        self._joins = claimer.joins

    def send(
        self, visits: Sequence[Visit], sent_s: float, deadline_s: float | None = None
    ) -> tuple[Sequence[Reply], LateRound | None]:
        """Send one round, where one script may touch several slots in few calls.

        Args:
            visits: Its parts.
            sent_s: Now, on the clock of `monotonic_s`.
            deadline_s: How long to repeat what may be repeated; the client's deadline by default.

        Returns:
            The reply to each visit, and where there are several servers the round, of which some may owe replies.
        """
        calls = self._of(visits)
        if len(visits) == 1 and visits[0].picked and not self._connections.multi_node:
            try:
                return [self._connections.run(calls[0], deadline_s)], None
            except (ClientClosedError, ForkedClientError):
                raise
            except RmqError as error:
                return [error], None
        if not self._joins:
            late = LateRound(visits, calls, None, self._connections.dispatch(calls, deadline_s), sent_s)
            return late.dispatch.results(PATIENCE_S, leave=True), late
        groups, many = self._joined(visits, calls)
        return self._of_visits(calls, groups, self._connections.run_many(many, PATIENCE_S, deadline_s)), None

    def post(self, visits: Sequence[Visit], sent_s: float, most_bytes: int) -> LateRound:
        """Send one round, and wait for nothing.

        Args:
            visits: Its parts.
            sent_s: Now, on the clock of `monotonic_s`.
            most_bytes: Most contents and bodies that it may bring; the first message of each call may have more.
        """
        calls = self._of(visits, most_bytes)
        if not self._joins:
            return LateRound(visits, calls, None, self._connections.dispatch(calls), sent_s)
        groups, many = self._joined(visits, calls, most_bytes)
        return LateRound(visits, calls, groups, self._connections.dispatch(many), sent_s)

    def replies(self, late: LateRound, patience_s: float) -> Sequence[Reply]:
        """Return the reply to each visit of a round. Where there are several servers, it waits no longer than this."""
        found = late.dispatch.results(patience_s, leave=True)
        return found if late.groups is None else self._of_visits(late.calls, late.groups, found)

    def _of(self, visits: Sequence[Visit], most_bytes: int = CLAIM_BYTES) -> list[ClaimCall]:
        claim_call = self._source.claim_call
        most_bytes //= max(1, len([each for each in visits if each.limit]))
        return [
            claim_call(
                visit.slot,
                visit.limit,
                self._outcomes(visit),
                owner=visit.owner,
                start=visit.start,
                most_bytes=most_bytes,
            )
            for visit in visits
        ]

    def _outcomes(self, visit: Visit) -> Outcomes:
        if visit.settlements is None:
            return NO_OUTCOMES
        return visit.settlements.outcomes(partial(self._source.is_whole, visit.slot))

    def _of_visits(
        self, calls: Sequence[ClaimCall], groups: Sequence[tuple[int, int]], replies: Sequence[Any]
    ) -> list[ClaimReply[Any] | RmqError | Awaited]:
        """Return the reply to each of some claims, from those to the calls that they share."""
        found: list[ClaimReply[Any] | RmqError | Awaited] = []
        for (first, last), reply in zip(groups, replies, strict=True):
            if isinstance(reply, ScriptFailedError):
                # refused as a whole, before anything was done: no right to one of the slots, for one
                found += self._connections.run_many(calls[first:last], PATIENCE_S)
            elif isinstance(reply, RmqError | Awaited):
                found += [reply] * (last - first)
            else:
                found += reply
        return found

    def _joined(
        self, visits: Sequence[Visit], calls: Sequence[ClaimCall], most_bytes: int = CLAIM_BYTES
    ) -> tuple[list[tuple[int, int]], list[Call[Any]]]:
        """Put claims from slots that share a server into few calls: the visits of each, and the calls."""
        groups = groups_of(calls, visits)
        most_bytes //= max(1, len(groups))  # a node works off one call after the other
        settle_only = [not visit.picked for visit in visits]
        join = self._source.claim_many_call
        return groups, [join(calls[first:last], settle_only[first:last], most_bytes) for first, last in groups]
