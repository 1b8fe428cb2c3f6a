"""The state of a local cluster, stored in `state.json` in its folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Generator, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from rmq._processes import deployment
from rmq._transport.urls import Address
from rmq.errors import RmqError

HOST = "127.0.0.1"
STATE_FILE, LOCK_FILE, LOG_FILE = "state.json", "keeper.lock", "keeper.log"


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
    workers: int = deployment.WORKERS
    producer: bool = True
    owners: str = "zookeeper"  # what keeps the owners of slots: `zookeeper` or `redis`
    error: str = ""  # reason of a failure
    processes: tuple[Process, ...] = ()

    def addresses(self, names: Iterable[str]) -> list[Address]:
        return [Address(HOST, self.ports[name]) for name in names]

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables for clients: RMQ_URL, and with ZooKeeper RMQ_ZOOKEEPER."""
        redis = (*deployment.MASTERS, *deployment.REPLICAS)
        return deployment.environment(self.addresses(redis), self.addresses(self.zookeepers))

    @property
    def zookeepers(self) -> tuple[str, ...]:
        """Names of the ZooKeeper servers; empty with owners in Redis."""
        return deployment.ZOOKEEPERS if self.owners == "zookeeper" else ()


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
