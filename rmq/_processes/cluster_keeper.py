"""The keeper of a local cluster: starts its processes, restarts what ends, and writes down what runs.

All processes end with the keeper, however it ends: each has a guard that holds a pipe to the keeper and kills its
process when the pipe breaks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from rmq._processes import deployment
from rmq._processes.cluster_state import (
    HOST,
    LOCK_FILE,
    LocalClusterError,
    Process,
    read_state,
    tail_of,
    write_state,
)
from rmq._processes.guarded import GuardedProcess
from rmq._processes.redis_cluster import create_cluster
from rmq._processes.server_programs import find_server_for
from rmq._processes.signals import ignore, until_signal
from rmq._processes.zookeeper import ZooKeeperServer
from rmq._transport.urls import Address

RESTART_S = 1.0
CREATE_S = 30.0
WORKERS_STOP_S, REDIS_STOP_S = 36.0, 12.0
"""A worker drains for 30 s before it would be killed."""

_NOTE_S = 0.5


@dataclass(eq=False)
class _Child:
    """A process that the keeper started, and starts again when it ends."""

    name: str
    command: Sequence[str]
    log: Path
    environment: Mapping[str, str]
    address: str = ""
    starts: int = 0
    process: GuardedProcess | None = None

    def start(self) -> None:
        if self.process is not None:
            self.process.end_guard()
        self.starts += 1
        self.process = GuardedProcess(self.command, self.log, self.environment)

    @property
    def pid(self) -> int:
        return (self.process.pid or 0) if self.process is not None else 0

    def terminate(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGTERM)

    def wait(self, deadline: float) -> None:
        """Wait for the end; kill it after the deadline."""
        if self.process is not None:
            self.process.wait(deadline - time.monotonic())
            self.process.end_guard()
            self.process = None


class Keeper:
    """Runs one cluster, in the process that `up` has started for it.

    Args:
        folder: Where its state lies; the state says what to start.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        state = read_state(folder)
        if state is None:
            raise LocalClusterError(f"{folder} holds no cluster")
        self._state = state
        self._stop = threading.Event()
        self._noted_s = 0.0
        self._redis = [self._redis_child(name) for name in (*deployment.MASTERS, *deployment.REPLICAS)]
        self._zookeepers = [self._zookeeper(number) for number in range(len(deployment.ZOOKEEPERS))]
        self._users = list(self._user_children())

    def run(self) -> None:
        """Start everything and look after it until SIGTERM."""
        with until_signal(ignore) as self._stop, self._locked():
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

    @contextlib.contextmanager
    def _locked(self) -> Generator[IO[str]]:
        with (self._folder / LOCK_FILE).open("a+") as lock:
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
        create_cluster(masters, replicas, CREATE_S, self._note_progress)
        for server in self._zookeepers:
            server.wait_ready()
        for child in self._users:
            child.start()

    def _note_progress(self, lacking: str) -> None:
        """Write down that we are still at it, for `up`; give up when told to, or when a server does not run.

        Raises:
            LocalClusterError: It makes no sense to go on.
        """
        for child in self._redis:
            if not child.pid:
                raise LocalClusterError(f"{child.name} has ended: {tail_of(child.log)}")
        if self._stop.is_set():
            raise LocalClusterError("it was stopped while it started")
        if time.monotonic() >= self._noted_s + _NOTE_S:
            self._noted_s = time.monotonic()
            self._note("starting", lacking)

    def _restart_ended(self) -> None:
        for child in (*self._redis, *self._users):
            if not child.pid:
                child.start()
        for server in self._zookeepers:
            if not server.pid:
                server.stop()  # its guard
                server.start()

    def _end(self) -> None:
        for part, patience_s in ((self._users, WORKERS_STOP_S), (self._redis, REDIS_STOP_S)):
            deadline = time.monotonic() + patience_s
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
        write_state(self._folder, self._state)

    def _redis_child(self, name: str) -> _Child:
        folder, port = self._folder / name, self._state.ports[name]
        folder.mkdir(exist_ok=True)
        own = ["--port", str(port), "--bind", HOST, "--dir", str(folder)]
        command = [str(find_server_for(folder)), *own, *deployment.redis_arguments()]
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


if __name__ == "__main__":
    Keeper(Path(sys.argv[1])).run()
