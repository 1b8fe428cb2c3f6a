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
from rmq.slot import SlotWriter
from rmq.topics import Topic

SLOTS_PER_ROUND = 256


@dataclass(frozen=True, slots=True)
class Adoption:
    """Whose slots a topic's are, and how many have moved.

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
    replies: list[Adopted] = []
    for first in range(0, topic.slots, SLOTS_PER_ROUND):
        slots = range(first, min(first + SLOTS_PER_ROUND, topic.slots))
        found = connections.run_many([calls.adopt(topic, slot, "", to_ensemble) for slot in slots])
        for reply in found:
            if isinstance(reply, Exception):
                raise reply
            replies.append(reply)
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
    theirs = [slot for slot, reply in enumerate(replies) if reply.ensemble == from_ensemble != to_ensemble]
    moved = sum(writer.adopt(slot, from_ensemble, to_ensemble).moved for slot in theirs)
    return Adoption(topic.name, to_ensemble, dict(stored), moved)
