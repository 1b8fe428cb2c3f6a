"""The cluster of docker-compose.yml as local processes, for `rmq cluster up` and for tests.

A keeper process starts all servers and workers in a state folder, restarts those that end, and records their state. It
continues to run when the command that started it ends. The keeper holds a lock on the folder, since a process id alone
may have been reused. Its services are three Redis masters with a replica each, three ZooKeeper servers, a demo producer
and two workers, with the settings below: a test compares docker-compose.yml with them.

    rmq-cluster/
        state.json           addresses and processes; `down` keeps it, so that the next run uses the same ports
        keeper.lock keeper.log
        redis-1/ ... zookeeper-1/ ... worker-1.log ... producer.log
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from rmq._processes.embedded import private_folder
from rmq._processes.embedded_guard import log_tail
from rmq._servers.urls import Address
from rmq.errors import RmqError

HOST = "127.0.0.1"
STATE_FILE, LOCK_FILE, LOG_FILE = "state.json", "keeper.lock", "keeper.log"
MASTERS = ("redis-1", "redis-2", "redis-3")
REPLICAS = ("redis-4", "redis-5", "redis-6")
ZOOKEEPERS = ("zookeeper-1", "zookeeper-2", "zookeeper-3")
WORKERS = 2

REDIS_SETTINGS = {
    "cluster-enabled": "yes",
    "cluster-node-timeout": "5000",
    # a shard that is down must not stop the other shards
    "cluster-require-full-coverage": "no",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",
    # RMQ refuses policies that evict keys: they would drop whole slots
    "maxmemory-policy": "noeviction",
}
"""Settings of every Redis, without port, address and folder."""

ZOOKEEPER_TICK_MS = 2_000
ZOOKEEPER_SETTINGS = {
    "initLimit": "10",
    "syncLimit": "5",
    # hours; by default ZooKeeper never deletes snapshots and logs
    "autopurge.purgeInterval": "1",
    "autopurge.snapRetainCount": "3",
}
"""Settings of every ZooKeeper, without address, folder and the list of servers."""

WORKER_COMMAND = ("rmq", "worker", "rmq.demo.cluster:client")
PRODUCER_COMMAND = ("python", "-m", "rmq.demo.cluster")


def redis_arguments() -> list[str]:
    """Return the arguments of `redis-server`, without port and folder."""
    return [part for name, value in REDIS_SETTINGS.items() for part in (f"--{name}", value)]


def environment_of(redis: Iterable[Address], zookeepers: Iterable[Address]) -> dict[str, str]:
    """Return the environment variables of workers and producer; without ZooKeeper, workers keep owners in Redis."""
    hosts = ",".join(map(str, zookeepers))
    url = {"RMQ_URL": f"redis+cluster://{','.join(map(str, redis))}"}
    return {**url, "RMQ_ZOOKEEPER": hosts} if hosts else url


@dataclass(frozen=True)
class Process:
    """A process that the keeper runs."""

    name: str  # such as `redis-1`, `zookeeper-2`, `worker-1`, `producer`
    pid: int = 0  # 0 if it is not running
    address: str = ""  # empty for workers and the producer
    starts: int = 0


@dataclass(frozen=True)
class State:
    """The state as the keeper last recorded it."""

    phase: str  # `starting`, `ready`, `failed`, or `down`
    ports: dict[str, int]  # by service name
    workers: int = WORKERS
    producer: bool = True
    owners: str = "zookeeper"  # what keeps the owners of slots: `zookeeper` or `redis`
    error: str = ""  # reason of a failure
    processes: tuple[Process, ...] = ()

    def addresses(self, names: Iterable[str]) -> list[Address]:
        return [Address(HOST, self.ports[name]) for name in names]

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables for clients: RMQ_URL, and with ZooKeeper RMQ_ZOOKEEPER."""
        return environment_of(self.addresses((*MASTERS, *REPLICAS)), self.addresses(self.zookeepers))

    @property
    def zookeepers(self) -> tuple[str, ...]:
        """Names of the ZooKeeper servers; empty with owners in Redis."""
        return ZOOKEEPERS if self.owners == "zookeeper" else ()


class LocalClusterError(RmqError):
    """The local cluster could not be started or stopped."""


def read_state(folder: Path) -> State | None:
    """Return the state stored in a folder; `None` if there is none."""
    try:
        data: dict[str, Any] = json.loads((folder / STATE_FILE).read_text())
    except (OSError, ValueError):
        return None
    processes = tuple(Process(**each) for each in data.pop("processes"))
    return State(**data, processes=processes)


def write_state(folder: Path, state: State) -> None:
    """Replace the state atomically: a reader sees the old or the new one."""
    new = folder / f"{STATE_FILE}.new"
    new.write_text(json.dumps(asdict(state), indent=1))
    new.replace(folder / STATE_FILE)


@contextlib.contextmanager
def locked(path: Path, *, shared: bool = False) -> Generator[IO[str] | None]:
    """Lock a file, creating it unless `shared`. Yields the file, or `None` if another process holds the lock."""
    with path.open("r" if shared else "a+") as lock:
        try:
            fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
        yield None if lock.closed else lock


BUS_OFFSET = 10_000
"""Offset from the port of a Redis Cluster node to its cluster bus port."""

KEEPER_S, START_S, STOP_S = 10.0, 90.0, 70.0
"""Time limits of the start of the keeper, and of the start and stop of all workers and servers, seconds."""

_UP_LOCK = "up.lock"


def up(
    folder: Path,
    *,
    workers: int = WORKERS,
    producer: bool = True,
    first_port: int | None = None,
    owners: str = "zookeeper",
) -> State:
    """Start the cluster in a folder; return when it is ready.

    Args:
        folder: Folder of its state, created if missing. Data of an earlier run are reused, on the same ports.
        workers: Number of worker processes; 0 for none.
        producer: Whether to run the demo producer.
        first_port: First of consecutive ports; by default those of an earlier run, else free ones.
        owners: What keeps the owners of slots: `zookeeper`, whose servers are started, too, or `redis`.

    Raises:
        LocalClusterError: The cluster is already running, or did not start.
        EmbeddedServerError: The folder cannot be used, or other users can write to it.
    """
    folder = private_folder(folder, "a cluster")
    with locked(folder / _UP_LOCK) as lock:
        if lock is None:
            raise LocalClusterError(f"the cluster in {folder} is being started by another process")
        if runs(folder):
            raise LocalClusterError(f"the cluster in {folder} is already running; see `rmq cluster status`")
        earlier = read_state(folder)
        ports = earlier.ports if earlier is not None and first_port is None else _ports(first_port)
        write_state(folder, State("starting", ports, workers, producer, owners))
        _launch_keeper(folder)
        return _await_ready(folder)


def down(folder: Path, *, delete: bool = False) -> bool:
    """Stop all processes of a cluster, workers before servers; return whether it was running.

    Raises:
        LocalClusterError: The cluster did not stop, or `delete` was given for a folder without a cluster.
    """
    folder = folder.absolute()
    if delete and read_state(folder) is None:
        raise LocalClusterError(f"there is no cluster in {folder}; nothing was deleted")
    running = runs(folder)
    if running:
        _end_keeper(folder)
    if delete:
        shutil.rmtree(folder)
    return running


def status(folder: Path) -> State | None:
    """Return the state of the cluster in a folder; `None` if there is none."""
    state = read_state(folder)
    if state is not None and not runs(folder):
        return replace(state, phase="down", processes=())
    return state


def runs(folder: Path) -> bool:
    """Return whether a keeper is running in a folder."""
    with contextlib.suppress(OSError), locked(folder / LOCK_FILE, shared=True) as lock:
        return lock is None
    return False


def _launch_keeper(folder: Path) -> None:
    """Start the keeper so that it outlives this process and Ctrl-C does not reach it."""
    with (folder / LOG_FILE).open("wb") as log:
        subprocess.run(  # noqa: S603 - a fixed command
            ["/bin/sh", "-c", '"$0" -m rmq._processes.cluster_keeper "$1" &', sys.executable, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            check=True,
        )


def _await_ready(folder: Path) -> State:
    """Wait as long as the keeper records progress, since loading a large AOF can take long."""
    started_s = noted_s = time.monotonic()
    noted = None
    while True:
        state = read_state(folder)
        if state is not None and state.phase == "ready":
            return state
        now_s = time.monotonic()
        with contextlib.suppress(OSError):
            last, noted = noted, (folder / STATE_FILE).stat().st_mtime_ns
            noted_s = noted_s if noted == last else now_s
        gone = now_s - started_s > KEEPER_S and not runs(folder)
        if state is None or state.phase == "failed" or gone or now_s - noted_s > START_S:
            why = state.error if state is not None else ""
            raise LocalClusterError(f"the cluster in {folder} did not start: {why}\n{log_tail(folder / LOG_FILE)}")
        time.sleep(0.05)


def _end_keeper(folder: Path) -> None:
    with contextlib.suppress(ProcessLookupError, ValueError):
        # the process is alive: it holds the lock on the file that has its id
        os.kill(int((folder / LOCK_FILE).read_text()), signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while runs(folder):
        if time.monotonic() > deadline:
            raise LocalClusterError(f"the cluster in {folder} did not stop in {STOP_S:g} s; see {folder / LOG_FILE}")
        time.sleep(0.05)


def _ports(first_port: int | None) -> dict[str, int]:
    """Return consecutive ports for all servers, whose cluster bus ports are free, too."""
    redis = (*MASTERS, *REPLICAS)
    names = [*redis, *ZOOKEEPERS]
    names += [f"{name}-{line}" for line in ("peer", "election") for name in ZOOKEEPERS]
    tries = [random.randint(12_000, 21_000) for _ in range(100)] if first_port is None else [first_port]  # noqa: S311
    for first in tries:
        ports = {name: first + number for number, name in enumerate(names)}
        if all(map(_free, [*ports.values(), *(ports[name] + BUS_OFFSET for name in redis)])):
            return ports
    raise LocalClusterError(
        f"not all ports are free: {len(names)} from {first_port} on, and {len(redis)} from {first_port + BUS_OFFSET} on"
        if first_port is not None
        else "no free ports found; choose the first port yourself"
    )


def _free(port: int) -> bool:
    with contextlib.suppress(OSError, OverflowError), socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, port))
        return True
    return False
