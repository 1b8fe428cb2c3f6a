"""The deliberate way of a topic from one ZooKeeper ensemble to another, or away from ZooKeeper.

Epochs are counted by one ensemble; a rebuilt one counts from zero again, so its numbers mean nothing beside those of
the old one (pitfall 41). Slots therefore remember whose epochs they hold, and refuse all others until somebody who
knows that the old ensemble is gone says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from rmq import calls
from rmq.calls import Adopted
from rmq.connections import Connections
from rmq.errors import EnsembleMismatchError
from rmq.exchange import raise_first
from rmq.slot import SlotWriter
from rmq.stream_view import StreamView
from rmq.topics import Topic, TopicType

SLOTS_PER_ROUND = 256


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
    replies: list[Adopted] = []
    for first in range(0, len(places), SLOTS_PER_ROUND):
        part = places[first : first + SLOTS_PER_ROUND]
        found = connections.run_many([calls.adopt(topic, slot, "", to_ensemble, group) for slot, group in part])
        raise_first(found)
        replies += [reply for reply in found if isinstance(reply, Adopted)]
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


def _places(connections: Connections, topic: Topic) -> list[tuple[int, str | None]]:
    """Return what has an owner: each slot; on a stream topic, each group's part of each slot."""
    if topic.type is not TopicType.STREAM:
        return [(slot, None) for slot in range(topic.slots)]
    stats = StreamView(connections, topic).stats()
    return [(slot.slot, group) for slot in stats.slots for group in slot.groups]
