"""Sets the peers' environments up, each apart from ours and from each other, and runs an adapter in its own.

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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers.adapter import Peer
from benchmarks.support.environments import (
    ENVIRONMENTS,
    NotInstalledError,
    end_group,
    last_line,
    node_environment,
    python_environment,
)
from benchmarks.support.harness import ROOT, say

OURS = ("rmq", "rmq_columns")
NAMES = (*OURS, "streams", "rq", "celery", "dramatiq", "huey", "arq", "saq", "streaq", "bullmq", "bullmq_node")
HERE = Path(__file__).resolve().parent
ENQUEUE_LIMIT_S = 600
STALL_LIMIT_S = 20.0


def load(name: str) -> Peer:
    """Return what an adapter says of itself."""
    sys.path[:0] = [str(HERE)]  # adapters import `adapter` as scripts do
    try:
        made: Any = importlib.import_module(f"{name}_peer").PEER
    finally:
        sys.path.remove(str(HERE))
    return Peer(made.name, made.packages, made.left, made.variants, made.sends)


def install(name: str) -> None:
    """Set an environment up, with the versions in constraints/, unless it is there.

    Raises:
        NotInstalledError: It does not install here.
    """
    if name == "bullmq_node":
        node_environment(name, HERE / "node" / "package.json")
    elif name not in OURS:
        python_environment(name, load(name).packages, HERE / "constraints" / f"{name}.txt")


def version(name: str, peer: Peer) -> str:
    """Return the version that is measured."""
    if name in OURS:
        return "this"
    if name == "bullmq_node":
        package = ENVIRONMENTS / name / "node_modules" / "bullmq" / "package.json"
        return str(json.loads(package.read_text("utf-8"))["version"])
    package = peer.packages[0].partition("[")[0]
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([_python(name), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def enqueue(name: str, url: str, number: int) -> dict[str, float]:
    """Enqueue so many jobs from one process; return seconds and CPU seconds."""
    command = [*_command(name), "enqueue", url, str(number)]
    ended = subprocess.run(
        command, env=_environment(name), capture_output=True, text=True, timeout=ENQUEUE_LIMIT_S, check=False
    )
    if ended.returncode:
        raise RuntimeError(f"{name} could not enqueue: {last_line(ended.stderr)}")
    return json.loads(ended.stdout.strip().splitlines()[-1])


@contextmanager
def worker(name: str, url: str, variant: str) -> Iterator[subprocess.Popen[str]]:
    """Run a worker, in a process group of its own that is ended afterwards."""
    process = subprocess.Popen(
        [*_command(name), "work", url, variant],
        env=_environment(name),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        end_group(process)


def drain(name: str, peer: Peer, client: Any, url: str, variant: str, number: int) -> float:
    """Run a worker until nothing is left; return jobs per second, its start-up not counted."""
    first: tuple[float, int] | None = None
    changed_s, before = time.perf_counter(), number
    with worker(name, url, variant) as process:
        while True:
            left = jobs_left(peer, client)
            now_s = time.perf_counter()
            if left != before:
                changed_s, before = now_s, left
                first = first or (now_s, left)
            if left == 0 and first is not None:
                break
            if process.poll() is not None:
                raise RuntimeError(f"the worker ended: {last_line((process.stderr and process.stderr.read()) or '')}")
            if now_s - changed_s > STALL_LIMIT_S:
                raise RuntimeError(f"the worker stood still with {left:,} jobs left")
            time.sleep(0.01)
    return first[1] / max(changed_s - first[0], 1e-3)


def jobs_left(peer: Peer, client: Any) -> int:
    """Count the jobs that are not done."""
    with client.pipeline(transaction=False) as pipe:
        for command in peer.left:
            pipe.execute_command(*command)
        return sum(map(int, pipe.execute()))


def _command(name: str) -> list[str]:
    if name == "bullmq_node":
        return ["node", str(HERE / "bullmq_node_peer.mjs")]
    return [_python(name), str(HERE / f"{name}_peer.py")]


def _python(name: str) -> str:
    return sys.executable if name in OURS else str(ENVIRONMENTS / name / "bin" / "python")


def _environment(name: str) -> dict[str, str]:
    ours = [str(ROOT)] if name in OURS else []
    paths = os.pathsep.join([str(HERE), *ours])
    return {**os.environ, "PYTHONPATH": paths, "PEERS_NODE_MODULES": str(ENVIRONMENTS / name)}


def main() -> int:
    """Set all environments up; say which do not install."""
    for name in NAMES:
        try:
            install(name)
            say(f"{name}: ready")
        except NotInstalledError as error:
            say(f"{name}: does not install: {error}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
