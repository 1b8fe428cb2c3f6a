"""What a stretch of work cost the server and the client, and how repeats are put together."""

from __future__ import annotations

import math
import re
import resource
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.support.servers import Servers

CLIENT_SIDE = ("evalsha", "eval", "script|load", "subscribe", "ssubscribe", "unsubscribe", "ping", "hgetall")
"""Commands that RMQ sends itself; all others are called by its scripts, and evalsha's time includes them."""


Figures = dict[str, float]
"""Name -> figure, of one case in one repeat."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What happened between `start` and `stop`.

    Attributes:
        elapsed_s: Wall-clock time.
        client_cpu_s: CPU of this process, user and system.
        server_cpu_s: CPU of all servers, user and system; includes reading, parsing and writing.
        calls: Command -> how often.
        usec: Command -> time the server spent executing it, µs.
    """

    elapsed_s: float
    client_cpu_s: float
    server_cpu_s: float
    calls: dict[str, int]
    usec: dict[str, int]

    def executing_us(self, *commands: str) -> int:
        """Return the time spent executing these commands; all of them where none is named."""
        return sum(usec for name, usec in self.usec.items() if not commands or name in commands)

    def row(self, number: int, *commands: str) -> dict[str, float]:
        """Return rate and cost per message."""
        return {
            "rate_per_s": number / self.elapsed_s,
            "server_us": self.executing_us(*commands) / number,
            "server_cpu_us": self.server_cpu_s * 1e6 / number,
            "client_cpu_us": self.client_cpu_s * 1e6 / number,
        }


class Meter:
    """Measures servers and this process; a context manager whose `cost` is there at the end.

    Args:
        servers: What to look at.
    """

    cost: Cost

    def __init__(self, servers: Servers) -> None:
        self._clients = servers.connect_all()
        for client in self._clients:
            client.ping()  # connected before the clock runs

    def __enter__(self) -> Meter:
        self._before = self._snapshot()
        self._server_cpu_s = self._servers_cpu_s()  # last, and at the end first: it must not hold what INFO takes
        self._cpu_s, self._started_s = cpu_s(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        elapsed_s, cpu_after_s = time.perf_counter() - self._started_s, cpu_s()
        server_cpu_s = self._servers_cpu_s() - self._server_cpu_s
        stats, before = self._snapshot(), self._before
        calls = {name: values[0] - before.get(name, (0, 0))[0] for name, values in stats.items()}
        usec = {name: values[1] - before.get(name, (0, 0))[1] for name, values in stats.items()}
        self.cost = Cost(
            elapsed_s,
            cpu_after_s - self._cpu_s,
            server_cpu_s,
            {name: number for name, number in calls.items() if number},
            {name: number for name, number in usec.items() if number},
        )

    def _servers_cpu_s(self) -> float:
        found = [client.info("cpu") for client in self._clients]
        return float(sum(cpu["used_cpu_user"] + cpu["used_cpu_sys"] for cpu in found))

    def _snapshot(self) -> dict[str, tuple[int, int]]:
        stats: dict[str, tuple[int, int]] = {}
        for client in self._clients:
            for key, value in client.info("commandstats").items():
                name = key.removeprefix("cmdstat_")
                if name in ("info", "client|setinfo"):
                    continue
                calls, usec = stats.get(name, (0, 0))
                stats[name] = (calls + value["calls"], usec + value["usec"])
        return stats


def cpu_s() -> float:
    """Return the CPU time of this process, user and system, seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_mb() -> float:
    """Return the most resident memory that this process has had, MB; 0 where there is no /proc."""
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s+(\d+)", status.read_text("ascii")) if status.exists() else None
    return int(found[1]) / 1024 if found else 0.0


def medians(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure over repeats, rounded to four digits that count."""
    return {key: rounded(statistics.median(row[key] for row in rows)) for key in rows[0]}


def rounded(value: float) -> float:
    """Round to four digits that count."""
    if not value or not math.isfinite(value):
        return 0.0
    return round(value, 3 - math.floor(math.log10(abs(value))))


def percentiles(values: Iterable[float]) -> dict[str, float]:
    """Return p50, p99, p99.9 and max, by the nearest rank."""
    ranked = sorted(values)
    if not ranked:
        return {}
    at = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
    found = {name: ranked[max(0, math.ceil(share * len(ranked)) - 1)] for name, share in at.items()}
    return {name: rounded(value) for name, value in (found | {"max": ranked[-1]}).items()}
