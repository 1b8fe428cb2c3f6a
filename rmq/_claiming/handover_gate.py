"""Opens slots taken over from an earlier owner once none of its messages are in flight."""

from __future__ import annotations

from collections.abc import Sequence

from rmq._broker import viewing
from rmq._claiming.claim_plan import PATIENCE_S
from rmq._claiming.outcome_batches import SlotOwner
from rmq._io.reports import reporter
from rmq._model.figures import SlotStats
from rmq._model.replies import Owner
from rmq._model.topics import Topic
from rmq._transport.connections import Connections

log = reporter("rmq.claimer")


class HandoverGate:
    """The slots that a planner may claim from after a handover.

    Args:
        connections: The connections to the topic's servers.
        topic: The registered definition.
    """

    def __init__(self, connections: Connections, topic: Topic) -> None:
        self._connections = connections
        self._topic = topic
        self._open: dict[int, int] = {}  # slot -> epoch in which it was taken over
        self._logged: dict[int, int] = {}  # slot -> epoch for which the log says that we wait

    def is_open(self, slot: int, owner: Owner) -> bool:
        """Return whether a slot was opened for this owner's epoch."""
        return self._open.get(slot) == owner.epoch

    def open_drained(self, slots: Sequence[SlotOwner]) -> None:
        """Open the slots in which nothing of an earlier owner is in flight.

        The earlier owner's handler may still run: paused, disconnected, or slower than the drain timeout. The new epoch
        fences its calls to Redis, but not the handler. So nothing is claimed until each of its messages is settled or
        its lease has expired. As long as leases hold, the messages of a slot are handled one after the other.
        """
        sizes = self._connections.run_many([viewing.stats(self._topic, slot) for slot, _ in slots], PATIENCE_S)
        for (slot, owner), size in zip(slots, sizes, strict=True):
            if not isinstance(size, SlotStats):
                continue
            if not size.in_flight:
                self._open[slot] = owner.epoch
            elif self._logged.get(slot) != owner.epoch:
                self._logged[slot] = owner.epoch
                log.info(
                    "slot %d of topic %s waits for %d messages of an earlier owner to be settled or to expire",
                    slot,
                    self._topic.name,
                    size.in_flight,
                )
