"""A simulated ZooKeeper ensemble, and the client that the coordinator gets in place of kazoo's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from rmq import Coordinator, RedisOwners
from rmq._ownership.redis_keeper import RedisCoordinator
from rmq._ownership.requests import UNKNOWN, Reply, Request
from tests.simulation.backend import Simulated
from tests.simulation.world import Process, World
from tests.support.core import parse_url
from tests.support.simulated_zookeeper import SimulatedZooKeeper

Told = Callable[[], None]

SESSION_S = 6.0
MOST_TRAVEL_S = 0.005
LOST_WATCHES = 0.05
"""So many watches do not fire: they may get lost when a connection moves to another server."""


class Ensemble:
    """The nodes and sessions, and who reaches them.

    Args:
        world: The scheduler and the clock.
        seed: What travelling times are drawn from.
        session_s: The session timeout.
    """

    def __init__(self, world: World, seed: int, session_s: float = SESSION_S) -> None:
        self.world = world
        self.session_s = session_s
        self.nodes = SimulatedZooKeeper(session_s)
        self.chance = Random(f"zookeeper {seed}")
        self.down = False
        self._stalls: dict[str, float] = {}
        self._clients: list[SimulatedClient] = []

    def begin(self) -> None:
        """Let sessions expire by themselves."""
        if not self.down:
            self.nodes.expire(self.world.now_s)
        self.world.at(self.session_s / 20, self.begin)

    def travel_s(self) -> float:
        """Draw how long a message travels."""
        return MOST_TRAVEL_S * self.chance.random()

    def stall(self, name: str, for_s: float) -> None:
        """Let nothing travel from and to a process for so long."""
        self._stalls[name] = self.world.now_s + for_s

    def unreachable(self, process: Process) -> bool:
        """Return whether nothing travels from and to a process at present."""
        return self.down or self._stalls.get(process.name, 0.0) > self.world.now_s

    def expire(self, name: str) -> None:
        """End the session of a process, as an operator can."""
        for client in self._clients:
            if client.process.name == name and client.session in self.nodes.touched:
                self.nodes.touched[client.session] = float("-inf")
        self.nodes.expire(self.world.now_s)

    def stop(self) -> None:
        """Stop answering."""
        self.down = True

    def start(self) -> None:
        """Answer again; all sessions that were there begin anew, as after the election of a leader."""
        self.down = False
        for session in self.nodes.touched:
            self.nodes.touched[session] = self.world.now_s

    def heal(self) -> None:
        """Let everything travel again."""
        if self.down:
            self.start()
        self._stalls.clear()

    def add(self, client: SimulatedClient) -> None:
        """Know a client."""
        self._clients.append(client)


class SimulatedClient:
    """One session after another; as `rmq._ownership.zookeeper.ZooKeeperClient` looks to the coordinator."""

    name = "ZooKeeper"
    refusal: str | None = None
    refused = False

    def __init__(self, ensemble: Ensemble, process: Process, wake: Told, broken: Told) -> None:
        self.session: int | None = None
        self.session_timeout_s = ensemble.session_s
        self.process = process
        self._world = ensemble.world
        self._ensemble = ensemble
        self._wake = wake
        self._broken = broken
        self._identity: int | None = None
        self._heard_s = 0.0
        self._running = False
        ensemble.add(self)

    def start(self) -> None:
        self._running = True
        self._world.spawn(self.process, self._keep, "zookeeper")

    def stop(self) -> None:
        self._running = False
        session, self.session = self.session, None
        nodes = self._ensemble.nodes
        if session in nodes.touched and not self._ensemble.unreachable(self.process):
            nodes.touched[session] = float("-inf")
            nodes.expire(self._world.now_s)

    def renew(self) -> None: ...

    def ensure_chroot(self) -> None: ...

    def carry_out(
        self, session: int, requests: Sequence[Request], heard: Callable[[float], None] | None = None
    ) -> list[Reply]:
        world, ensemble = self._world, self._ensemble
        if self.session != session:
            return [UNKNOWN] * len(requests)
        sent_s = world.now_s
        if not self._reach(session):
            return [UNKNOWN] * len(requests)
        # a request is carried out although the process is paused, or cut off, before it hears of that
        replies = [ensemble.nodes.carry_out(request, session, self._fire) for request in requests]
        world.sleep(ensemble.travel_s())
        if ensemble.unreachable(self.process):
            self._lose()
        if self.session != session:
            return [UNKNOWN] * len(requests)
        self._heard_s = world.now_s
        if heard is not None and requests:
            heard(sent_s)
        return replies

    def _reach(self, session: int) -> bool:
        """Let requests travel; return whether they have arrived in their session."""
        world, ensemble = self._world, self._ensemble
        world.sleep(ensemble.travel_s())
        until_s = world.now_s + ensemble.session_s / 3
        while ensemble.unreachable(self.process) and world.now_s < until_s:
            world.sleep(ensemble.session_s / 30)
        ensemble.nodes.expire(world.now_s)
        if ensemble.unreachable(self.process) or session not in ensemble.nodes.touched:
            self._lose()
            return False
        if self.session != session:
            return False
        ensemble.nodes.touched[session] = world.now_s
        return True

    def _fire(self) -> None:
        """A watch fires; the client hears of it a little later, if at all."""
        ensemble, session = self._ensemble, self.session

        def hear() -> None:
            if self.session == session and not self.process.dead and not ensemble.unreachable(self.process):
                self._wake()

        if ensemble.chance.random() >= LOST_WATCHES:
            ensemble.world.at(ensemble.travel_s(), hear)

    def _lose(self) -> None:
        if self.session is not None:
            self.session = None
            self._broken()
            self._wake()

    def _keep(self) -> None:
        """Connect, ping, notice silence and connect again, as kazoo's thread does."""
        world, ensemble = self._world, self._ensemble
        while self._running:
            if self.session is None:
                if not ensemble.unreachable(self.process):
                    world.sleep(ensemble.travel_s())
                    self._identity = ensemble.nodes.connect(self._identity, world.now_s)
                    world.sleep(ensemble.travel_s())
                    self.session, self._heard_s = self._identity, world.now_s
                    self._wake()
            elif ensemble.unreachable(self.process):
                if world.now_s - self._heard_s > ensemble.session_s * 2 / 3:
                    self._lose()
            elif self.session not in ensemble.nodes.touched:
                self._lose()
            else:
                ensemble.nodes.touched[self.session] = world.now_s
                self._heard_s = world.now_s
            world.sleep(ensemble.session_s / 12)


def keeps_owners_in_redis(seed: int) -> bool:
    """Draw what keeps the owners of a plan: Redis, with the real script and client, or the simulated ZooKeeper."""
    return Random(f"keeper {seed}").random() < 0.5


def new_redis_coordinator(ensemble: Ensemble, backend: Simulated, worker: str) -> Coordinator:
    """Return a coordinator that keeps owners in Redis: the real one, whose waits are simulated."""
    kind = type("SimulatedRedisCoordinator", (RedisCoordinator,), {"_runtime": backend})
    return kind(parse_url("redis://simulated"), RedisOwners(ensemble.session_s, worker))


def new_coordinator(ensemble: Ensemble, backend: Simulated, worker: str) -> Coordinator:
    """Return a coordinator: the real one, whose waits and whose ZooKeeper are simulated."""

    def client(hosts: str, chroot: str, session_s: float, wake: Any, broken: Any, **options: Any) -> SimulatedClient:
        del hosts, chroot, session_s, options
        return SimulatedClient(ensemble, backend.process, wake, broken)

    kind = type("SimulatedCoordinator", (Coordinator,), {"_runtime": backend, "_client_class": staticmethod(client)})
    return kind("simulated", worker, session_timeout_s=ensemble.session_s)
