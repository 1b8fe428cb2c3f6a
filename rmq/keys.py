"""Every name that RMQ uses in Redis, built in this one place.

All keys of a slot carry the store's name as their hash tag, so that one Redis Cluster node holds them all.
A topic's name has no brace, which would move the tag (`a{b}c_0` and `prepare{a{b}c_0}` hash apart).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

TOPICS_KEY = "rmq:topics"
"""HASH: topic -> its definition as JSON."""


@dataclass(frozen=True, slots=True)
class SlotKeys:
    """The keys of one slot of one topic.

    Attributes:
        store: ZSET content -> score: the backlog.
        prepare: ZSET content -> claim score: in flight.
        retry: ZSET content -> retry score: failed, waiting out a delay.
        dead: ZSET content -> time of death, ms.
        body: HASH content -> body of a message that is not dead.
        meta: HASH: owner's epoch and ensemble, paused, totals.
        error: HASH content -> JSON: the last failure of a message that is not dead.
        reason: HASH content -> JSON: why a dead message died.
        dead_body: HASH content -> body of a dead message.
        wake: channel: a hint that something became due earlier than before.
    """

    store: str
    prepare: str
    retry: str
    dead: str
    body: str
    meta: str
    error: str
    reason: str
    dead_body: str
    wake: str


@lru_cache(maxsize=65_536)
def slot_keys(topic: str, slot: int) -> SlotKeys:
    """Return the names of a slot's keys.

    Args:
        topic: A valid topic name.
        slot: Number of the slot, from 0.
    """
    store = f"{topic}_{slot}"
    tag = f"{{{store}}}"
    return SlotKeys(
        store=store,
        prepare=f"prepare{tag}",
        retry=f"retry{tag}",
        dead=f"dead{tag}",
        body=f"body{tag}",
        meta=f"meta{tag}",
        error=f"error{tag}",
        reason=f"reason{tag}",
        dead_body=f"deadbody{tag}",
        wake=f"wake{tag}",
    )
