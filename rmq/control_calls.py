"""Builds the calls that steer, beside those by content in `calls`: promote, pause, purge, the audit's lines."""

from __future__ import annotations

from collections.abc import Sequence

from rmq.calls import Argument, Call, control_results, order_of
from rmq.keys import group_keys, slot_keys
from rmq.results import ControlResult
from rmq.topics import Topic


def promote(
    topic: Topic, slot: int, contents: Sequence[bytes], publish: str, actor: str = ""
) -> Call[list[ControlResult]]:
    """Build making up to `MAX_BATCH` contents due now. An empty `actor`, here and below, leaves no audit line."""
    keys = slot_keys(topic.name, slot)
    names = (keys.store, keys.prepare, keys.retry, keys.meta, keys.wake, keys.audit)
    args: list[Argument] = [order_of(topic), topic.max_retries, publish, actor, *contents]
    return Call("promote", names, args, control_results, True, topic.name, slot)


def pause(
    topic: Topic, slot: int, paused: bool, publish: str, actor: str = "", detail: str = "", group: str | None = None
) -> Call[bool]:
    """Build the pause or the resumption of a slot, or of a stream group on it; answers whether that changed it."""
    keys = slot_keys(topic.name, slot)
    meta = keys.meta if group is None else group_keys(topic.name, slot, group).group
    args: list[Argument] = [int(paused), publish, actor, detail]
    return Call("pause", (meta, keys.wake, keys.audit), args, _flag, True, topic.name, slot)


def purge_backlog(topic: Topic, slot: int, place: str, limit: int) -> Call[int]:
    """Build dropping up to `limit` messages of `store` or `retry`; answers how many."""
    keys = slot_keys(topic.name, slot)
    source = {"store": keys.store, "retry": keys.retry}[place]
    names = (source, keys.store, keys.prepare, keys.retry, keys.body, keys.meta, keys.error)
    return Call("purge_backlog", names, [limit], int, False, topic.name, slot)


def audit(topic: Topic, slot: int, actor: str, action: str, detail: str, outcome: str) -> Call[None]:
    """Build a line of the audit for a step that takes many calls."""
    args: list[Argument] = [actor, action, detail, outcome]
    return Call("audit", (slot_keys(topic.name, slot).audit,), args, _nothing, True, topic.name, slot)


def _flag(reply: bytes) -> bool:
    return reply == b"1"


def _nothing(reply: object) -> None:
    del reply
