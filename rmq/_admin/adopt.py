"""Moves a topic from one keeper of owners to another: ZooKeeper ensembles, this Redis, or none.

Epochs are issued by one ensemble. A rebuilt ensemble starts from zero again, so its epochs cannot be compared with
those of the old one (pitfall 41). Slots therefore store the identity of their ensemble, and refuse the epochs of others
until an operator who knows that the old ensemble is gone moves the topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rmq._admin import control
from rmq._admin.control import Adopted
from rmq._admin.stream_view import StreamView
from rmq._model.topics import Topic, TopicType
from rmq._ownership.redis_keeper import Owners, new_coordinator
from rmq._registry.audit import confirm_all
from rmq._servers.urls import RedisUrl
from rmq._transport.connections import Connections, call_slots
from rmq.errors import EnsembleMismatchError


@dataclass(frozen=True, slots=True)
class Adoption:
    """The ensembles of a topic's slots, and the number of slots moved; on a stream topic a slot counts once per group.

    Attributes:
        ensemble: Identity of the target ensemble, even if no slot was moved; empty without owners.
        stored: Identity of the previous ensemble -> number of its slots. The empty key has the slots without one.
        moved: Number of slots moved.

    Examples:
        >>> Adoption("jobs", "ensemble-2", stored={"ensemble-1": 7}, moved=8).moved
        8
    """

    topic: str
    ensemble: str
    stored: Mapping[str, int] = field(default_factory=dict[str, int])
    moved: int = 0


def adopt(connections: Connections, topic: Topic, from_ensemble: str | None, to_ensemble: str) -> Adoption:
    """Move a topic's slots from one ensemble to another; see `RmqClient.adopt`."""
    owned = _owned(connections, topic)
    stored = Counter(owner.ensemble for _, owner in owned)
    before = Adoption(topic.name, to_ensemble, dict(stored))
    if from_ensemble is None:
        return before
    others = sorted(stored.keys() - {from_ensemble, to_ensemble, ""})
    if others:
        raise EnsembleMismatchError(
            f"topic {topic.name} has slots of ensembles other than {from_ensemble}: {', '.join(others)}; "
            "nothing was moved",
            topic=topic.name,
        )
    if from_ensemble == to_ensemble:
        return before
    theirs = [part for part, owner in owned if owner.ensemble == from_ensemble]
    calls = (control.adopt(topic, slot, from_ensemble, to_ensemble, group) for slot, group in theirs)
    moved = sum(connections.run(call).moved for call in calls)
    confirm_all(connections, topic)
    return replace(before, moved=moved)


def highest_epochs(connections: Connections, topic: Topic) -> dict[str, int]:
    """Return the highest epoch of each ensemble in a topic's slots."""
    highest: dict[str, int] = {}
    for _, owner in _owned(connections, topic):
        if owner.ensemble:
            highest[owner.ensemble] = max(owner.epoch, highest.get(owner.ensemble, 0))
    return highest


def _owned(connections: Connections, topic: Topic) -> list[tuple[tuple[int, str | None], Adopted]]:
    """Return each slot with its owner; on a stream topic, each slot of each group."""
    parts: list[tuple[int, str | None]] = [(slot, None) for slot in range(topic.slots)]
    if topic.type is TopicType.STREAM:
        parts = [(slot.slot, group) for slot in StreamView(connections, topic).stats().slots for group in slot.groups]
    replies = call_slots(connections, parts, lambda part: control.adopt(topic, part[0], "", "", part[1]))
    return list(zip(parts, replies, strict=True))


def ensemble_of(connections: Connections, owners: Owners | None, marks: Mapping[str, int]) -> str:
    """Return the identity of an ensemble once its epochs have reached `marks`; empty without owners."""
    return connections.runtime.call(_asked, connections.url, owners, marks)


def _asked(url: RedisUrl, owners: Owners | None, marks: Mapping[str, int]) -> str:
    coordinator = new_coordinator(owners, url)
    if coordinator is None:
        return ""
    with coordinator:
        return coordinator.verified(marks)
