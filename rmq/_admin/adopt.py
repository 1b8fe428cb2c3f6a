"""The deliberate way of a topic from one ZooKeeper ensemble to another, or away from ZooKeeper.

Epochs are counted by one ensemble; a rebuilt one counts from zero again, so its numbers mean nothing beside those of
the old one (pitfall 41). Slots therefore remember whose epochs they hold, and refuse all others until somebody who
knows that the old ensemble is gone says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rmq._admin.stream_view import StreamView
from rmq._model.topics import Topic, TopicType
from rmq._ownership import Coordinator
from rmq._scripts import steering
from rmq._scripts.steering import Adopted
from rmq._slots.each import call_each
from rmq._slots.slots import SlotWriter
from rmq._transport.connections import Connections
from rmq.errors import EnsembleMismatchError


@dataclass(frozen=True, slots=True)
class Adoption:
    """Whose slots a topic's are, and how many have moved. On a stream topic each group's slots count.

    Attributes:
        topic: Its name.
        ensemble: Identity of the ensemble that they move, or would move, to; empty for none.
        stored: Identity of the ensemble that slots belonged to before -> how many; empty for those nobody has owned.
        moved: How many slots were moved.
    """

    topic: str
    ensemble: str
    stored: Mapping[str, int] = field(default_factory=dict[str, int])
    moved: int = 0


def adopt(connections: Connections, topic: Topic, from_ensemble: str | None, to_ensemble: str) -> Adoption:
    """Move a topic's slots from one ensemble to another; see `RmqClient.adopt`."""
    places = _places(connections, topic)
    replies = _owners(connections, topic, places)
    stored = Counter(reply.ensemble for reply in replies)
    before = Adoption(topic.name, to_ensemble, dict(stored))
    if from_ensemble is None:
        return before
    strangers = sorted(stored.keys() - {from_ensemble, to_ensemble, ""})
    if strangers:
        raise EnsembleMismatchError(
            f"topic {topic.name} has slots of ensemble {', '.join(strangers)}, not only of {from_ensemble}; "
            "nothing was moved",
            topic=topic.name,
        )
    writer = SlotWriter(connections, topic)
    theirs = [place for place, reply in zip(places, replies, strict=True) if reply.ensemble == from_ensemble]
    if from_ensemble == to_ensemble:
        return before
    moved = sum(writer.adopt(slot, from_ensemble, to_ensemble, group).moved for slot, group in theirs)
    return Adoption(topic.name, to_ensemble, dict(stored), moved)


def highest_epochs(connections: Connections, topic: Topic) -> dict[str, int]:
    """Return ensemble -> the highest epoch of its that slots of a topic hold."""
    highest: dict[str, int] = {}
    for reply in _owners(connections, topic, _places(connections, topic)):
        if reply.ensemble:
            highest[reply.ensemble] = max(reply.epoch, highest.get(reply.ensemble, 0))
    return highest


def _owners(connections: Connections, topic: Topic, places: Sequence[tuple[int, str | None]]) -> list[Adopted]:
    """Read whose slots these are; changes nothing."""
    return call_each(connections, places, lambda place: steering.adopt(topic, place[0], "", "", place[1]))


def _places(connections: Connections, topic: Topic) -> list[tuple[int, str | None]]:
    """Return what has an owner: each slot; on a stream topic, each group's part of each slot."""
    if topic.type is not TopicType.STREAM:
        return [(slot, None) for slot in range(topic.slots)]
    stats = StreamView(connections, topic).stats()
    return [(slot.slot, group) for slot in stats.slots for group in slot.groups]


def ensemble_of(connections: Connections, zookeeper: str | Coordinator | None, marks: Mapping[str, int]) -> str:
    """Return the identity of an ensemble, which has counted as far as `marks` say; empty without one."""
    return "" if zookeeper is None else connections.blocking.call(_asked, zookeeper, marks)


def _asked(zookeeper: str | Coordinator, marks: Mapping[str, int]) -> str:
    with Coordinator(zookeeper) if isinstance(zookeeper, str) else zookeeper as coordinator:
        return coordinator.verified(marks)
