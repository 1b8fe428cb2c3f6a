"""Claims and settlements as calls, mostly of a single slot: RMQ itself claims and settles in several at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rmq import Owner, Topic
from tests.support.claims import Claimed, claimed
from tests.support.core import (
    NO_OWNER,
    Call,
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
) -> Call[ClaimReply[tuple[Claimed, ...]]]:
    """A claim from one slot of a queue; its result is the reply of that slot."""
    part = ClaimPart(slot, limit, outcomes, owner, start)
    return claim_slots(topic, [part], most_bytes, sweep_limit=sweep_limit).then(_only)


def claim_slots(
    topic: Topic,
    parts: Sequence[ClaimPart],
    most_bytes: int = claims.CLAIM_BYTES,
    *,
    sweep_limit: int = claims.SWEEP_LIMIT,
) -> Call[list[Any]]:
    """A claim from several slots of a queue; its result are the replies of the slots, with messages one by one."""
    call = claims.queue_claims(topic, sweep_limit)(parts, most_bytes)
    return call.then(lambda replies: [*map(claimed, replies)])


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
) -> Call[ClaimReply[Sequence[StreamClaimed]]]:
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
