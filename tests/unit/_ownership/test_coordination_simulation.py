"""Thousands of random histories of workers around a simulated ZooKeeper: no I/O, every history replayable by its seed.

The rounds, the machine and the leader are the real ones; simulated are ZooKeeper (sessions, ephemeral nodes, czxids,
watches), the network (delays, lost requests, lost replies, lost watches), the processes (pauses, crashes, restarts
under the same name, clocks that run at different speeds) and a store that fences.
"""

from __future__ import annotations

import heapq
import os
import subprocess
import sys
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from rmq._ownership.assignment import Assignment
from rmq._ownership.machine import WorkerMachine
from rmq._ownership.member import Member
from rmq._ownership.requests import UNKNOWN, Reply, Request
from rmq._ownership.values import (
    ASSIGNMENT,
    ENSEMBLE,
    OWNERS,
    TOPICS,
    SlotKey,
    WorkerDocument,
    owner_path,
    owners_path,
    topic_path,
)
from tests.support.simulated_zookeeper import SimulatedZooKeeper

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SESSION_S = 10.0
DRAIN_S = 4.0
ROUND_S = SESSION_S / 2.5
FAULTS_S = 15.0
HISTORIES = 10_000 if os.environ.get("RMQ_HYPOTHESIS_PROFILE") == "long" else 3_000
PROCESSES = max(2, os.cpu_count() or 2)


class SimulatedStore:
    """A slot store that refuses lower epochs, as the scripts do, and remembers who wrote."""

    def __init__(self) -> None:
        self.epochs: dict[SlotKey, int] = {}
        self.writers: dict[tuple[SlotKey, int], int] = {}
        self.refused = 0

    def write(self, key: SlotKey, epoch: int, incarnation: int) -> None:
        if epoch < self.epochs.get(key, 0):
            self.refused += 1
            return
        self.epochs[key] = epoch
        assert self.writers.setdefault((key, epoch), incarnation) == incarnation, "two writers with one epoch"


class SimulatedWorker:
    """One process (an incarnation of a worker) with its connection."""

    def __init__(self, world: World, name: str, topics: dict[str, int]) -> None:
        self.world, self.name, self.random = world, name, world.random
        world.incarnations += 1
        self.incarnation = world.incarnations
        self.rate, self.offset = self.random.uniform(0.95, 1.05), self.random.uniform(0, 1000)
        self.machine = WorkerMachine(SESSION_S, DRAIN_S, self.random.choice((0, 0, 2)))
        self.member = Member(name, WorkerDocument(topics), self.machine, self.clock)
        self.member.lists_own = self.incarnation % 2 == 0  # as with Redis
        self.member.definitions = {topic: definition(slots) for topic, slots in topics.items()}
        self.session: int | None = None
        self.connected = False
        self.alive = True
        self.busy = False
        self.woken = False
        self.paused_until = 0.0
        self.after(0, self.connect)
        self.after(self.random.uniform(0, ROUND_S), self.tick)

    def clock(self) -> float:
        return self.offset + self.world.now * self.rate

    def after(self, delay: float, action: Callable[..., None], *args: Any) -> None:
        self.world.at(self.world.now + delay, self.run, action, args)

    def run(self, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        """Run in this process: not at all once it is dead, later while it is paused."""
        if not self.alive:
            return
        if self.world.now < self.paused_until:
            self.world.at(self.paused_until, self.run, action, args)
            return
        action(*args)
        self.machine.expire(self.clock())
        self.check()

    def check(self) -> None:
        """What a running process believes to own is, at this very moment, its own in ZooKeeper."""
        zookeeper = self.world.zookeeper
        zookeeper.expire(self.world.now)
        for key, epoch in self.machine.owned(self.clock()).items():
            if (owner_path(key), epoch) not in zookeeper.deleted:
                _, stat = zookeeper.nodes[owner_path(key)]
                assert (stat.session, stat.czxid) == (self.session, epoch)
            assert self.world.holders.setdefault((key, epoch), self.incarnation) == self.incarnation

    def connect(self) -> None:
        if self.random.random() < self.world.trouble:
            self.after(self.random.uniform(0.1, 3), self.connect)
            return
        session = self.world.zookeeper.connect(self.session, self.world.now)
        self.session, self.connected = session, True
        self.after(self.random.uniform(0, 0.2), self.round)

    def tick(self) -> None:
        self.round()
        for key in self.machine.revoking():
            if self.random.random() < 0.8:
                self.machine.drained(key)
        for key, epoch in self.machine.owned(self.clock()).items():
            self.after(self.random.uniform(0, 0.5), self.write, key, epoch)  # late if the process pauses in between
        self.after(ROUND_S, self.tick)

    def write(self, key: SlotKey, epoch: int) -> None:
        """Send what was decided a while ago; the network may hold it up as well."""
        delay = self.random.uniform(0, 3 * SESSION_S) if self.random.random() < 0.2 else 0.01
        self.world.at(self.world.now + delay, self.world.store.write, key, epoch, self.incarnation)

    def wake(self) -> None:
        """A watch fires; some are lost."""
        if self.alive and not self.woken and self.random.random() >= self.world.trouble:
            self.woken = True
            self.after(self.random.uniform(0.01, 0.5), self.round)

    def round(self) -> None:
        if self.busy or not self.connected or self.session is None:
            return
        self.woken = False
        self.busy = True
        self.send(self.member.round(self.session), self.session, None)

    def send(self, steps: Any, session: int, replies: Sequence[Reply] | None) -> None:
        try:
            requests = steps.send(replies)
        except StopIteration:
            self.busy = False
            if self.woken:
                self.after(0.01, self.round)
            return
        breaks = self.random.random() < self.world.trouble
        received = self.random.randint(0, len(requests)) if breaks else len(requests)
        self.world.at(
            self.world.now + self.random.uniform(0, 0.02), self.arrive, steps, session, requests, received, breaks
        )

    def arrive(self, steps: Any, session: int, requests: Sequence[Request], received: int, breaks: bool) -> None:
        """In ZooKeeper: the process may be dead or paused by now, the requests are under way all the same."""
        zookeeper = self.world.zookeeper
        zookeeper.expire(self.world.now)
        replies: list[Reply] = [UNKNOWN] * len(requests)
        if session in zookeeper.touched and session == self.session:
            if received:
                zookeeper.touched[session] = self.world.now
            for index in range(received):
                replies[index] = zookeeper.carry_out(requests[index], session, self.wake)
        else:
            breaks = True
        if breaks:  # some of what was carried out is not heard of
            heard = self.random.randint(0, received)
            replies[heard:] = [UNKNOWN] * (len(requests) - heard)
            self.after(self.random.uniform(0.01, SESSION_S / 2), self.broken, steps, session, replies)
        else:
            self.after(self.random.uniform(0, 0.02), self.send, steps, session, replies)

    def broken(self, steps: Any, session: int, replies: Sequence[Reply]) -> None:
        self.connected = False
        self.machine.suspended()
        self.send_rest(steps, replies)
        self.after(self.random.uniform(0, 1 if self.random.random() < 0.7 else SESSION_S), self.connect)

    def send_rest(self, steps: Any, replies: Sequence[Reply]) -> None:
        """Tell the round what is known; it goes no further without a connection."""
        while replies:
            replies = [UNKNOWN] * len(next_batch(steps, replies))
        self.busy = False


def definition(slots: int) -> bytes:
    return f'{{"slots":{slots},"version":4,"min_reader":4}}'.encode()


def next_batch(steps: Any, replies: Sequence[Reply]) -> Sequence[Request]:
    try:
        return steps.send(replies)
    except StopIteration:
        return ()


class World:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.trouble = self.random.choice((0.02, 0.1, 0.25))
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.sequence = 0
        self.incarnations = 0
        self.holders: dict[tuple[SlotKey, int], int] = {}
        self.zookeeper = SimulatedZooKeeper(SESSION_S)
        self.store = SimulatedStore()
        self.topics = {"a": self.random.choice((1, 2, 4)), "b": 1}
        for topic, slots in self.topics.items():
            self.zookeeper.create(topic_path(topic), definition(slots), 0)
            self.zookeeper.create(owners_path(topic), b"", 0)
        self.workers: dict[str, SimulatedWorker] = {}

    def at(self, time: float, action: Callable[..., None], *args: Any) -> None:
        self.sequence += 1
        heapq.heappush(self.events, (time, self.sequence, action, args))

    def run(self) -> None:
        for number in range(self.random.choice((2, 2, 3))):
            self.at(self.random.uniform(0, 4), self.start, f"w{number}")
        for _ in range(self.random.randint(1, 4)):
            self.at(self.random.uniform(3, FAULTS_S), self.random.choice((self.crash, self.pause, self.cut, self.lose)))
        self.run_until(FAULTS_S)
        self.trouble = 0.0
        limit = FAULTS_S + 3 * SESSION_S + DRAIN_S  # the last pause, the session, the hand-over
        while not self.settled():
            assert self.now < limit, f"not settled: {self.zookeeper.nodes}"
            self.run_until(self.now + 1)
        self.deliver_late_writes()

    def deliver_late_writes(self) -> None:
        """Once the last owners have written, whatever older ones sent comes to nothing."""
        last: dict[SlotKey, int] = {}
        for worker in self.workers.values():
            for key, epoch in worker.machine.owned(worker.clock()).items() if worker.alive else ():
                self.store.write(key, epoch, worker.incarnation)
                last[key] = epoch
        for _, _, action, args in self.events:
            if action == self.store.write:
                action(*args)
        assert last.items() <= self.store.epochs.items()

    def run_until(self, end: float) -> None:
        while self.events and self.events[0][0] <= end:
            self.now, _, action, args = heapq.heappop(self.events)
            action(*args)
        self.now = end

    def start(self, name: str) -> None:
        topics = dict(self.topics)
        if name == "w1" and self.random.random() < 0.3:
            del topics["b"]
        self.workers[name] = SimulatedWorker(self, name, topics)

    def any_worker(self) -> SimulatedWorker | None:
        return self.workers[self.random.choice(sorted(self.workers))] if self.workers else None

    def crash(self) -> None:
        worker = self.any_worker()
        if worker and worker.alive:
            worker.alive = False
            self.at(self.now + self.random.uniform(0.1, SESSION_S), self.start, worker.name)

    def pause(self) -> None:
        worker = self.any_worker()
        if worker:
            worker.paused_until = self.now + SESSION_S * self.random.choice((0.3, 0.7, 1.1, 1.6))

    def cut(self) -> None:
        """The connection of one worker breaks for a while, without its noticing at first."""
        worker = self.any_worker()
        if worker and worker.connected and not worker.busy:
            worker.connected = False
            worker.after(SESSION_S / 2, worker.machine.suspended)
            worker.after(SESSION_S * self.random.choice((0.5, 0.9, 1.5)), worker.connect)

    def lose(self) -> None:
        """Somebody deletes a node, and all below it."""
        topic = self.random.choice(sorted(self.topics))
        path = self.random.choice((TOPICS, OWNERS, topic_path(topic), owners_path(topic), ENSEMBLE, ASSIGNMENT))
        for node in sorted(self.zookeeper.nodes, reverse=True):  # children first
            if node == path or node.startswith(f"{path}/"):
                self.zookeeper.deleted.add((node, self.zookeeper.nodes[node][1].czxid))
                self.zookeeper.delete(node)

    def settled(self) -> bool:
        """Every slot is owned, by whom the assignment says, and the owners know it."""
        live = [worker for worker in self.workers.values() if worker.alive]
        node = self.zookeeper.nodes.get("/assignment")
        if not live or node is None:
            return False
        assignment = Assignment.from_json(node[0])
        for worker in live:
            owned = worker.machine.owned(worker.clock())
            if self.now < worker.paused_until or assignment.of(worker.name, self.topics) != owned.keys():
                return False
        consumed = {topic for worker in live for topic in worker.member.document.topics}
        names = {worker.name for worker in live}
        return all(names.issuperset(assignment.topics.get(topic, (None,))) for topic in consumed)


def run_histories(seeds: range) -> None:
    for seed in seeds:
        world = World(seed)
        try:
            world.run()
        except BaseException as error:
            error.add_note(f"seed {seed} at {world.now:.2f} s")
            raise


@pytest.mark.slow
def test_random_histories() -> None:
    run_histories(range(200))


@pytest.mark.slow
@pytest.mark.hypothesis
@pytest.mark.timeout(900)  # ten seconds by itself; `make test-long` runs more than three times as many
def test_thousands_of_random_histories() -> None:
    """In processes of their own, which do not measure coverage: that takes longer than the histories."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(start), str(PROCESSES)], env=environment, stderr=subprocess.PIPE, text=True
        )
        for start in range(PROCESSES)
    ]
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode == 0, errors


@pytest.mark.slow
def test_the_histories_have_it_all() -> None:
    """The simulation is worth its time: late writes are fenced, slots change hands, processes come back."""
    worlds = [World(seed) for seed in range(200)]
    for world in worlds:
        world.run()
    assert sum(world.store.refused for world in worlds) > 20
    assert sum(len(world.holders) for world in worlds) > 200 * 4
    assert sum(world.incarnations - len(world.workers) for world in worlds) > 50


if __name__ == "__main__":
    first, step = map(int, sys.argv[1:])
    run_histories(range(first, HISTORIES, step))
