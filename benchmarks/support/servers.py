"""Redis servers for measurements: alone on a free TCP port, or several as a cluster; if asked, each with a replica.

They keep nothing on disk, unless further lines of redis.conf say so. The program is the one that an embedded server
would run: `RMQ_REDIS_SERVER`, the PATH, or a wheel's.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import redis

from tests.support.core import find_redis_server

DEFAULT_ENTRIES = 128
"""`zset-max-listpack-entries` as Redis and Valkey ship it."""

_START_LIMIT_S = 15.0
_CLUSTER_LIMIT_S = 30.0
_ALL_HASH_SLOTS = 16_384
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
def standalone(*config: str) -> Iterator[Servers]:
    """Run one server; `config` are further lines of redis.conf."""
    with contextlib.ExitStack() as stack:
        port, version = stack.enter_context(_server(config))
        yield Servers(f"redis://127.0.0.1:{port}/0", (port,), version)


@contextmanager
def cluster(nodes: int, *config: str) -> Iterator[Servers]:
    """Run a Redis Cluster of so many primaries, hash slots spread evenly, without replicas."""
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(_server((*config, "cluster-enabled yes"))) for _ in range(nodes)]
        ports = tuple(port for port, _ in started)
        found = Servers("redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in ports), ports, started[0][1])
        _join(found)
        yield found


def server_version() -> str:
    """Return the version of the servers that are started."""
    with standalone() as servers:
        return servers.version


@contextmanager
def some(nodes: int, *config: str) -> Iterator[Servers]:
    """Run one server, or a cluster where `nodes` is more than one."""
    with standalone(*config) if nodes == 1 else cluster(nodes, *config) as found:
        yield found


@contextmanager
def replicated(nodes: int, *config: str) -> Iterator[Servers]:
    """Run one server, or a cluster, with a replica for each of them that is in step when this yields."""
    with some(nodes, _AT_ONCE, *config) as masters, contextlib.ExitStack() as stack:
        mode = "cluster-enabled yes" if nodes > 1 else f"replicaof 127.0.0.1 {masters.port}"
        started = [stack.enter_context(_server((*config, mode))) for _ in masters.ports]
        found = replace(masters, replica_ports=tuple(port for port, _ in started))
        if nodes > 1:
            _follow(found)
        _await_all(lambda: all(_in_step(each) for each in found.replicas.connect_all()), "the replicas are not in step")
        yield found


@contextmanager
def _server(config: Sequence[str]) -> Iterator[tuple[int, str]]:
    folder = Path(tempfile.mkdtemp(prefix="rmq-bench-"))
    port = _free_port()
    lines = [f"port {port}", "bind 127.0.0.1", 'save ""', "appendonly no", "daemonize no", f"dir {folder}", *config]
    (folder / "redis.conf").write_text("\n".join(lines) + "\n", "utf-8")
    with (folder / "redis.log").open("wb") as log:
        process = subprocess.Popen(
            [find_redis_server(), folder / "redis.conf"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield port, _await(port, process, folder)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _await(port: int, process: subprocess.Popen[bytes], folder: Path) -> str:
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(redis.RedisError), redis.Redis(host="127.0.0.1", port=port) as client:
            return str(client.info("server")["redis_version"])
        time.sleep(0.02)
    raise RuntimeError(f"redis-server did not start:\n{(folder / 'redis.log').read_text(errors='replace')[-2000:]}")


def _join(servers: Servers) -> None:
    clients = servers.connect_all()
    bounds = [index * _ALL_HASH_SLOTS // len(clients) for index in range(len(clients) + 1)]
    for number, client in enumerate(clients):
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
        client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
    for port in servers.ports[1:]:
        clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", port)
    _await_all(lambda: all(_agrees(client, len(clients)) for client in clients), "the nodes are no cluster yet")


def _follow(servers: Servers) -> None:
    """Let each replica join the cluster and follow its master."""
    masters, replicas = servers.connect_all(), servers.replicas.connect_all()
    everybody = [*masters, *replicas]
    for port in servers.replica_ports:
        masters[0].execute_command("CLUSTER", "MEET", "127.0.0.1", port)
    _await_all(
        lambda: all(_agrees(each, len(everybody)) for each in everybody), "the replicas did not join the cluster"
    )
    for master, replica in zip(masters, replicas, strict=True):
        replica.execute_command("CLUSTER", "REPLICATE", master.execute_command("CLUSTER", "MYID"))


def _in_step(replica: Any) -> bool:
    return replica.info("replication").get("master_link_status") == "up"


def _await_all(condition: Callable[[], bool], lacking: str) -> None:
    deadline = time.monotonic() + _CLUSTER_LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{lacking} after {_CLUSTER_LIMIT_S:g} s")
        time.sleep(0.05)


def _agrees(client: Any, nodes: int) -> bool:
    info = client.execute_command("CLUSTER", "INFO")
    pairs = info if isinstance(info, dict) else dict(line.split(":") for line in info.decode().split() if ":" in line)
    return pairs["cluster_state"] == "ok" and int(pairs["cluster_known_nodes"]) == nodes


def _free_port() -> int:
    """A free port below 55,536: a cluster node also listens on the one 10,000 above."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port < 55_536:
            return port
