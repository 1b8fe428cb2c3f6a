"""Redis servers for measurements: alone, or several as a cluster; if asked, each with a replica.

They keep nothing on disk, unless further lines of redis.conf say so. The program is the one that an embedded server
would run: `RMQ_REDIS_SERVER`, the PATH, or a wheel's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import redis

from tests.support.core import Address, create_cluster, find_redis_server
from tests.support.servers import RedisServer
from tests.support.topologies import free_cluster_port
from tests.support.waiting import wait_until

DEFAULT_ENTRIES = 128
"""`zset-max-listpack-entries` as Redis and Valkey ship it."""

_AT_ONCE = "repl-diskless-sync-delay 0"
"""A replica gets its data at once, not 5 s after it has asked."""


@dataclass(frozen=True, slots=True)
class Servers:
    """One server, or the nodes of a cluster.

    Attributes:
        url: How RMQ reaches them.
        ports: Their TCP ports on 127.0.0.1.
        version: Redis' version.
        replica_ports: Ports of the replicas, one for each of the servers, or none.
    """

    url: str
    ports: tuple[int, ...]
    version: str
    replica_ports: tuple[int, ...] = ()

    @property
    def replicas(self) -> Servers:
        """The replicas, to be looked at."""
        return replace(self, ports=self.replica_ports, replica_ports=())

    @property
    def port(self) -> int:
        """The port of the only server, or of the first node."""
        return self.ports[0]

    def connect(self, index: int = 0) -> Any:
        """Return a redis-py client of one server."""
        return redis.Redis(host="127.0.0.1", port=self.ports[index])

    def connect_all(self) -> list[Any]:
        """Return a redis-py client of each server."""
        return [self.connect(index) for index in range(len(self.ports))]

    def keep_lists(self, entries: int = DEFAULT_ENTRIES) -> None:
        """Let sorted sets of up to so many members be lists; sets that are there stay what they are."""
        for client in self.connect_all():
            names = client.config_get("zset-max-*-entries")
            for name in names:  # a listpack; before 7.0 a ziplist; newer servers know both names
                client.config_set(name, entries)

    def flush(self) -> None:
        """Drop all data."""
        for client in self.connect_all():
            client.flushall()


@contextmanager
def some(nodes: int, *config: str, replicas: bool = False) -> Iterator[Servers]:
    """Run one server, or a cluster of so many primaries where `nodes` is more than one.

    Args:
        nodes: How many; they share the hash slots evenly.
        config: Further lines of redis.conf.
        replicas: Whether each has a replica, which is in step when this yields.
    """
    alone, binary = nodes == 1, Path(find_redis_server())
    lines = (*config, _AT_ONCE) if alone else (*config, _AT_ONCE, "cluster-enabled yes")
    with ExitStack() as stack:

        def start(*more: str) -> int:
            port = 0 if alone else free_cluster_port()
            return stack.enter_context(RedisServer((*lines, *more), port=port, binary=binary)).port

        ports = tuple(start() for _ in range(nodes))
        follow = [f"replicaof 127.0.0.1 {ports[0]}"] if alone else []
        followers = tuple(start(*follow) for _ in ports) if replicas else ()
        if not alone:
            masters, others = ([Address("127.0.0.1", port) for port in each] for each in (ports, followers))
            create_cluster(masters, others)
        addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
        found = Servers(f"redis://{addresses}/0" if alone else f"redis+cluster://{addresses}", ports, "", followers)
        wait_until(lambda: all(map(_in_step, found.replicas.connect_all())), message="replicas that are in step")
        yield replace(found, version=str(found.connect().info("server")["redis_version"]))


standalone = partial(some, 1)
"""Runs one server; the arguments are further lines of redis.conf."""


def server_version() -> str:
    """Return the version of the servers that are started."""
    with standalone() as servers:
        return servers.version


def _in_step(replica: Any) -> bool:
    return replica.info("replication").get("master_link_status") == "up"
