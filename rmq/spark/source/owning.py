"""A streaming query as a worker under ZooKeeper: the slots that its driver owns, and those that its batch keeps.

A batch keeps its slots from its plan to its ack, under the epochs of that time. A slot that is asked back meanwhile is
handed over after the ack, or when the drain time is over. Slots that are gained come into the next batch.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal

from rmq._claiming.takeovers import Takeovers
from rmq._listening.ownership import OwnershipFollower
from rmq._model.figures import SlotStats
from rmq._model.owner import Owner
from rmq._model.times import monotonic_s
from rmq._model.topics import Topic
from rmq._ownership import Coordinator
from rmq._scripts import viewing
from rmq._transport.connections import Connections
from rmq.errors import RmqError
from rmq.spark import calls
from rmq.spark.calls import Driver
from rmq.spark.options import Options
from rmq.spark.slots import QuerySlots, SettledBatch
from rmq.spark.source.batches import Batch

log = logging.getLogger("rmq.spark")

SETTLE_S = 5.0
"""Longer than the session timeout by this, a driver waits for its share of the slots before its first batch: the
session of the driver before it may have to end, and other workers have to hand slots over."""

LOOK_S = 0.1
"""How often a driver looks that waits for slots."""

MARKING = Owner(0, "any")
"""With this owner the mark of an acked batch is set, whoever owns the slot."""


class OwnedSlots:
    """The slots of a topic that the driver of a query owns. It uses them as the runtime of a listener does.

    Args:
        options: Those of the query.
        connections: Where the topic is.
        topic: The registered definition.
        query: Identity of the query; its drivers join under one name, so that the next one waits for the last one's
            session to end.

    Attributes:
        awaits_leases: Whether leases of earlier owners have to end in some of them, when `ready` was called last.
    """

    def __init__(self, options: Options, connections: Connections, topic: Topic, query: str) -> None:
        self.place, self.topic = topic.name, topic
        self._connections = connections
        self._coordinator = Coordinator(
            options.zookeeper or "",
            f"spark-{query}",
            chroot=options.zookeeper_chroot,
            session_timeout_s=options.zookeeper_session_s,
            weight=options.worker_weight,
            drain_timeout_s=options.drain_s,
        )
        self._patience_s = options.zookeeper_session_s + SETTLE_S
        self._follower = OwnershipFollower(self._coordinator, [self], connections, options.drain_s)
        self._takeovers = Takeovers(connections, topic)
        self._lock = threading.Lock()
        self._kept: dict[int, Owner] | None = None
        self._owed: dict[int, tuple[int, list[int]]] = {}
        self._seen: Mapping[int, Owner] = {}
        self._changed = threading.Event()
        self.awaits_leases = False

    def start(self) -> None:
        """Join the cluster, and wait until this driver has its share of the slots, or for as long as that may take.

        Raises:
            CoordinationError: ZooKeeper does not answer, or workers of another Redis consume the topic there.
            TopicMismatchError: The topic is registered there with another type or number of slots.
        """
        self._follower.start()
        _end_in_order()
        until_s = monotonic_s() + self._patience_s
        while not self.owned() or self._coordinator.awaited(self.place):
            if monotonic_s() >= until_s:
                owned, waits = len(self.owned()), len(self._coordinator.awaited(self.place))
                log.warning("topic %s: this query owns %d slots so far, and waits for %d", self.place, owned, waits)
                break
            self._connections.blocking.sleep(LOOK_S)

    def close(self) -> None:
        """Give all slots back at once, and leave the cluster."""
        self._follower.stop()

    def owned(self) -> dict[int, Owner]:
        """Return the slots that may be read from now."""
        owned = self._coordinator.owned().items()
        return {slot: Owner(each.epoch, each.ensemble) for (place, slot), each in owned if place == self.place}

    def refresh_ownership(self) -> bool:
        """Hand over the slots that are asked back and that no batch keeps. Called at every change, and now and then."""
        with self._lock:
            asked_back = [slot for place, slot in self._coordinator.revoking() if place == self.place]
            for slot in asked_back:
                if slot not in (self._kept or ()):
                    self._coordinator.drained(self.place, slot)
        owned = self.owned()
        if owned != self._seen:
            self._seen = owned
            self._changed.set()
        return bool(asked_back)

    def has_changed(self) -> bool:
        """Tell whether the driver has got or lost slots since this was asked last."""
        changed = self._changed.is_set()
        self._changed.clear()
        return changed

    def ready(self, slots: QuerySlots, driver: Driver | None) -> dict[int, Owner]:
        """Return the slots that a new batch may have: swept, and without anything in flight of an earlier owner.

        It first sends the acks that are owed in slots that have come back.
        """
        owners = self.owned()
        for slot in [slot for slot in self._owed if slot in owners and driver is not None]:
            self._pay(slots, driver, slot, owners)
        for slot in slots.tidy(owners):
            owners.pop(slot)  # somebody has it already, and this worker is about to learn of it
        self._takeovers.take_over([each for each in owners.items() if not self._takeovers.is_open(*each)])
        ready = {slot: owner for slot, owner in owners.items() if self._takeovers.is_open(slot, owner)}
        self.awaits_leases = len(ready) < len(owners)
        return ready

    def keep(self, quotas: Mapping[int, int]) -> dict[int, int]:
        """Keep the slots of a batch that is planned; return its quotas without slots that were lost just now."""
        with self._lock:
            owned = self.owned()
            kept = {
                slot: owned[slot] for slot in quotas if slot in owned and self._takeovers.is_open(slot, owned[slot])
            }
            self._kept = kept or None
        return {slot: quota for slot, quota in quotas.items() if slot in kept}

    def release(self) -> None:
        """Note that no batch keeps slots any more."""
        with self._lock:
            self._kept = None

    def kept(self, batch: Batch, slots: QuerySlots, driver: Driver) -> dict[int, Owner]:
        """Return the slots that a batch reads, with their owners: of one that this driver has planned, those of then.

        Of a batch of an earlier driver these are the slots that this one owns, once nothing but the batch is in flight
        there. The query forgets what it has read of the others.

        Raises:
            RmqError: Redis does not answer.
        """
        with self._lock:
            if self._kept is None:
                owned = self.owned()
                self._kept = {slot: owned[slot] for slot in batch.quotas if slot in owned}
                found = None
            else:
                found = dict(self._kept)
        if found is None:
            found = self._taken_over(batch, slots, driver)
            with self._lock:
                self._kept = dict(found)
            self._forget(batch, driver, batch.quotas.keys() - found.keys())
        return found

    def settle(self, slots: QuerySlots, driver: Driver, batch: Batch, verb: Literal["ack", "renew"]) -> SettledBatch:
        """Ack or renew a batch in its slots. What others own by now is left to them; an ack of it is owed.

        Returns:
            What has come of it; all that the batch was to have of the slots of others counts as lost.

        Raises:
            RmqError: As `QuerySlots.settle`.
        """
        owned = self.owned()
        owners = owned | (self._kept or {})
        parts = [part for part in batch.chunks() if part[0] in owners]
        settled = slots.settle(driver, batch.seq, parts, verb, owners)
        newer = {slot: owned[slot] for slot in settled.fenced if slot in owned and owned[slot] != owners[slot]}
        if newer:  # lost, and come back
            with self._lock:
                self._kept = (self._kept or {}) | newer
            again = [part for part in parts if part[0] in newer]
            settled = settled.then(slots.settle(driver, batch.seq, again, verb, newer))
        lost = settled.fenced | (batch.quotas.keys() - owners.keys())
        if verb == "ack":
            for slot in lost:
                self._owed[slot] = batch.seq, [chunk for place, chunk in batch.chunks() if place == slot]
        gone = {slot: batch.quotas[slot] for slot in lost}
        return settled._replace(found=settled.found | gone, lost=settled.lost + sum(gone.values()))

    def _pay(self, slots: QuerySlots, driver: Driver | None, slot: int, owners: Mapping[int, Owner]) -> None:
        """Ack what was committed while another worker had the slot."""
        seq, chunks = self._owed.pop(slot)
        if driver is not None:
            with suppress(RmqError):  # its messages come again
                slots.settle(driver, seq, [(slot, chunk) for chunk in chunks], "ack", owners)

    def _taken_over(self, batch: Batch, slots: QuerySlots, driver: Driver) -> dict[int, Owner]:
        """Return the slots of an earlier driver's batch in which nothing else is in flight any more, and keep those."""
        owners, found = dict(self._kept or {}), dict[int, Owner]()
        until_s = monotonic_s() + self.topic.lease_s + SETTLE_S
        while True:
            waiting = {slot: owner for slot, owner in owners.items() if slot not in found}
            for slot in slots.tidy(waiting):
                owners.pop(slot)
            held = slots.settle(
                driver, batch.seq, [part for part in batch.chunks() if part[0] in waiting], "renew", waiting
            ).done
            asked = [viewing.stats(self.topic, slot) for slot in waiting]
            for slot, size in zip(waiting, self._connections.run_many(asked), strict=True):
                if isinstance(size, SlotStats) and size.in_flight <= held.get(slot, 0):
                    found[slot] = waiting[slot]
            if found.keys() >= owners.keys() or monotonic_s() >= until_s:
                return {slot: owner for slot, owner in found.items() if slot in owners}
            self._connections.blocking.sleep(LOOK_S)

    def _forget(self, batch: Batch, driver: Driver, lost: Iterable[int]) -> None:
        lost = sorted(lost)
        if not lost:
            return
        parts = [part for part in batch.chunks() if part[0] in lost]
        answers: list[Any] = self._connections.run_many(
            [calls.forget(self.topic, slot, driver, batch.seq, chunk) for slot, chunk in parts]
        )
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        log.warning(
            "batch %d of topic %s goes without slots %s, which this driver does not own: %d messages that it had read "
            "there come to their owners after their leases",
            batch.seq,
            self.place,
            ", ".join(map(str, lost)),
            sum(answers),
        )


def _end_in_order() -> None:
    """Have SIGTERM, with which Spark ends the process of a source, end it in order: its slots go back at once."""
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, _frame: object) -> None:
    sys.exit(128 + number)
