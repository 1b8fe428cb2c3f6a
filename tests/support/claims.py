"""Claims for tests that have no server."""

from __future__ import annotations

from typing import Any

from rmq import Delivery, Topic
from tests.support.core import Claim, Claimed, ClaimedRows


def claim_of(
    topic: Topic,
    *claimed: Claimed,
    slot: int = 0,
    lease_until_s: float = 1e18,
    holder: Any = None,
    kind: type[Delivery] = Delivery,
) -> Claim:
    """Return a claim of these messages, which have the same claim score."""
    contents, scores, claim_scores, bodies = zip(*claimed, strict=True)
    rows = ClaimedRows(contents, scores, claim_scores, bodies if any(body is not None for body in bodies) else (), True)
    return Claim(topic, slot, rows, 0, lease_until_s, holder, kind=kind)
