"""All that a campaign runs on, and its processes: started, watched, and ended together."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rmq import RmqClient
from tests.campaign.clocks import Clock, library
from tests.campaign.crew import Crew, Place
from tests.campaign.shards import Shards
from tests.campaign.topics import topics
from tests.histories.journal import Journal
from tests.support.link import Link
from tests.support.waiting import wait_until
from tests.support.zookeeper import Server, ZooKeeperEnsemble

WORKERS = 4
SENDERS = 2
TICK_MS = 300
OWNED_LIMIT_S = 90.0
DISK_MB = 192


@dataclass
class Stage:
    """Servers and processes.

    Attributes:
        shards: Redis.
        zookeeper: ZooKeeper; no servers where Redis keeps the owners.
        links: The ways of the first worker and the first producer to each server.
        crew: Workers and producers.
        disk: The small disk under the first Redis node, if there is one.
        journal: Where all is written down.
        client: For looking, and for what is done at the end.
    """

    shards: Shards
    zookeeper: ZooKeeperEnsemble
    links: dict[int, Link]
    crew: Crew
    disk: Path | None
    journal: Journal
    client: RmqClient

    def redis_links(self) -> list[Link]:
        return [self.links[server.port] for server in self.shards.servers]

    def zookeeper_links(self) -> list[Link]:
        return [self.links[server.port] for server in self.zookeeper.servers]

    def wait_owned(self) -> None:
        """Wait until each slot has an owner that lives and may claim."""
        wanted, since_s = sum(topic.slots for topic in topics()), time.time()
        wait_until(lambda: self.crew.owned(since_s) == wanted, OWNED_LIMIT_S, "all slots to have an owner")

    def wait_led(self) -> Server:
        """Wait until ZooKeeper has a leader; return it."""
        return wait_until(lambda: self.zookeeper.leader, OWNED_LIMIT_S, "ZooKeeper to have a leader")


@contextmanager
def small_disk() -> Iterator[Path | None]:
    """Give a folder on a small file system of its own; None where this process may not mount one."""
    folder = Path(tempfile.mkdtemp(prefix="rmq-disk-"))
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "none", str(folder)]
    mounted = shutil.which("mount") is not None and os.geteuid() == 0
    mounted = mounted and subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def stage(
    path: Path, folder: Path, chance: random.Random, per_second: float, *, elections: bool, owners: str
) -> Iterator[Stage]:
    """Start servers and processes, and wait until all slots have an owner.

    Args:
        path: Where events are written down.
        folder: For logs.
        chance: Draws the seeds of the processes.
        per_second: Messages a second of all producers together.
        elections: Whether Redis' nodes elect new masters by themselves.
        owners: What keeps the owners of slots: `zookeeper` or `redis`.
    """
    journal, in_redis = Journal(path), owners == "redis"
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk())
        zookeeper = stack.enter_context(ZooKeeperEnsemble(servers=0 if in_redis else 3, tick_ms=TICK_MS))
        shards = Shards(journal, elections, disk, keeps_owners=in_redis)
        stack.callback(shards.stop)
        stack.callback(shards.keep_logs, folder)
        servers = (*shards.servers, *zookeeper.servers)
        links = {server.port: stack.enter_context(Link(server.port)) for server in servers}
        options = {"url": shards.cluster.url, "hosts": zookeeper.hosts, "chroot": "/campaign"}
        crew = Crew(journal, path, folder, {**options, "per_second": per_second / SENDERS}, chance)
        stack.callback(crew.kill_all)
        client = stack.enter_context(RmqClient(shards.cluster.url, timeout_s=3.0, deadline_s=60.0))
        made = Stage(shards, zookeeper, links, crew, disk, journal, client)
        for topic in topics():
            client.producer(topic)  # so that the topic is registered before anybody asks for it
        crew.workers = [_place(folder, "worker", number, links) for number in range(WORKERS)]
        crew.senders = [_place(folder, "sender", number, links) for number in range(SENDERS)]
        for place in crew.workers:
            crew.start(place)
        made.wait_owned()
        for place in crew.senders:
            crew.start(place)
        yield made


def _place(folder: Path, module: str, number: int, links: dict[int, Link]) -> Place:
    """Return a place: the first one has links, the second one a clock of its own."""
    place = Place(f"{module} {number}", module)
    if number == 0:
        place.links = {str(port): link.port for port, link in links.items()}
    faketime = library()
    if number == 1 and faketime is not None:
        place.clock = Clock(folder / f"{module}.clock", faketime)
    return place
