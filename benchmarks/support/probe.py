"""Another client beside the load: how long its PINGs take, since a script keeps everybody waiting."""

from __future__ import annotations

import time

import redis

from benchmarks.support.children import Child, Line
from benchmarks.support.meters import percentiles

EVERY_S = 0.002


class Probe:
    """A process that sends PINGs; a context manager.

    Args:
        port: The server's.
    """

    def __init__(self, port: int) -> None:
        self._child = Child(_ping, port)

    def __enter__(self) -> Probe:
        self._child.wait_ready()
        self._child.go("start")
        return self

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._child.pid

    def take(self) -> dict[str, float]:
        """Return the round trips' percentiles since the last call, ms."""
        self._child.go("take")
        return self._child.reported()

    def __exit__(self, *_: object) -> None:
        self._child.go("end")
        self._child.end()


def _ping(line: Line, port: int) -> None:
    line.ready()
    times_ms: list[float] = []
    with redis.Redis(host="127.0.0.1", port=port) as client:
        while True:
            started_s = time.perf_counter()
            client.ping()
            times_ms.append((time.perf_counter() - started_s) * 1000)
            if line.told():
                if line.hear() == "end":
                    return
                line.report(percentiles(times_ms))
                times_ms = []
            time.sleep(EVERY_S)
