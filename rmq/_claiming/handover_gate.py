"""Slots that came from an earlier owner: claimed from only once nothing that it had in flight is left."""

from __future__ import annotations

from collections.abc import Sequence

from rmq._broker import viewing
from rmq._claiming.claim_plan import PATIENCE_S
from rmq._claiming.outcome_batches import SlotOwner
from rmq._model.figures import SlotStats
from rmq._model.replies import Owner
from rmq._model.reports import reporter
from rmq._model.topics import Topic
from rmq._transport.connections import Connections

log = reporter("rmq.claimer")


class HandoverGate:
    """Which slots a planner may claim from after a handover.

    Args:
        connections: Where the topic is.
        topic: The registered definition.
    """

    def __init__(self, connections: Connections, topic: Topic) -> None:
        self._connections = connections
        self._topic = topic
        self._open: dict[int, int] = {}  # slot -> epoch in which it was taken over
        self._logged: dict[int, int] = {}  # slot -> epoch for which the log says that we wait

    def is_open(self, slot: int, owner: Owner) -> bool:
        """Return whether a slot was taken over in this owner's epoch."""
        return self._open.get(slot) == owner.epoch

    def open_drained(self, slots: Sequence[SlotOwner]) -> None:
        """Open the slots where nothing is in flight any more.

        The owner before may still be at work: paused, cut off, or slower than a handover waits. Our epoch, which the
        slot has by now, fences what it does to Redis, but not its handler. So we claim only once all that it had in
        flight is settled or its lease has ended: the messages of a slot run one after the other as long as leases hold.
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
                    "slot %d of topic %s waits for %d messages of an earlier owner, or for the end of their leases",
                    slot,
                    self._topic.name,
                    size.in_flight,
                )
