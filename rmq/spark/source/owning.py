"""A streaming query as a worker that owns slots: the slots that its driver owns, and those of its current batch.

A batch keeps its slots from its plan to its ack, with their epochs at the time of the plan. A slot that is revoked
meanwhile is handed over after the ack, or when the drain time is over. Newly owned slots are used from the next batch
on.
"""

from __future__ import annotations

import atexit
import logging
import signal
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from rmq import Coordinator, Owner, Ownership, RedisOwners, SlotStats, Topic
from rmq.errors import FencedError, RedisUnavailableError, ReplyLostError, RmqError
from rmq.spark import calls
from rmq.spark.calls import Driver
from rmq.spark.options import Options, zookeeper_access
from rmq.spark.slots import QuerySlots, SettledBatch
from rmq.spark.source.batches import Batch
from rmq.spi import monotonic_s
from rmq.spi.scripts import Connections, HandoverGate, OwnershipFollower, RedisCoordinator, ignore, queue_stats

log = logging.getLogger("rmq.spark")

SETTLE_S = 5.0
"""A driver waits for its share of the slots before its first batch, at most for the session timeout plus this time,
seconds. The session of the query's previous driver may have to expire first, and other workers have to hand slots
over."""

LOOK_S = 0.1
"""Interval at which a driver that waits for slots checks them, seconds."""

AWAIT_S = 1.0
"""Minimum interval between checks of slots that wait for leases to expire, seconds."""

AWAITED_A_SECOND = 20
"""Maximum number of these slots checked per second. Each check takes two commands."""

MARKING = Owner(0, "any")
"""The owner with which the mark of an acked batch is set; the script does not check its epoch."""


class OwnedSlots:
    """The slots of a topic that the driver of a query owns, and their handover to and from other workers.

    Args:
        options: The options of the query.
        connections: Connections to Redis.
        topic: The registered definition.
        query: Identity of the query. All of its drivers use the same worker name, so that a new one waits for the
            session of the previous one to end.

    Attributes:
        awaited: The owned slots that batches cannot use yet: leases of an earlier owner have to expire, or an
            outstanding ack has to succeed.
    """

    def __init__(self, options: Options, connections: Connections, topic: Topic, query: str) -> None:
        self.place, self.topic = topic.name, topic
        self._connections = connections
        session_s = options.owners_session_s if options.owners is not None else options.zookeeper_session_s
        self._coordinator = _new_coordinator(options, connections, f"spark-{query}", session_s)
        self._patience_s = session_s + SETTLE_S
        self._follower = OwnershipFollower(self._coordinator, [self], connections, options.drain_s)
        self._takeovers = HandoverGate(connections, topic)
        self._lock = threading.Lock()
        self._kept: dict[int, Owner] | None = None
        self._owed: dict[int, tuple[int, list[int]]] = {}
        self._seen: Mapping[int, Owner] = {}
        self._fenced: dict[int, Owner] = {}  # slot -> our ownership that a newer owner has ended
        self._changed = threading.Event()
        self._look_s = 0.0
        self.awaited: frozenset[int] = frozenset()

    def start(self) -> None:
        """Join the cluster, and wait until this driver has its share of the slots, or the time for that is over.

        Raises:
            CoordinationError: ZooKeeper does not answer, or workers of another Redis consume the topic there.
            TopicMismatchError: The topic is registered there with another type or number of slots.
        """
        self._follower.start()
        atexit.register(self.close)  # SIGTERM may come while the process ends, and interrupt the call of `close`
        try:
            _end_in_order()
            self._wait()
        except BaseException:  # nobody else knows of this worker yet
            self.close()
            raise

    def _wait(self) -> None:
        until_s = monotonic_s() + self._patience_s
        while not self.owned() or self._coordinator.awaited(self.place):
            if monotonic_s() >= until_s:
                owned, waits = len(self.owned()), len(self._coordinator.awaited(self.place))
                if owned or waits:
                    log.warning("topic %s: this query owns %d slots and waits for %d more", self.place, owned, waits)
                else:
                    text = "topic %s: this query owns no slot: the topic has more workers than slots (%d)"
                    log.warning(text, self.place, self.topic.slots)
                return
            self._connections.runtime.sleep(LOOK_S)

    def close(self) -> None:
        """Release all slots at once, and leave the cluster. Safe to repeat."""
        self._follower.stop()
        atexit.unregister(self.close)

    def owned(self) -> dict[int, Owner]:
        """Return the owned slots of the topic, with their owners."""
        return self._here(self._coordinator.owned())

    def _here(self, owned: Mapping[Any, Ownership]) -> dict[int, Owner]:
        """Return the slots of this topic among the given owned ones."""
        return {slot: Owner(each.epoch, each.ensemble) for (place, slot), each in owned.items() if place == self.place}

    def refresh_ownership(self, owned: Mapping[Any, Ownership]) -> bool:
        """Hand over revoked slots that no batch keeps. Called at every change of ownership, and at intervals."""
        with self._lock:
            asked_back = [slot for place, slot in self._coordinator.revoking() if place == self.place]
            for slot in asked_back:
                if slot not in (self._kept or ()):
                    self._coordinator.drained(self.place, slot)
        seen = self._here(owned)
        if seen != self._seen:
            self._seen = seen
            self._changed.set()
        return bool(asked_back)

    def open_slots(self) -> set[int]:
        """Return the owned slots that batches can use."""
        return {slot for slot in self.owned() if slot not in self.awaited}

    def has_changed(self, slots: QuerySlots) -> bool:
        """Return whether the slots that a batch may use have changed since the last call.

        Slots that wait for leases are checked at intervals, other slots are not.
        """
        if self._changed.is_set():
            self._changed.clear()
            return True
        if not self.awaited or monotonic_s() < self._look_s:
            return False
        waiting = {slot: owner for slot, owner in self.owned().items() if slot in self.awaited}
        if not self._owed.keys().isdisjoint(waiting):
            return True
        try:
            self._sweep(slots, waiting)
        except RmqError:
            return True  # the next plan raises it
        return any(self._takeovers.is_open(*each) for each in waiting.items())

    def awaits(self, slots: QuerySlots, target: Mapping[int, int]) -> bool:
        """Wait while slots with messages to read wait for leases; return True if the available slots changed."""
        while any(map(target.get, self.awaited)):
            self._connections.runtime.sleep(LOOK_S)
            if self.has_changed(slots):
                return True
        return False

    def ready(self, slots: QuerySlots, driver: Driver | None) -> dict[int, Owner]:
        """Sweep the owned slots; return those without messages of earlier owners in flight, for a new batch.

        Outstanding acks are sent first for slots that this driver owns again.

        Raises:
            RmqError: Redis does not answer. A lost reply is not an error, as the slots are swept again.
        """
        owners = self.owned()
        owing = [slot for slot in self._owed if slot in owners]
        unpaid = {slot for slot in owing if driver is None or not self._pay(slots, driver, slot, owners)}
        self._sweep(slots, {slot: owner for slot, owner in owners.items() if slot not in unpaid})
        mine = {slot: owner for slot, owner in owners.items() if self._fenced.get(slot) != owner}
        found = {slot: owner for slot, owner in mine.items() if self._takeovers.is_open(slot, owner)}
        ready = {slot: owner for slot, owner in found.items() if slot not in unpaid}
        self.awaited = frozenset(mine.keys() - ready.keys())
        return ready

    def _sweep(self, slots: QuerySlots, owners: Mapping[int, Owner]) -> None:
        """Sweep slots, and open those in which no message of an earlier owner is in flight."""
        try:
            fenced = slots.tidy(owners)
        except ReplyLostError:
            pass  # the next sweep settles the rest; no slot is opened before
        else:
            for slot in owners.keys() - fenced.keys():
                self._fenced.pop(slot, None)
            self._note_fenced(fenced, owners)
            closed = [each for each in owners.items() if not self._takeovers.is_open(*each)]
            self._takeovers.open_drained([(slot, owner) for slot, owner in closed if slot not in fenced])
        waiting = sum(not self._takeovers.is_open(*each) for each in owners.items())
        self._look_s = monotonic_s() + max(AWAIT_S, waiting / AWAITED_A_SECOND)

    def _note_fenced(self, fenced: Mapping[int, int], owners: Mapping[int, Owner]) -> None:
        """Report newer epochs found in Redis to the coordinator, which does not know of their owners yet."""
        for slot, epoch in fenced.items():
            self._coordinator.fenced(epoch, owners[slot].ensemble, (self.place, slot))
            if self._fenced.get(slot) != owners[slot]:
                self._fenced[slot] = owners[slot]
                text = "slot %d of topic %s has a newer owner (epoch %d); this query owned it in epoch %d"
                log.info(text, slot, self.place, epoch, owners[slot].epoch)

    def keep(self, quotas: Mapping[int, int]) -> dict[int, int]:
        """Keep the slots of a planned batch; return its quotas without slots that were lost meanwhile."""
        with self._lock:
            owned = self.owned()
            kept = {
                slot: owned[slot] for slot in quotas if slot in owned and self._takeovers.is_open(slot, owned[slot])
            }
            self._kept = kept or None
        return {slot: quota for slot, quota in quotas.items() if slot in kept}

    def release(self) -> None:
        """End the hold of the current batch on its slots."""
        with self._lock:
            self._kept = None

    def kept(self, batch: Batch, slots: QuerySlots, driver: Driver) -> dict[int, Owner]:
        """Return the slots that a batch reads, with their owners.

        A batch that this driver planned has the slots and owners of its plan. A batch of an earlier driver has those of
        its slots that this driver owns, once no message outside the batch is in flight there. The batch's records in
        the other slots are removed.

        Raises:
            RmqError: Redis does not answer.
        """
        with self._lock:
            if self._kept is not None:
                return dict(self._kept)
            owned = self.owned()
            self._kept = {slot: owned[slot] for slot in batch.quotas if slot in owned}
        try:
            found = self._taken_over(batch, slots, driver)
            with self._lock:
                self._kept = dict(found)
            self._forget(batch, driver, batch.quotas.keys() - found.keys())
        except BaseException:  # whoever tries again begins anew
            self.release()
            raise
        return found

    def settle(self, slots: QuerySlots, driver: Driver, batch: Batch, verb: Literal["ack", "renew"]) -> SettledBatch:
        """Ack or renew a batch in the slots that this driver owns; acks in other slots wait until it owns them again.

        Returns:
            The results by slot. Messages in slots that were lost since the batch was read count as lost. Slots that
            this driver never owned during the batch do not count.

        Raises:
            RmqError: As for `QuerySlots.settle`.
        """
        owned = self.owned()
        owners = owned | (self._kept or {})
        parts = [part for part in batch.chunks() if part[0] in owners]
        settled = slots.settle(driver, batch.seq, parts, verb, owners)
        self._note_fenced(settled.fenced, owners)
        newer = {slot: owned[slot] for slot in settled.fenced if slot in owned and owned[slot] != owners[slot]}
        if newer:  # lost, and come back
            with self._lock:
                if self._kept is not None:  # else the batch was acked meanwhile
                    self._kept |= newer
            again = [part for part in parts if part[0] in newer]
            settled = settled.then(slots.settle(driver, batch.seq, again, verb, newer))
        never = batch.quotas.keys() - owners.keys()
        if verb == "ack":
            for slot in settled.fenced.keys() | never:
                self._owed[slot] = batch.seq, [chunk for place, chunk in batch.chunks() if place == slot]
        gone = {slot: batch.quotas[slot] for slot in settled.fenced}
        found = settled.found | gone | {slot: batch.quotas[slot] for slot in never}
        return settled._replace(found=found, lost=settled.lost + sum(gone.values()))

    def _pay(self, slots: QuerySlots, driver: Driver, slot: int, owners: Mapping[int, Owner]) -> bool:
        """Send an outstanding ack of a committed batch in a slot; return whether it is settled.

        If Redis refuses the ack, the messages are delivered again, and the ack counts as settled.
        """
        seq, chunks = self._owed[slot]
        try:
            fenced = slots.settle(driver, seq, [(slot, chunk) for chunk in chunks], "ack", owners).fenced
            self._note_fenced(fenced, owners)
            if fenced:
                return False
        except (RedisUnavailableError, ReplyLostError):
            return False
        except RmqError as error:
            log.info("batch %d of topic %s could not be acked in slot %d: %s", seq, self.place, slot, error)
        del self._owed[slot]
        return True

    def _taken_over(self, batch: Batch, slots: QuerySlots, driver: Driver) -> dict[int, Owner]:
        """Wait for other messages in flight in the slots of an earlier driver's batch; return the slots without any."""
        owners, found = dict(self._kept or {}), dict[int, Owner]()
        until_s = monotonic_s() + self.topic.lease_s + SETTLE_S
        while True:
            waiting = {slot: owner for slot, owner in owners.items() if slot not in found}
            try:
                fenced = slots.tidy(waiting)
                parts = [part for part in batch.chunks() if part[0] in waiting]
                held = slots.settle(driver, batch.seq, parts, "renew", waiting).done
            except ReplyLostError:
                pass  # the next round does it again, which is safe
            else:
                self._note_fenced(fenced, waiting)
                for slot in fenced:
                    owners.pop(slot)
                asked = [queue_stats(self.topic, slot) for slot in waiting]
                for slot, size in zip(waiting, self._connections.run_many(asked), strict=True):
                    if isinstance(size, SlotStats) and size.in_flight <= held.get(slot, 0):
                        found[slot] = waiting[slot]
            if found.keys() >= owners.keys() or monotonic_s() >= until_s:
                return {slot: owner for slot, owner in found.items() if slot in owners}
            self._connections.runtime.sleep(LOOK_S)

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
            "batch %d of topic %s continues without slots %s, which this driver no longer owns; the %d "
            "messages read from them are delivered to the new owners when their leases expire",
            batch.seq,
            self.place,
            ", ".join(map(str, lost)),
            sum(answers),
        )


def _new_coordinator(options: Options, connections: Connections, name: str, session_s: float) -> Coordinator:
    if options.owners is not None:
        owners = RedisOwners(session_s, name, options.worker_weight, options.drain_s)
        return RedisCoordinator(connections.url, owners)
    auth, tls = zookeeper_access(options)
    return Coordinator(
        options.zookeeper or "",
        name,
        chroot=options.zookeeper_chroot,
        session_timeout_s=session_s,
        weight=options.worker_weight,
        auth=auth,
        tls=tls,
        drain_timeout_s=options.drain_s,
    )


def unnamed(topic: Topic, error: FencedError) -> FencedError:
    """Return the error for a query without option `owners` or `zookeeper` on a topic whose slots have owners."""
    return FencedError(
        f"topic {topic.name} has workers that own its slots, but this query has no option owners or zookeeper. Set "
        "the same option as the workers, so that the query shares the slots with them, or stop the workers and "
        f"run `rmq adopt {topic.name} --no-zookeeper`",
        topic=topic.name,
        slot=error.slot,
    )


def _end_in_order() -> None:
    """Exit normally at SIGTERM, with which Spark ends the process of a source, so that slots are released at once.

    Spark closes the pipe of the process at the same time, so the process may already be exiting.
    """
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, _frame: object) -> None:
    signal.signal(number, ignore)  # once is enough: another one would interrupt the end
    sys.exit(128 + number)
