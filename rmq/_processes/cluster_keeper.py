"""The keeper of a local cluster: starts its processes, restarts those that end, and records their state.

All processes end with the keeper, even if it is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rmq._processes import local_cluster
from rmq._processes.embedded_guard import log_tail
from rmq._processes.local_cluster import (
    HOST,
    LOCK_FILE,
    LocalClusterError,
    Process,
    locked,
    read_state,
    write_state,
)
from rmq._processes.redis_cluster import create_cluster
from rmq._processes.server_programs import find_server_for
from rmq._processes.signals import ignore, until_signal
from rmq._processes.zookeeper import GuardedProcess, ZooKeeperServer

RESTART_S = 1.0
WORKERS_STOP_S, SERVERS_STOP_S = 36.0, 12.0
"""Time that a process has to stop before it is killed, seconds; a worker drains for 30 s."""

_NOTE_S = 0.5


class Keeper:
    """Runs one cluster in the process that `up` started. The state in its folder determines what to start."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        state = read_state(folder)
        if state is None:
            raise LocalClusterError(f"there is no cluster in {folder}")
        self._state = state
        self._stop = threading.Event()
        self._noted_s = 0.0
        redis = (*local_cluster.MASTERS, *local_cluster.REPLICAS)
        self._redis = {name: self._redis_server(name) for name in redis}
        self._zookeepers = dict(self._zookeeper_servers())
        self._users = dict(self._user_processes())
        self._all: dict[str, GuardedProcess] = {**self._redis, **self._users, **self._zookeepers}

    def run(self) -> None:
        """Start all processes, and restart them when they end, until SIGTERM."""
        with until_signal(ignore) as self._stop, locked(self._folder / LOCK_FILE) as lock:
            if lock is None:
                raise LocalClusterError(f"the cluster in {self._folder} is already running")
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            try:
                self._start()
                self._note("ready")
                while not self._stop.wait(RESTART_S):
                    for process in self._all.values():
                        process.start()
                    self._note("ready")
                self._end()
                self._note("down")
            except Exception as error:
                self._end()
                self._note("failed", str(error))
                raise

    def _start(self) -> None:
        for server in (*self._zookeepers.values(), *self._redis.values()):
            server.start()
        masters, replicas = map(self._state.addresses, (local_cluster.MASTERS, local_cluster.REPLICAS))
        create_cluster(masters, replicas, waiting=self._note_progress)
        for server in self._zookeepers.values():
            server.wait_ready()
        for user in self._users.values():
            user.start()

    def _note_progress(self, lacking: str) -> None:
        """Record progress for `up`, and fail if the keeper was stopped or a server has ended.

        Raises:
            LocalClusterError: The start was cancelled, or cannot succeed.
        """
        for name, server in self._redis.items():
            if not server.pid:
                raise LocalClusterError(f"{name} exited: {log_tail(server.log)}")
        if self._stop.is_set():
            raise LocalClusterError("the start was stopped by a signal")
        if time.monotonic() >= self._noted_s + _NOTE_S:
            self._noted_s = time.monotonic()
            self._note("starting", lacking)

    def _end(self) -> None:
        for part in (self._users, self._redis, self._zookeepers):
            deadline = time.monotonic() + (WORKERS_STOP_S if part is self._users else SERVERS_STOP_S)
            for process in part.values():
                process.signal(signal.SIGTERM)
            for process in part.values():
                process.wait(deadline - time.monotonic())

    def _note(self, phase: str, error: str = "") -> None:
        addresses = {name: f"{HOST}:{port}" for name, port in self._state.ports.items()}
        processes = [
            Process(name, child.pid or 0, addresses.get(name, ""), child.starts) for name, child in self._all.items()
        ]
        self._state = replace(self._state, phase=phase, error=error, processes=tuple(processes))
        write_state(self._folder, self._state)

    def _redis_server(self, name: str) -> GuardedProcess:
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        options = ["--port", str(self._state.ports[name]), "--bind", HOST, "--dir", str(folder)]
        return GuardedProcess(
            [str(find_server_for(folder)), *options, *local_cluster.redis_arguments()], folder / "log"
        )

    def _zookeeper_servers(self) -> Iterator[tuple[str, ZooKeeperServer]]:
        ports, settings = self._state.ports, dict(local_cluster.ZOOKEEPER_SETTINGS)
        for number, name in enumerate(self._state.zookeepers, 1):
            settings[f"server.{number}"] = f"{HOST}:{ports[f'{name}-peer']}:{ports[f'{name}-election']}"
        for number, name in enumerate(self._state.zookeepers, 1):
            tick_ms = local_cluster.ZOOKEEPER_TICK_MS
            yield name, ZooKeeperServer(self._folder / name, ports[name], settings, number, tick_ms)

    def _user_processes(self) -> Iterator[tuple[str, GuardedProcess]]:
        rmq = [sys.executable, "-c", "from rmq.cli import main; main()"]
        own = [] if self._state.zookeepers else ["--owners", self._state.owners]
        worker = [*rmq, *local_cluster.WORKER_COMMAND[1:], *own]
        commands = {f"worker-{n + 1}": worker for n in range(self._state.workers)}
        if self._state.producer:
            commands["producer"] = [sys.executable, *local_cluster.PRODUCER_COMMAND[1:]]
        for name, command in commands.items():
            yield name, GuardedProcess(command, self._folder / f"{name}.log", self._state.environment)


if __name__ == "__main__":
    Keeper(Path(sys.argv[1])).run()
