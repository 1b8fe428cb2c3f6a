"""Workers that have little to do, under virtual time: what they cost the real Redis, and when messages arrive."""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from rmq import Delivery, RmqClient, Topic, TopicType
from tests.simulation.backend import Simulated
from tests.simulation.network import Network
from tests.simulation.server import CONFIG, Server
from tests.simulation.virtual import inhabit, simulated_scripts, virtual
from tests.simulation.world import Process, World
from tests.simulation.zookeeper import Ensemble, new_coordinator
from tests.support.core import Message
from tests.support.servers import RedisServer

GROUP = "group"

OF_THE_SIMULATION = frozenset({"set", "ping", "info", "config|get", "client|setinfo"})
"""Commands that the simulation itself sends. A listener's PING and SUBSCRIBE do not reach the real server."""


class Idling:
    """A world of workers and one producer.

    Args:
        server: The real Redis.
        owned: Whether there is a ZooKeeper.
    """

    def __init__(self, server: Server, *, owned: bool = False) -> None:
        self.server = server
        self.world = World(1)
        self.network = Network(self.world, server, 1)
        self.ensemble = Ensemble(self.world, 1) if owned else None
        self.arrived: list[tuple[str, float]] = []
        """Contents, and when their handlers began, in seconds since the beginning."""
        self.hang: Callable[[str], object] | None = None
        """Called by each handler with the name of its process, before the message counts as arrived."""
        self.clients: list[RmqClient] = []

    def worker(self, name: str, topics: Sequence[Topic], idle: str, threads: int = 1) -> None:
        """Start a process that listens."""
        process = self.world.process(name)

        def work() -> None:
            client = self._client(process)
            for topic in topics:
                group = GROUP if topic.type is TopicType.STREAM else None
                client.listener(topic, threads=threads, group=group)(lambda each: self._handle(name, each))
            client.start(idle=idle)

        self.world.spawn(process, work, "main")

    def send(self, topic: Topic, message: Message) -> None:
        """Send a message at the present time."""
        process = self.world.process("producer")
        self.world.spawn(process, lambda: self._client(process, owned=False).producer(topic).send(message), "send")

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.world.run(self.world.elapsed_s + seconds)

    def spent(self, seconds: float) -> tuple[int, int]:
        """Let time pass; return how many commands were sent meanwhile, and how many were carried out.

        The second number also has what was carried out inside of scripts, and not what waits in subscriptions.
        """
        sent, done = self.network.sent.total(), self._carried_out()
        self.run(seconds)
        return self.network.sent.total() - sent, (self._carried_out() - done).total()

    def spent_on(self, command: str, seconds: float) -> int:
        """Let time pass; return how often a command was carried out meanwhile, inside of scripts, too."""
        done = self._carried_out()
        self.run(seconds)
        return (self._carried_out() - done)[command]

    def waited(self, content: str, since_s: float) -> float:
        """Return how long after a time a content has arrived; it must have arrived once."""
        [at_s] = [at_s for arrived, at_s in self.arrived if arrived == content]
        return at_s - since_s

    def _carried_out(self) -> Counter[str]:
        with self.server.redis.connect() as client:
            stats = cast("dict[str, Any]", client.info("commandstats"))
        counts = {name.removeprefix("cmdstat_"): int(each["calls"]) for name, each in stats.items()}
        of_workers = {name: calls for name, calls in counts.items() if name not in OF_THE_SIMULATION}
        return Counter(of_workers | {"info": self.network.infos}) - self.server.ticks

    def _handle(self, process: str, delivery: Delivery) -> None:
        if self.hang is not None:
            self.hang(process)
        self.arrived.append((delivery.text, self.world.elapsed_s))

    def _client(self, process: Process, *, owned: bool = True) -> RmqClient:
        backend = Simulated(self.world, process, self.network)
        kind = type("SimulatedClient", (RmqClient,), {"_runtime": backend})
        coordinator = None
        if self.ensemble is not None and owned:
            coordinator = new_coordinator(self.ensemble, backend, process.name)
        client = kind("redis://simulated", zookeeper=coordinator, timeout_s=2.0, deadline_s=8.0)
        self.clients.append(client)
        return client


@contextmanager
def idling(*, owned: bool = False, prepare: Callable[[Server], object] = lambda server: None) -> Iterator[Idling]:
    """Give a world of its own real Redis; `prepare` is called before anybody starts."""
    disabled, collecting = logging.root.manager.disable, gc.isenabled()
    scripts = simulated_scripts()
    with RedisServer(CONFIG, tcp=False, unix_socket=True) as redis, virtual(scripts):
        server = Server(redis, scripts)
        found = Idling(server, owned=owned)
        gc.disable()
        try:
            with inhabit(found.world, 1):
                server.begin(found.world, (), warm=True)
                prepare(server)
                if found.ensemble is not None:
                    found.ensemble.begin()
                yield found
                logging.disable(logging.CRITICAL)  # tasks end in the midst of what they do
                found.world.end()
        finally:
            logging.disable(disabled)
            if collecting:
                gc.enable()
            server.close()
