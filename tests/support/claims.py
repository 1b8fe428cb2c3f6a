"""Claims for tests that have no server, and claimed messages one by one: RMQ itself keeps them as columns."""

from __future__ import annotations

from itertools import repeat
from typing import Any, NamedTuple

from rmq import Delivery, Topic
from tests.support.core import Claim, ClaimedRows, ClaimReply


class Claimed(NamedTuple):
    """A message as a claim returns it."""

    content: bytes
    store_score: int  # the score it had in store: due ms, priority, or retries left
    claim_score: int  # the token that ack, nack and extend compare
    body: bytes | None


def claimed(reply: Any) -> Any:
    """Return a reply with its messages one by one, as a tuple of `Claimed`; an error of a slot stays as it is."""
    if not isinstance(reply, ClaimReply):
        return reply
    rows: ClaimedRows = reply.messages
    columns = zip(rows.contents, rows.scores, rows.claim_scores, rows.bodies or repeat(None), strict=False)
    return reply._replace(messages=tuple(Claimed(*row) for row in columns))


def rows_of(*messages: Claimed) -> ClaimedRows:
    """Return messages of the same claim score as columns."""
    contents, scores, claim_scores, bodies = zip(*messages, strict=True)
    return ClaimedRows(contents, scores, claim_scores, bodies if any(body is not None for body in bodies) else (), True)


def claim_of(
    topic: Topic,
    *claimed: Claimed,
    slot: int = 0,
    lease_until_s: float = 1e18,
    holder: Any = None,
    kind: type[Delivery] = Delivery,
) -> Claim:
    """Return a claim of these messages, which have the same claim score."""
    return Claim(topic, slot, rows_of(*claimed), 0, lease_until_s, holder, kind=kind)
