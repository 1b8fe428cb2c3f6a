"""What servers and workers use, looked at again and again, and whether it grows: memory, connections, keys, files."""

from __future__ import annotations

import statistics
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import psutil
import redis

from tests.campaign.stage import Stage

ROOM = {"memory MB": 16.0, "connections": 24.0, "keys": 160.0, "files": 24.0, "threads": 8.0}
"""How much of each may come and go without being growth: queues, keys of messages in flight, connections to be cut."""

SHARE = 1.2
LEAST = 16
"""Fewer samples say nothing about growth."""

Series = Mapping[str, Sequence[float]]


class Sampler(threading.Thread):
    """Takes a sample of all servers and workers every few seconds.

    Attributes:
        series: `worker 0 threads`, `redis all keys` and the like -> what was found, in order.
    """

    def __init__(self, stage: Stage, every_s: float) -> None:
        super().__init__(name="sampler", daemon=True)
        self.series: dict[str, list[float]] = defaultdict(list)
        self._stage = stage
        self._every_s = every_s
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(self._every_s):
            self.sample()

    def stop(self) -> None:
        """Take no more samples."""
        self._ended.set()
        self.join(30)

    def sample(self) -> None:
        """Take one; who is dead or frozen just now is left out."""
        self._redis()
        for number, server in enumerate(self._stage.zookeeper.servers):
            self._process(f"zookeeper {number}", server.pid)
        for place in self._stage.crew.workers:
            self._process(place.name, place.pid)

    def _redis(self) -> None:
        """Add up all nodes, since masters and replicas change places; nothing where one does not answer."""
        sums = dict.fromkeys(("memory MB", "connections", "keys"), 0.0)
        with suppress(redis.RedisError, RuntimeError):
            for server in self._stage.shards.servers:
                if not server.running:
                    return
                with server.connect(socket_timeout=1.0, socket_connect_timeout=1.0) as client:
                    info: dict[str, Any] = client.info()  # pyright: ignore
                    keys: Any = client.dbsize()
                sums["memory MB"] += info["used_memory"] / 2**20
                sums["connections"] += info["connected_clients"]
                sums["keys"] += keys
            for what, value in sums.items():
                self._add("redis all", what, value)

    def _process(self, name: str, pid: int | None) -> None:
        with suppress(psutil.Error):
            if pid is not None:
                process = psutil.Process(pid)
                self._add(name, "memory MB", process.memory_info().rss / 2**20)
                self._add(name, "files", process.num_fds())
                self._add(name, "threads", process.num_threads())

    def _add(self, name: str, what: str, value: float) -> None:
        self.series[f"{name} {what}"].append(float(value))


def quarters(values: Sequence[float]) -> tuple[float, float]:
    """Return the medians of the second and of the last quarter."""
    quarter = len(values) // 4
    return statistics.median(values[quarter : 2 * quarter]), statistics.median(values[-quarter:])


def growing(series: Series) -> list[str]:
    """Return what is more in the last quarter than in the second one by more than comes and goes."""
    found: list[str] = []
    for name, values in series.items():
        if len(values) < LEAST:
            continue
        early, late = quarters(values)
        room = next(room for what, room in ROOM.items() if name.endswith(what))
        if late > SHARE * early + room:
            found.append(f"{name}: {early:.1f} in the second quarter, {late:.1f} in the last one")
    return found


def most(series: Series) -> dict[str, list[float]]:
    """Return, for each kind of server and each thing, the most of the second and of the last quarter."""
    found: dict[str, list[float]] = {}
    for name, values in series.items():
        if len(values) >= LEAST:
            kind, _, what = name.split(" ", 2)
            before = found.get(f"{kind} {what}", [0.0, 0.0])
            found[f"{kind} {what}"] = [round(max(pair), 1) for pair in zip(before, quarters(values), strict=True)]
    return found
