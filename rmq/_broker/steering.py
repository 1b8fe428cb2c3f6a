"""The scripts that steer: cancel, reschedule, promote, pause, purge, adopt, and the audit's lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rmq._broker.binding import SAFE_AGAIN, Bound, ages_of
from rmq._broker.claiming import NewScore, order_of
from rmq._broker.keys import group_keys, slot_keys
from rmq._model.replies import ControlResult
from rmq._model.scores import ages_for
from rmq._model.topics import Topic
from rmq._transport.call import Call, is_one, nothing

_CANCEL, _RESCHEDULE, _PROMOTE, _PAUSE, _ADOPT, _ADD_AGES, _CONFIRM = (
    Bound(name, durable=SAFE_AGAIN) for name in "cancel reschedule promote pause adopt add_ages confirm".split()
)
_PURGE_BACKLOG = Bound("purge_backlog", repeatable=False, durable="Repeated, it drops what has been sent since, too")
_AUDIT = Bound("audit")


def promote(topic: Topic, slot: int, contents: Sequence[bytes], actor: str = "") -> Call[list[ControlResult]]:
    """Build making up to `STEERED` contents due now. An empty `actor`, here and below, leaves no audit line."""
    args = _PROMOTE.args(
        order=order_of(topic),
        max_retries=topic.max_retries,
        scale=ages_for(topic.max_priority).scale,
        actor=actor,
        contents=contents,
    )
    return _PROMOTE.call(topic, slot, control_results, args)


def add_ages(topic: Topic, slot: int, limit: int) -> Call[int]:
    """Build giving up to `limit` plain priorities of a slot ages, for a topic that has become oldest first."""
    args = _ADD_AGES.args(max_retries=topic.max_retries, **ages_of(topic), limit=limit)
    return _ADD_AGES.call(topic, slot, int, args)


def pause(
    topic: Topic, slot: int, paused: bool, actor: str = "", detail: str = "", group: str | None = None
) -> Call[bool]:
    """Build the pause or the resumption of a slot, or of a stream group on it; answers whether that changed it."""
    args = _PAUSE.args(pause=int(paused), actor=actor, detail=detail)
    return _PAUSE.call(topic, slot, is_one, args, meta=_meta_key(topic, slot, group))


def purge_backlog(topic: Topic, slot: int, place: str, limit: int) -> Call[int]:
    """Build dropping up to `limit` messages of `store` or `retry`; answers how many."""
    keys = slot_keys(topic.name, slot)
    source = {"store": keys.store, "retry": keys.retry}[place]
    return _PURGE_BACKLOG.call(topic, slot, int, _PURGE_BACKLOG.args(limit=limit), source=source)


def confirm(topic: Topic, slot: int) -> Call[None]:
    """Build a durable call that changes nothing in a slot."""
    return _CONFIRM.call(topic, slot, nothing, _CONFIRM.args())


def audit(topic: Topic, slot: int, actor: str, action: str, detail: str, outcome: str) -> Call[None]:
    """Build a line of the audit for a step that takes many calls."""
    args = _AUDIT.args(actor=actor, action=action, detail=detail, outcome=outcome)
    return _AUDIT.call(topic, slot, nothing, args)


def cancel(topic: Topic, slot: int, contents: Sequence[bytes], actor: str = "") -> Call[list[ControlResult]]:
    """Build the cancellation of up to `STEERED` contents."""
    return _CANCEL.call(topic, slot, control_results, _CANCEL.args(actor=actor, contents=contents))


def reschedule(
    topic: Topic, slot: int, contents: Sequence[bytes], score: NewScore, actor: str = "", action: str = "reschedule"
) -> Call[list[ControlResult]]:
    """Build a new score for up to `STEERED` contents."""
    kind, value = score
    args = _RESCHEDULE.args(kind=kind, value=value, **ages_of(topic), actor=actor, action=action, contents=contents)
    return _RESCHEDULE.call(topic, slot, control_results, args)


@dataclass(frozen=True, slots=True)
class Adopted:
    """Whose a slot was, and whether it was moved.

    Attributes:
        ensemble: Identity of the ensemble that counted its epochs; empty when nobody has owned it.
        epoch: The highest epoch that has touched it.
        moved: Whether this call moved it.
    """

    ensemble: str
    epoch: int
    moved: bool


def adopt(topic: Topic, slot: int, from_ensemble: str, to_ensemble: str, group: str | None = None) -> Call[Adopted]:
    """Build the move of a slot, or of a group's part of it, to another ensemble; without `from_ensemble` it reads."""

    def parse(reply: list[bytes]) -> Adopted:
        return Adopted(reply[0].decode(), int(reply[1]), is_one(reply[2]))

    args = _ADOPT.args(from_ensemble=from_ensemble, to_ensemble=to_ensemble)
    meta = _meta_key(topic, slot, group)
    return _ADOPT.call(topic, slot, parse, args, durable=bool(from_ensemble), meta=meta)


def control_results(reply: list[bytes]) -> list[ControlResult]:
    """Parse what became of contents."""
    return [ControlResult(answer.decode()) for answer in reply]


def _meta_key(topic: Topic, slot: int, group: str | None) -> str:
    return slot_keys(topic.name, slot).meta if group is None else group_keys(topic.name, slot, group).group
