"""The whole cluster of docker-compose.yml as local processes: for `rmq cluster up`, for trying out and for tests.

A keeper process of its own starts everything in a state folder, restarts what ends, and writes down what runs. It
lives on when the command that started it ends. All its processes end with it, however it ends: each has a guard that
holds a pipe to the keeper and kills its process when the pipe breaks. The keeper holds a lock on the folder, so that
nobody has to trust a process id that may belong to someone else by now.

    rmq-cluster/
        state.json           addresses and processes; kept by `down`, so that the data are found on the same ports
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
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import IO, Any

from rmq import deployment
from rmq.cluster_setup import create_cluster, is_formed
from rmq.embedded import find_redis_server
from rmq.errors import RedisUnavailableError, RmqError
from rmq.urls import Address
from rmq.zookeeper_server import ZooKeeperServer

HOST = "127.0.0.1"
BUS_OFFSET = 10_000
"""A Redis Cluster's nodes talk to each other on this many ports above their own."""

RESTART_S = 1.0
KEEPER_S, START_S, STOP_S = 10.0, 90.0, 45.0
_GUARD = 'cat >/dev/null; kill -9 "$0"'
_STATE, _LOCK, _UP_LOCK, _LOG = "state.json", "keeper.lock", "up.lock", "keeper.log"


@dataclass(frozen=True)
class Process:
    """One process as the keeper sees it.

    Attributes:
        name: Such as `redis-1`, `zookeeper-2`, `worker-1`, `producer`.
        pid: Its id; 0 while it does not run.
        address: Where it listens; empty for workers and the producer.
        starts: How often it was started.
    """

    name: str
    pid: int = 0
    address: str = ""
    starts: int = 0


@dataclass(frozen=True)
class State:
    """What the keeper has written down.

    Attributes:
        phase: `starting`, `ready`, `failed`, or `down`.
        error: Why it failed.
        ports: Service name to port.
        workers: How many worker processes.
        producer: Whether the demo producer runs.
        processes: All processes.
    """

    phase: str
    ports: dict[str, int]
    workers: int = deployment.WORKERS
    producer: bool = True
    error: str = ""
    processes: tuple[Process, ...] = field(default_factory=tuple[Process, ...])

    @property
    def environment(self) -> dict[str, str]:
        """What clients need: RMQ_URL and RMQ_ZOOKEEPER."""
        return deployment.environment(
            [Address(HOST, self.ports[name]) for name in (*deployment.MASTERS, *deployment.REPLICAS)],
            [Address(HOST, self.ports[name]) for name in deployment.ZOOKEEPERS],
        )


class LocalClusterError(RmqError):
    """The local cluster could not be started or stopped."""


def up(
    folder: Path, *, workers: int = deployment.WORKERS, producer: bool = True, first_port: int | None = None
) -> State:
    """Start the cluster in a folder; return when it works.

    Args:
        folder: Where its state lies; made if missing. Data of an earlier run are used again, on their ports.
        workers: How many worker processes, 0 for none.
        producer: Whether to run the demo producer.
        first_port: The first of consecutive ports; by default free ones, or those of an earlier run.

    Raises:
        LocalClusterError: It runs already, or does not start.
    """
    folder = folder.absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _only_one(folder):
        if runs(folder):
            raise LocalClusterError(f"the cluster in {folder} runs already; `rmq cluster status` shows it")
        earlier = _read(folder)
        ports = earlier.ports if earlier is not None and first_port is None else _ports(first_port)
        _write(folder, State("starting", ports, workers, producer))
        _launch_keeper(folder)
        return _await_ready(folder)


def down(folder: Path, *, delete: bool = False) -> bool:
    """End all processes of a cluster: first those that use it, then the servers.

    Args:
        folder: Where its state lies.
        delete: Delete the folder with all data, too.

    Returns:
        Whether it was running.

    Raises:
        LocalClusterError: It does not end, or `delete` for a folder that is none of ours.
    """
    folder = folder.absolute()
    if delete and _read(folder) is None:
        raise LocalClusterError(f"{folder} holds no cluster; nothing was deleted")
    running = runs(folder)
    if running:
        _end_keeper(folder)
    if delete:
        shutil.rmtree(folder)
    return running


def status(folder: Path) -> State | None:
    """Return what is known of the cluster in a folder; `None` for none at all."""
    state = _read(folder)
    if state is not None and not runs(folder):
        return replace(state, phase="down", processes=())
    return state


def runs(folder: Path) -> bool:
    """Return whether a keeper is at work in a folder."""
    try:
        lock_fd = os.open(folder / _LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock_fd)
    return False


@contextlib.contextmanager
def _only_one(folder: Path) -> Generator[None]:
    """Let one `up` at a time work in a folder."""
    with (folder / _UP_LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LocalClusterError(f"the cluster in {folder} is just being started") from None
        yield


def _launch_keeper(folder: Path) -> None:
    """Start the keeper as nobody's child: it outlives us, and no Ctrl-C reaches it."""
    with (folder / _LOG).open("wb") as log:
        subprocess.run(  # noqa: S603 - a fixed command
            ["/bin/sh", "-c", '"$0" -m rmq.local_cluster "$1" &', sys.executable, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            check=True,
        )


def _await_ready(folder: Path) -> State:
    started_s = time.monotonic()
    while True:
        state = _read(folder)
        waited_s = time.monotonic() - started_s
        if state is not None and state.phase == "ready":
            return state
        gone = waited_s > KEEPER_S and not runs(folder)
        if state is None or state.phase == "failed" or gone or waited_s > START_S:
            why = state.error if state is not None else ""
            raise LocalClusterError(f"the cluster in {folder} does not start: {why}\n{_tail(folder / _LOG)}")
        time.sleep(0.05)


def _end_keeper(folder: Path) -> None:
    with contextlib.suppress(ProcessLookupError, ValueError):
        os.kill(int((folder / _LOCK).read_text()), signal.SIGTERM)  # alive: it holds the lock that has its id
    deadline = time.monotonic() + STOP_S
    while runs(folder):
        if time.monotonic() > deadline:
            raise LocalClusterError(f"the cluster in {folder} does not end; see {folder / _LOG}")
        time.sleep(0.05)


def _ports(first_port: int | None) -> dict[str, int]:
    """Return a port for each server: consecutive ones, whose cluster bus ports are free, too."""
    redis = (*deployment.MASTERS, *deployment.REPLICAS)
    names = (*redis, *deployment.ZOOKEEPERS, *(f"{name}-peer" for name in deployment.ZOOKEEPERS))
    names += tuple(f"{name}-election" for name in deployment.ZOOKEEPERS)
    for _ in range(100):
        first = random.randint(12_000, 21_000) if first_port is None else first_port  # noqa: S311
        ports = {name: first + number for number, name in enumerate(names)}
        if all(map(_free, [*ports.values(), *(ports[name] + BUS_OFFSET for name in redis)])):
            return ports
        if first_port is not None:
            break
    raise LocalClusterError(
        f"not all ports are free: {len(names)} from {first_port}, and {len(redis)} from {first_port} + {BUS_OFFSET}"
        if first_port is not None
        else "no free ports found; name some"
    )


def _free(port: int) -> bool:
    with contextlib.suppress(OSError, OverflowError), socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, port))
        return True
    return False


def _read(folder: Path) -> State | None:
    try:
        data: dict[str, Any] = json.loads((folder / _STATE).read_text())
    except (OSError, ValueError):
        return None
    processes = tuple(Process(**each) for each in data.pop("processes"))
    return State(**data, processes=processes)


def _write(folder: Path, state: State) -> None:
    """Replace the state at once: who reads it sees the old or the new one."""
    new = folder / f"{_STATE}.new"
    new.write_text(json.dumps(asdict(state), indent=1))
    new.replace(folder / _STATE)


def _tail(path: Path, most: int = 2_000) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace")[-most:]
    return ""


@dataclass(eq=False)
class _Child:
    """A process that the keeper started, and starts again when it ends."""

    name: str
    command: Sequence[str]
    log: Path
    environment: Mapping[str, str]
    address: str = ""
    starts: int = 0
    process: subprocess.Popen[bytes] | None = None
    guard: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.end_guard()
        self.starts += 1
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 - commands of this module
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.log.parent,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )
        self.guard = subprocess.Popen(  # noqa: S603
            ["/bin/sh", "-c", _GUARD, str(self.process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None and self.process.poll() is None else 0

    def terminate(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGTERM)

    def wait(self, deadline: float) -> None:
        """Wait for the end; kill it after the deadline."""
        if self.process is not None:
            try:
                self.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.end_guard()

    def end_guard(self) -> None:
        """End the guard: it must not outlive the id that it would kill."""
        if self.guard is not None:
            self.guard.kill()
            self.guard.communicate()
            self.guard = None


class Keeper:
    """Runs one cluster, in the process that `up` has started for it.

    Args:
        folder: Where its state lies; the state says what to start.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        state = _read(folder)
        if state is None:
            raise LocalClusterError(f"{folder} holds no cluster")
        self._state = state
        self._stop = threading.Event()
        self._redis = [self._redis_child(name) for name in (*deployment.MASTERS, *deployment.REPLICAS)]
        self._zookeepers = [self._zookeeper(number) for number in range(len(deployment.ZOOKEEPERS))]
        self._users = list(self._user_children())

    def run(self) -> None:
        """Start everything and look after it until SIGTERM."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end_soon)
        with self._locked():
            try:
                self._start()
                self._note("ready")
                while not self._stop.wait(RESTART_S):
                    self._restart_ended()
                    self._note("ready")
                self._end()
                self._note("down")
            except Exception as error:
                self._end()
                self._note("failed", str(error))
                raise

    def _end_soon(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._stop.set()

    @contextlib.contextmanager
    def _locked(self) -> Generator[IO[str]]:
        with (self._folder / _LOCK).open("a+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield lock

    def _start(self) -> None:
        for server in self._zookeepers:
            server.start()
        for child in self._redis:
            child.start()
        masters, replicas = (
            [Address(HOST, self._state.ports[name]) for name in names]
            for names in (deployment.MASTERS, deployment.REPLICAS)
        )
        _wait_for_ports((*masters, *replicas))
        if not is_formed(masters[0]):
            create_cluster(masters, replicas)
        for server in self._zookeepers:
            server.wait_ready()
        for child in self._users:
            child.start()

    def _restart_ended(self) -> None:
        for child in (*self._redis, *self._users):
            if not child.pid:
                child.start()
        for server in self._zookeepers:
            if not server.pid:
                server.stop()  # its guard
                server.start()

    def _end(self) -> None:
        for part in (self._users, self._redis):
            deadline = time.monotonic() + STOP_S / 3
            for child in part:
                child.terminate()
            for child in part:
                child.wait(deadline)
        for server in self._zookeepers:
            server.stop()

    def _note(self, phase: str, error: str = "") -> None:
        processes = [Process(each.name, each.pid, each.address, each.starts) for each in (*self._redis, *self._users)]
        for name, server in zip(deployment.ZOOKEEPERS, self._zookeepers, strict=True):
            processes.append(Process(name, server.pid or 0, server.address, 1))
        self._state = replace(self._state, phase=phase, error=error, processes=tuple(processes))
        _write(self._folder, self._state)

    def _redis_child(self, name: str) -> _Child:
        folder, port = self._folder / name, self._state.ports[name]
        folder.mkdir(exist_ok=True)
        own = ["--port", str(port), "--bind", HOST, "--dir", str(folder)]
        command = [str(find_redis_server()), *own, *deployment.redis_arguments()]
        return _Child(name, command, folder / "log", {}, str(Address(HOST, port)))

    def _zookeeper(self, number: int) -> ZooKeeperServer:
        ports = self._state.ports
        settings = dict(deployment.ZOOKEEPER_SETTINGS)
        for index, name in enumerate(deployment.ZOOKEEPERS):
            settings[f"server.{index + 1}"] = f"{HOST}:{ports[f'{name}-peer']}:{ports[f'{name}-election']}"
        name = deployment.ZOOKEEPERS[number]
        return ZooKeeperServer(
            self._folder / name, ports[name], settings, number + 1, tick_ms=deployment.ZOOKEEPER_TICK_MS
        )

    def _user_children(self) -> Iterator[_Child]:
        rmq = [sys.executable, "-c", "from rmq.cli import main; main()"]
        environment = self._state.environment
        for number in range(1, self._state.workers + 1):
            command = [*rmq, *deployment.WORKER_COMMAND[1:]]
            yield _Child(f"worker-{number}", command, self._folder / f"worker-{number}.log", environment)
        if self._state.producer:
            command = [sys.executable, *deployment.PRODUCER_COMMAND[1:]]
            yield _Child("producer", command, self._folder / "producer.log", environment)


def _wait_for_ports(addresses: Sequence[Address]) -> None:
    """Wait until servers answer."""
    deadline = time.monotonic() + START_S / 3
    for address in addresses:
        while True:
            try:
                is_formed(address)
                break
            except RedisUnavailableError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


if __name__ == "__main__":
    Keeper(Path(sys.argv[1])).run()
