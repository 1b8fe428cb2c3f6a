"""What is written down of a local cluster, in `state.json` of its folder."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rmq._processes import deployment
from rmq._transport.urls import Address
from rmq.errors import RmqError

HOST = "127.0.0.1"
STATE_FILE, LOCK_FILE, LOG_FILE = "state.json", "keeper.lock", "keeper.log"


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


def read_state(folder: Path) -> State | None:
    """Return the state that is written down in a folder; `None` for none."""
    try:
        data: dict[str, Any] = json.loads((folder / STATE_FILE).read_text())
    except (OSError, ValueError):
        return None
    processes = tuple(Process(**each) for each in data.pop("processes"))
    return State(**data, processes=processes)


def write_state(folder: Path, state: State) -> None:
    """Replace the state at once: who reads it sees the old or the new one."""
    new = folder / f"{STATE_FILE}.new"
    new.write_text(json.dumps(asdict(state), indent=1))
    new.replace(folder / STATE_FILE)


def tail_of(path: Path, most: int = 2_000) -> str:
    """Return the end of a log, at most so many characters; empty where there is none."""
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace")[-most:]
    return ""
