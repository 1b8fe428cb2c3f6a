"""The leader's decision: pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmq.assignment import Share, assign
from rmq.coordination.documents import Assignment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rmq.coordination.documents import WorkerDocument


def decide(
    workers: Mapping[str, WorkerDocument], slots: Mapping[str, int], current: Assignment | None
) -> Assignment | None:
    """Return the assignment to write, None if the current one stands.

    Args:
        workers: The live workers.
        slots: Registered topic → its number of slots. A worker that knows another number gets none of them.
        current: The assignment as it is; None if there is none.
    """
    shares = {
        name: Share(
            frozenset(topic for topic, count in worker.topics.items() if slots.get(topic) == count), worker.weight
        )
        for name, worker in workers.items()
    }
    wanted = {topic: slots[topic] for share in shares.values() for topic in share.topics}
    new = Assignment(assign(wanted, shares, current.topics if current else Assignment().topics))
    return None if current is not None and new.topics == current.topics else new
