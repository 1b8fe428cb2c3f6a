"""The push side: threads that claim, call a handler, and settle what came of it with their next claim."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from rmq.blocking import Background, Blocking
from rmq.claimer import Claimer
from rmq.clock import monotonic_s
from rmq.connections import Connections
from rmq.coordination import Coordinator
from rmq.delivery import Delivery
from rmq.errors import InvalidValueError, TopicMismatchError
from rmq.leases import LeaseKeeper
from rmq.observing import Observers
from rmq.ownership import Owner, spread_slots
from rmq.slot import SlotWriter
from rmq.stream_consumer import join_group
from rmq.stream_slot import GroupSlots, StreamWriter
from rmq.topics import Topic
from rmq.turns import Gate, Turns
from rmq.upkeep import Upkeep
from rmq.wakeups import HintReader
from rmq.worker import LOOK_EVERY_S, TROUBLE_PAUSE_S, Listener, Worker

log = logging.getLogger("rmq.runtime")

FOLLOW_EVERY_S = 0.2
"""How often the ownership is looked at without being told of a change; also how soon a drained slot is handed over."""


class Counts(NamedTuple):
    """What a listener does at the moment: its slots, those it holds something of, how much, and its totals."""

    slots: Collection[int]
    busy_slots: Collection[int]
    in_flight: int
    handled: int
    failed: int


class ListenerRuntime:
    """A listener at work: its worker threads, a watcher for hints, and a keeper for leases.

    Without ZooKeeper the threads share all slots. With it, they share the slots that this process owns, each slot in
    one thread: its messages run one after the other.

    Args:
        connections: Where the topic is.
        listener: What to run.
        coordinator: This process as a worker in ZooKeeper; `None` without.
    """

    def __init__(self, connections: Connections, listener: Listener, coordinator: Coordinator | None = None) -> None:
        topic = listener.topic
        self.listener = listener
        blocking = connections.blocking
        self.stopping = blocking.event()
        self._coordinator = coordinator
        self._upkeep: Upkeep | None = None
        source: SlotWriter | GroupSlots
        if listener.group is None:
            source = SlotWriter(connections, topic)
        else:
            source = join_group(connections, topic, listener.group, listener.start)
            self._upkeep = Upkeep(
                StreamWriter(connections, topic), listener.group, self._slots, self.stopping, blocking
            )
        workers = self._workers_wanted()
        if coordinator is None:
            self._claimers = [Claimer(connections, topic, range(topic.slots), source=source)]
            shared = self._claimers * workers
        else:
            shared = self._claimers = [Claimer(connections, topic, (), self._may_claim, source) for _ in range(workers)]
        self._workers = [self._new_worker(claimer, number) for number, claimer in enumerate(shared)]
        self._gate: Gate | None = None
        self._spread: dict[int, int] = {}
        self._keeper = LeaseKeeper(source, [worker.held for worker in self._workers], self._lost, blocking)
        self._watcher = blocking.job(self._watch, f"rmq-watch-{topic.name}")
        self._releaser = blocking.job(self._release, f"rmq-release-{topic.name}")
        self._hints = HintReader(connections, topic.name, range(topic.slots))

    def take_turns(self, turns: Turns) -> None:
        """Let the threads wait for turns, if their number is limited; before `start`."""
        listener = self.listener
        if turns.shared or listener.adaptive is not None:
            self._gate = turns.gate(listener.weight, listener.adaptive, listener.threads)
            for worker in self._workers:
                worker.gate = self._gate

    def observe(self, observers: Observers) -> None:
        """Let others watch the handlers; before `start`."""
        for worker in self._workers:
            worker.observers = observers

    def start(self) -> None:
        """Start claiming."""
        for thread in (self._watcher, self._keeper, *self._workers):
            thread.start()
        if self._upkeep is not None:
            self._upkeep.start()

    def _workers_wanted(self) -> int:
        return self.listener.threads

    def _new_worker(self, claimer: Claimer, number: int) -> Worker:
        return Worker(self.listener, claimer, self.stopping, self._coordinator, number)

    def _slots(self) -> Collection[int]:
        """Return the slots to look after: those that this process owns, without ZooKeeper all."""
        if self._coordinator is None:
            return range(self.listener.topic.slots)
        return [slot for place, slot in self._coordinator.owned() if place == self.listener.place]

    def census(self) -> Counts:
        """Return what it does at the moment."""
        held = [delivery for worker in self._workers for delivery in worker.held.all()]
        return Counts(
            self._slots(),
            {delivery.slot for delivery in held},
            len(held),
            sum(worker.handled for worker in self._workers),
            sum(worker.failed for worker in self._workers),
        )

    def request_stop(self) -> None:
        """Stop claiming, and give back at once what was claimed and not begun. Does not wait."""
        self.stopping.set()
        for claimer in self._claimers:
            claimer.wake_all()
        self._releaser.start()

    def join(self, until_s: float) -> list[Delivery]:
        """Wait for running handlers until a moment of `monotonic_s`.

        Returns:
            The deliveries whose handlers still run; they stay claimed until their lease ends.
        """
        upkeep = [] if self._upkeep is None else [self._upkeep]
        for thread in (self._releaser, *self._workers, self._watcher, *upkeep):
            thread.join(max(0.0, until_s - monotonic_s()))
        self._keeper.stop()
        return [delivery for worker in self._workers if worker.is_alive() for delivery in worker.held.all()]

    def _release(self) -> None:
        """Give back what was not begun; a thread of its own, since Redis may keep it waiting longer than a stop may."""
        for worker in self._workers:
            worker.release_waiting()

    def _lost(self, delivery: Delivery) -> None:
        if self.listener.on_lost is not None:
            try:
                self.listener.on_lost(delivery)
            except Exception:
                log.exception("on_lost of topic %s failed", self.listener.topic.name)

    def refresh_ownership(self) -> None:
        """Claim from exactly the slots that this process owns now, and hand over those that are asked back."""
        coordinator = self._coordinator
        if coordinator is None:
            return
        name = self.listener.place
        owned = {
            slot: Owner(ownership.epoch, ownership.ensemble)
            for (topic, slot), ownership in coordinator.owned().items()
            if topic == name
        }
        revoking = {slot for topic, slot in coordinator.revoking() if topic == name}
        present = owned.keys() | revoking
        self._spread = spread_slots(present | self._lingering(present), len(self._claimers), self._spread)
        for number, claimer in enumerate(self._claimers):
            claimer.set_owned({slot: owner for slot, owner in owned.items() if self._spread[slot] == number})
        for slot in revoking:
            if self._workers[self._spread[slot]].has_left(slot):
                coordinator.drained(name, slot)

    def _lingering(self, present: Collection[int]) -> set[int]:
        """Return the slots that are gone and may still have a handler here.

        They keep their thread: a broken connection to ZooKeeper takes all slots away and gives them back a moment
        later, and another thread would then run beside the one that is still at it.
        """
        gone = {slot: number for slot, number in self._spread.items() if slot not in present}
        busy = {number: self._workers[number].slots_held() for number in set(gone.values())}
        return {slot for slot, number in gone.items() if slot in busy[number]}

    def _may_claim(self, slot: int, owner: Owner) -> bool:
        if self._coordinator is None:
            return True
        ownership = self._coordinator.owned().get((self.listener.place, slot))
        return ownership is not None and ownership.epoch == owner.epoch

    def _watch(self) -> None:
        """Hear hints, and look by itself every second or so."""
        next_look_s = 0.0
        while not self.stopping.is_set():
            try:
                hints = self._hints.read(0.25)
                if self._gate is not None:
                    self._gate.decide()
                for worker in self._workers:
                    worker.relieve()
                for claimer in self._claimers:
                    claimer.take_hints(hints)
                if hints.missed or monotonic_s() >= next_look_s:
                    next_look_s = monotonic_s() + LOOK_EVERY_S
                    for claimer in self._claimers:
                        claimer.look()
                if not self._hints.connected:
                    self.stopping.wait(0.25)
            except Exception as error:
                log.warning("topic %s: looking for work failed: %s", self.listener.topic.name, error)
                self.stopping.wait(TROUBLE_PAUSE_S)
        self._hints.close()


class Coordination(Background):
    """Keeps the runtimes of one process in line with what it owns.

    Args:
        coordinator: This process as a worker in ZooKeeper.
        runtimes: Its listeners at work.
        blocking: How to wait.

    Level-triggered: it acts on every change that the coordinator reports, and looks by itself several times a second.
    """

    def __init__(self, coordinator: Coordinator, runtimes: Sequence[ListenerRuntime], blocking: Blocking) -> None:
        super().__init__(blocking, "rmq-ownership")
        self._blocking = blocking
        self._coordinator = coordinator
        self._runtimes = list(runtimes)
        self._changed = blocking.event()
        self._stop_requested = blocking.event()

    @property
    def ensemble(self) -> str:
        """Identity of the ensemble; empty until it was read."""
        return self._coordinator.ensemble or ""

    def start(self) -> None:
        """Join the cluster, then follow what it gives us.

        Raises:
            CoordinationError: ZooKeeper does not answer, or the login is refused.
            TopicMismatchError: A topic is registered there with another type or number of slots.
            InvalidValueError: Two listeners of one topic.
        """
        for name, number in Counter(runtime.listener.place for runtime in self._runtimes).items():
            if number > 1:
                raise InvalidValueError(
                    f"topic {name} has {number} listeners; with ZooKeeper each slot belongs to one thread, so give one "
                    "listener more threads",
                    topic=name,
                )
        self._coordinator.on_change = self._changed.set
        self._blocking.call(self._coordinator.start)
        try:
            for runtime in self._runtimes:
                self._enter(runtime.listener.place, runtime.listener.topic)
        except BaseException:
            self._blocking.call(self._coordinator.stop, drain=False)
            raise
        super().start()

    def run(self) -> None:
        """Follow every change until `stop`."""
        while not self._stop_requested.is_set():
            self._changed.clear()
            for runtime in self._runtimes:
                try:
                    runtime.refresh_ownership()
                except Exception:  # whatever it is, the next round comes
                    log.exception("topic %s: following the ownership failed", runtime.listener.topic.name)
            self._changed.wait(FOLLOW_EVERY_S)

    def leave(self) -> None:
        """Begin to hand over the slots, so that others need not wait for the longest handler here. Does not wait."""
        self._coordinator.leave()

    def stop(self) -> None:
        """Give up all slots and leave the cluster. The runtimes have stopped before, or have used up their time."""
        self._stop_requested.set()
        self._changed.set()
        self.join()
        self._blocking.call(self._coordinator.stop, drain=False)

    def _enter(self, place: str, topic: Topic) -> None:
        registered = Topic.from_json(self._blocking.call(self._coordinator.register_topic, place, topic.to_json()))
        if (registered.type, registered.slots) != (topic.type, topic.slots):
            raise TopicMismatchError(
                f"topic {topic.name} is registered in ZooKeeper as {registered.type.name} with {registered.slots} "
                f"slots, not as {topic.type.name} with {topic.slots}; type and slots can't be changed",
                topic=topic.name,
            )
        self._coordinator.consume(place, topic.slots)
