"""Redis servers for measurements: alone on a free TCP port, or several as a cluster; without persistence.

The program is the one that an embedded server would run: `RMQ_REDIS_SERVER`, the PATH, or a wheel's.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from rmq._processes.server_programs import find_redis_server
from rmq._transport.urls import parse_url
from rmq.errors import InvalidUrlError

_START_LIMIT_S = 15.0
_CLUSTER_LIMIT_S = 30.0
_ALL_HASH_SLOTS = 16_384


@dataclass(frozen=True, slots=True)
class Servers:
    """One server, or the nodes of a cluster.

    Attributes:
        url: How RMQ reaches them.
        ports: Their TCP ports on 127.0.0.1.
        version: Redis' version.
    """

    url: str
    ports: tuple[int, ...]
    version: str

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


def clusters_supported() -> bool:
    """Return whether this RMQ knows `redis+cluster://`."""
    try:
        parse_url("redis+cluster://127.0.0.1:7000")
    except InvalidUrlError:
        return False
    return True


@contextmanager
def some(nodes: int, *config: str) -> Iterator[Servers]:
    """Run one server, or a cluster where `nodes` is more than one."""
    with standalone(*config) if nodes == 1 else cluster(nodes, *config) as found:
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
    deadline = time.monotonic() + _CLUSTER_LIMIT_S
    while not all(_agrees(client, len(clients)) for client in clients):
        if time.monotonic() > deadline:
            raise RuntimeError("the nodes did not become a cluster in time")
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
