"""The servers of a history: one Redis, or a cluster of two masters. They write each change to disk, then answer."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import redis

from tests.histories.journal import Journal, now_s
from tests.histories.topics import SLOTS, topics
from tests.support.core import slot_keys
from tests.support.servers import RedisServer
from tests.support.topologies import RedisClusterServers

DURABLE = ("appendonly yes", "appendfsync always", "aof-use-rdb-preamble yes")


class Servers(Protocol):
    """What a history runs on."""

    url: str
    servers: list[RedisServer]

    def note_holders(self) -> None:
        """Write down which node holds which slot."""
        ...

    def move(self, chance: random.Random) -> str:
        """Move a slot to another node, if there is one; return what was done."""
        ...

    def stop(self) -> None:
        """End all servers."""
        ...


class Alone:
    """One Redis."""

    def __init__(self, journal: Journal, binary: Path | None) -> None:
        self.servers = [RedisServer(DURABLE, binary=binary)]
        self.url = self.servers[0].url
        self._journal = journal

    def note_holders(self) -> None:
        """Write down that the only node holds all slots."""
        for topic in topics():
            for slot in range(SLOTS):
                self._journal.write("shard", 0.0, topic.name, slot, 0)

    def move(self, chance: random.Random) -> str:
        """Do nothing: there is nowhere to move a slot to."""
        del chance
        return ""

    def stop(self) -> None:
        """End it."""
        self.servers[0].stop()


class Cluster:
    """A Redis Cluster of two masters."""

    def __init__(self, journal: Journal, binary: Path | None) -> None:
        self._cluster = RedisClusterServers(2, 0, config=DURABLE, binary=binary)
        self.servers = self._cluster.servers
        self.url = self._cluster.url
        self._journal = journal

    def note_holders(self) -> None:
        """Write down which node holds which slot."""
        for topic in topics():
            for slot in range(SLOTS):
                self._note(0.0, topic.name, slot, self._cluster.owner(slot_keys(topic.name, slot).store))

    def move(self, chance: random.Random) -> str:
        """Move a slot's keys to the other node, one by one, while all goes on."""
        topic, slot = chance.choice(topics()).name, chance.randrange(SLOTS)
        key = slot_keys(topic, slot).store
        source = self._cluster.owner(key)
        target = next(server for server in self.servers if server is not source)
        self._cluster.move(key, target)
        self._note(now_s(), topic, slot, target)
        return f"slot {slot} of {topic} moves to {target.port}"

    def stop(self) -> None:
        """End all nodes."""
        self._cluster.stop()

    def _note(self, at_s: float, topic: str, slot: int, server: RedisServer) -> None:
        self._journal.write("shard", at_s, topic, slot, self.servers.index(server))


def make(kind: str, journal: Journal) -> Servers:
    """Start what a name stands for.

    Args:
        kind: `cluster` or `alone`, on the program that RMQ_TEST_REDIS chooses; with `=PATH` behind it on that one.
        journal: Where moves are written down.
    """
    name, _, program = kind.partition("=")
    make_one: dict[str, Callable[[Journal, Path | None], Servers]] = {"alone": Alone, "cluster": Cluster}
    servers = make_one[name](journal, Path(program) if program else None)
    servers.note_holders()
    return servers


def each_node(servers: Servers, *command: str) -> None:
    """Send a command to every node that answers."""
    for server in servers.servers:
        with suppress(redis.RedisError, RuntimeError), server.connect() as client:
            client.execute_command(*command)
