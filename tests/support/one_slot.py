"""Claims and settlements of a single slot, as calls: RMQ itself claims and settles in several at once."""

from __future__ import annotations

from typing import Any

from rmq import Owner, Topic
from tests.support.core import (
    NO_OWNER,
    Call,
    Claimed,
    ClaimPart,
    ClaimReply,
    Member,
    Outcomes,
    SettleReply,
    StreamClaimed,
    claims,
    streams,
)


def claim_slot(
    topic: Topic,
    slot: int,
    limit: int,
    outcomes: Outcomes = claims.NO_OUTCOMES,
    *,
    sweep_limit: int = claims.SWEEP_LIMIT,
    most_bytes: int = claims.CLAIM_BYTES,
    owner: Owner = NO_OWNER,
    start: int = 0,
) -> Call[ClaimReply[Claimed]]:
    """A claim from one slot of a queue; its result is the reply of that slot."""
    call = claims.queue_claims(topic, sweep_limit)([ClaimPart(slot, limit, outcomes, owner, start)], most_bytes)
    return call.then(_only)


def claim_group(
    topic: Topic,
    slot: int,
    member: Member,
    limit: int,
    outcomes: Outcomes = claims.NO_OUTCOMES,
    *,
    own: int = 0,
    most_bytes: int = claims.CLAIM_BYTES,
    owner: Owner = NO_OWNER,
) -> Call[ClaimReply[StreamClaimed]]:
    """A claim from one slot for a group; `own`: see `ClaimPart.start`."""
    parts = [ClaimPart(slot, limit, outcomes, owner, int(own))]
    return streams.stream_claims(topic, member)(parts, most_bytes).then(_only)


def settle_slot(topic: Topic, slot: int, outcomes: Outcomes, owner: Owner = NO_OWNER) -> Call[SettleReply]:
    """A settlement in one slot of a queue."""
    return claims.settlements(topic)(slot, outcomes, owner)


def settle_group(
    topic: Topic, slot: int, member: Member, outcomes: Outcomes, owner: Owner = NO_OWNER
) -> Call[SettleReply]:
    """A settlement in one slot for a group."""
    return streams.settlements(topic, member)(slot, outcomes, owner)


def _only(replies: list[Any]) -> Any:
    [reply] = replies
    return reply
