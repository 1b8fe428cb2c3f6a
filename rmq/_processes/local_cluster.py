"""The whole cluster of docker-compose.yml as local processes: for `rmq cluster up`, for trying out and for tests.

A keeper process of its own starts everything in a state folder, restarts what ends, and writes down what runs. It
lives on when the command that started it ends. The keeper holds a lock on the folder: a process id alone may belong to
another process by now.

    rmq-cluster/
        state.json           addresses and processes; kept by `down`, so that the data are found on the same ports
        keeper.lock keeper.log
        redis-1/ ... zookeeper-1/ ... worker-1.log ... producer.log
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from rmq._processes import deployment
from rmq._processes.cluster_state import (
    HOST,
    LOCK_FILE,
    LOG_FILE,
    STATE_FILE,
    LocalClusterError,
    State,
    locked,
    read_state,
    write_state,
)
from rmq._processes.embedded import private_folder
from rmq._processes.embedded_guard import log_tail

BUS_OFFSET = 10_000
"""A Redis Cluster's nodes talk to each other on this many ports above their own."""

KEEPER_S, START_S, STOP_S = 10.0, 90.0, 70.0
"""The whole stop waits for all workers, the Redis servers and ZooKeeper."""

_UP_LOCK = "up.lock"


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
        EmbeddedServerError: The folder cannot be used, or others can write to it.
    """
    folder = private_folder(folder, "a cluster")
    with locked(folder / _UP_LOCK) as lock:
        if lock is None:
            raise LocalClusterError(f"the cluster in {folder} is just being started")
        if runs(folder):
            raise LocalClusterError(f"the cluster in {folder} runs already; `rmq cluster status` shows it")
        earlier = read_state(folder)
        ports = earlier.ports if earlier is not None and first_port is None else _ports(first_port)
        write_state(folder, State("starting", ports, workers, producer))
        _launch_keeper(folder)
        return _await_ready(folder)


def down(folder: Path, *, delete: bool = False) -> bool:
    """End all processes of a cluster, first those that use it, then the servers; tell whether it was running.

    Raises:
        LocalClusterError: It does not end, or `delete` for a folder that is none of ours.
    """
    folder = folder.absolute()
    if delete and read_state(folder) is None:
        raise LocalClusterError(f"{folder} holds no cluster; nothing was deleted")
    running = runs(folder)
    if running:
        _end_keeper(folder)
    if delete:
        shutil.rmtree(folder)
    return running


def status(folder: Path) -> State | None:
    """Return what is known of the cluster in a folder; `None` for none at all."""
    state = read_state(folder)
    if state is not None and not runs(folder):
        return replace(state, phase="down", processes=())
    return state


def runs(folder: Path) -> bool:
    """Return whether a keeper is at work in a folder."""
    with contextlib.suppress(OSError), locked(folder / LOCK_FILE, shared=True) as lock:
        return lock is None
    return False


def _launch_keeper(folder: Path) -> None:
    """Start the keeper so that it outlives us, and no Ctrl-C reaches it."""
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
    """Wait for as long as the keeper writes what it waits for: loading a large AOF takes its time."""
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
            raise LocalClusterError(f"the cluster in {folder} does not start: {why}\n{log_tail(folder / LOG_FILE)}")
        time.sleep(0.05)


def _end_keeper(folder: Path) -> None:
    with contextlib.suppress(ProcessLookupError, ValueError):
        os.kill(int((folder / LOCK_FILE).read_text()), signal.SIGTERM)  # alive: it holds the lock that has its id
    deadline = time.monotonic() + STOP_S
    while runs(folder):
        if time.monotonic() > deadline:
            raise LocalClusterError(f"the cluster in {folder} does not end; see {folder / LOG_FILE}")
        time.sleep(0.05)


def _ports(first_port: int | None) -> dict[str, int]:
    """Return a port for each server: consecutive ones, whose cluster bus ports are free, too."""
    redis = (*deployment.MASTERS, *deployment.REPLICAS)
    names = [*redis, *deployment.ZOOKEEPERS]
    names += [f"{name}-{line}" for line in ("peer", "election") for name in deployment.ZOOKEEPERS]
    tries = [random.randint(12_000, 21_000) for _ in range(100)] if first_port is None else [first_port]  # noqa: S311
    for first in tries:
        ports = {name: first + number for number, name in enumerate(names)}
        if all(map(_free, [*ports.values(), *(ports[name] + BUS_OFFSET for name in redis)])):
            return ports
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
