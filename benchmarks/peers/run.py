"""Runs each peer's adapter in an environment of its own, apart from ours and from those of the others.

One environment for all would hold some of them back: arq needs an older redis-py than the rest.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers import others
from benchmarks.peers.adapter import Peer
from benchmarks.support.environments import Environment, end_group, last_line
from benchmarks.support.meters import Figures, percentiles

NAMES = ("rmq", "rmq_delayed", "streams", "rq", "celery", "dramatiq", "huey", "arq", "saq")
NAMES += tuple(others.PEERS)
HERE = Path(__file__).resolve().parent
ENQUEUE_LIMIT_S = 600
STALL_LIMIT_S = 20.0
DUE_S = 15
"""So long after the first offer the elements of a delayed queue are due: by then all are offered."""
LATE_PER_S, LATE_S = 1_000, 5
_DELAYED = {"PEERS_DELAY_MS": str(DUE_S * 1_000)}


def load(name: str) -> Peer:
    """Return what an adapter says of itself."""
    if name in others.PEERS:
        return others.PEERS[name]
    sys.path[:0] = [str(HERE)]  # adapters import `adapter` as scripts do
    try:
        made: Any = importlib.import_module(f"{name}_peer").PEER
    finally:
        sys.path.remove(str(HERE))
    return Peer(**asdict(made))


def environment(name: str, peer: Peer) -> Environment:
    """Return where an adapter runs, with the versions in constraints/ or beside it."""
    program = HERE / (peer.program or f"{name}_peer.py")
    place = program.parent.name if peer.program else name
    return Environment(place, program, peer.packages, HERE / "constraints" / f"{name}.txt")


def enqueue(name: str, peer: Peer, client: Any, url: str, way: str, number: int) -> Figures:
    """Enqueue so many jobs from one process; return the rate and what a job cost."""
    before_s = _server_cpu_s(client)
    took = _answer(name, peer, "enqueue", url, way, number)
    # it also got the jobs that warmed it up
    server_s = (_server_cpu_s(client) - before_s) * number / jobs_left(peer, client)
    return _figures(number, took["took_s"], took["cpu_s"], server_s)


def late(name: str, peer: Peer, url: str) -> Figures:
    """Let elements come due at a steady rate; return by how many ms they are late."""
    return percentiles(_answer(name, peer, "late", url, LATE_PER_S, LATE_PER_S * LATE_S))


def _answer(name: str, peer: Peer, *words: object) -> Any:
    place = environment(name, peer)
    ended = subprocess.run(
        [*place.command(), *map(str, words)],
        env=place.variables() | _DELAYED,
        capture_output=True,
        text=True,
        timeout=ENQUEUE_LIMIT_S,
        check=False,
    )
    if ended.returncode:
        raise RuntimeError(f"{name} failed: {last_line(ended.stderr)}")
    return json.loads(ended.stdout.strip().splitlines()[-1])


@contextmanager
def worker(name: str, peer: Peer, url: str, variant: str) -> Iterator[subprocess.Popen[str]]:
    """Run a worker, in a process group of its own that is ended afterwards."""
    place = environment(name, peer)
    process = subprocess.Popen(
        [*place.command(), "work", url, variant],
        env=place.variables(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        end_group(process)


def drain(name: str, peer: Peer, client: Any, url: str, variant: str) -> Figures:
    """Run a worker until nothing is left; return the rate and what a job cost, its start-up not counted."""
    first: tuple[float, int, float, float] | None = None
    changed_s, before = time.perf_counter(), jobs_left(peer, client)
    with worker(name, peer, url, variant) as process:
        while True:
            left = jobs_left(peer, client)
            now_s = time.perf_counter()
            if left != before:
                changed_s, before = now_s, left
                first = first or (now_s, left, _session_cpu_s(process.pid), _server_cpu_s(client))
            if left == 0 and first is not None:
                break
            if process.poll() is not None:
                raise RuntimeError(f"the worker ended: {last_line((process.stderr and process.stderr.read()) or '')}")
            if now_s - changed_s > STALL_LIMIT_S:
                raise RuntimeError(f"the worker stood still with {left:,} jobs left")
            time.sleep(0.01)
        server_s, client_s = _server_cpu_s(client) - first[3], _session_cpu_s(process.pid) - first[2]
    return _figures(max(first[1], 1), max(changed_s - first[0], 1e-3), client_s, server_s)


def _figures(number: int, took_s: float, client_s: float, server_s: float) -> Figures:
    costs = {"client_us": client_s, "server_us": server_s, "cpu_us": client_s + server_s}
    return {"rate_per_s": number / took_s, **{key: used_s * 1e6 / number for key, used_s in costs.items()}}


def jobs_left(peer: Peer, client: Any) -> int:
    """Count the jobs that are not done."""
    with client.pipeline(transaction=False) as pipe:
        for command in peer.left:
            pipe.execute_command(*command)
        return sum(map(int, pipe.execute()))


def _server_cpu_s(client: Any) -> float:
    used = client.info("cpu")
    return used["used_cpu_user"] + used["used_cpu_sys"]


def _session_cpu_s(leader: int) -> float:
    """Return the CPU time of the processes of a session, user and system."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = path.read_text("utf-8").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12]) if int(fields[3]) == leader else 0
    return ticks / os.sysconf("SC_CLK_TCK")
