"""Calls of the scripts that control topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rmq._broker.binding import SAFE_AGAIN, BoundScript
from rmq._broker.claims import NewScore
from rmq._broker.keys import group_keys, slot_keys
from rmq._model.replies import ControlResult
from rmq._model.topics import Topic
from rmq._transport.call import Call, is_one

_CANCEL, _RESCHEDULE, _PROMOTE, _PAUSE, _ADOPT = (
    BoundScript(name, durable=SAFE_AGAIN) for name in "cancel reschedule promote pause adopt".split()
)
_PURGE_BACKLOG = BoundScript(
    "purge_backlog", repeatable=False, durable="Repeating it also deletes messages that were sent in the meantime"
)


def promote(topic: Topic, slot: int, contents: Sequence[bytes], actor: str = "") -> Call[list[ControlResult]]:
    """Return a call that makes up to `CONTROL_BATCH` contents due now. An empty `actor` writes no audit line."""
    return _PROMOTE.call(topic, slot, control_results, actor=actor, contents=contents)


def pause(
    topic: Topic, slot: int, paused: bool, actor: str = "", detail: str = "", group: str | None = None
) -> Call[bool]:
    """Return a call that pauses or resumes a slot, or a group on it; its result is whether that changed anything."""
    keys = _meta_key(topic, slot, group)
    return _PAUSE.call(topic, slot, is_one, keys=keys, pause=int(paused), actor=actor, detail=detail)


def purge_backlog(topic: Topic, slot: int, place: str, limit: int) -> Call[int]:
    """Return a call that removes up to `limit` messages from `store` or `retry`; its result is their number."""
    keys = slot_keys(topic.name, slot)
    source = {"store": keys.store, "retry": keys.retry}[place]
    return _PURGE_BACKLOG.call(topic, slot, int, keys={"source": source}, limit=limit)


def cancel(topic: Topic, slot: int, contents: Sequence[bytes], actor: str = "") -> Call[list[ControlResult]]:
    """Return a call that cancels up to `CONTROL_BATCH` contents."""
    return _CANCEL.call(topic, slot, control_results, actor=actor, contents=contents)


def reschedule(
    topic: Topic, slot: int, contents: Sequence[bytes], score: NewScore, actor: str = "", action: str = "reschedule"
) -> Call[list[ControlResult]]:
    """Return a call that gives up to `CONTROL_BATCH` contents a new due time or priority."""
    args: dict[str, Any] = {"kind": score[0], "value": score[1], "actor": actor, "action": action, "contents": contents}
    return _RESCHEDULE.call(topic, slot, control_results, **args)


@dataclass(frozen=True, slots=True)
class Adopted:
    """The last owner of a slot, and whether the slot was moved.

    Attributes:
        ensemble: Identity of the ensemble that counted its epochs; empty for a slot without an owner so far.
        epoch: The highest epoch that has claimed from the slot.
        moved: Whether this call moved the slot.
    """

    ensemble: str
    epoch: int
    moved: bool


def adopt(topic: Topic, slot: int, from_ensemble: str, to_ensemble: str, group: str | None = None) -> Call[Adopted]:
    """Return a call that moves a slot, or a group's part of it, to another ensemble; it only reads if none is given."""

    def parse(reply: list[bytes]) -> Adopted:
        return Adopted(reply[0].decode(), int(reply[1]), is_one(reply[2]))

    keys, durable = _meta_key(topic, slot, group), bool(from_ensemble)
    args = {"from_ensemble": from_ensemble, "to_ensemble": to_ensemble}
    return _ADOPT.call(topic, slot, parse, keys=keys, durable=durable, **args)


def control_results(reply: list[bytes]) -> list[ControlResult]:
    """Parse the results of a control action, one per content."""
    return [ControlResult(answer.decode()) for answer in reply]


def _meta_key(topic: Topic, slot: int, group: str | None) -> dict[str, str]:
    return {} if group is None else {"meta": group_keys(topic.name, slot, group).group}
