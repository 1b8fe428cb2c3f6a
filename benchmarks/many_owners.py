"""Own one topic in Redis with many coordinators, and kill their leader: `python -m benchmarks.many_owners`.

Each process runs several coordinators, as so many workers would. Of Redis it counts the calls and the time of the
script `keeper` in each phase: while the workers join, while nothing happens, and from the kill of the process that
leads until all slots have live owners again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.big_ownership import take_part
from rmq._broker.keys import OWNERS_KEYS
from rmq._ownership.redis_keeper import RedisCoordinator
from rmq._ownership.values import RedisOwners
from rmq._transport.urls import parse_url
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

TOPIC = "jobs"
IDLE_S = 20.0
LIMIT_S = 300.0


def work(url: str, process: str, coordinators: str, slots: str, session_s: str) -> None:
    """Run so many coordinators until killed."""
    owners = (RedisOwners(float(session_s), f"{process}-{number}") for number in range(int(coordinators)))
    workers = [RedisCoordinator(parse_url(url), each) for each in owners]
    for worker in workers:
        take_part(worker, {TOPIC: int(slots)})
    while True:
        time.sleep(60)


class Load:
    """What the calls of the keeper's script cost in CPU time, which a busy machine hardly changes."""

    def __init__(self, server: Any, workers: Mapping[str, subprocess.Popen[bytes]]) -> None:
        self._server, self._workers = server, workers
        self._before = self._seen()

    def _seen(self) -> tuple[float, int, float, float]:
        calls = self._server.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
        cpu: Any = self._server.info("cpu")
        ticks = 0
        for worker in self._workers.values():
            user, system = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            ticks += int(user) + int(system)
        redis_s = cpu["used_cpu_user"] + cpu["used_cpu_sys"]
        return time.monotonic(), calls, redis_s, ticks / os.sysconf("SC_CLK_TCK")

    def since(self) -> str:
        """Say what has been used since the last call of this."""
        now = self._seen()
        seconds, calls, redis_s, workers_s = (late - early for late, early in zip(now, self._before, strict=True))
        self._before = now
        return (
            f"{seconds:.1f} s, {calls / seconds:.0f} calls/s of {1000 * redis_s / max(1, calls):.2f} ms: "
            f"{100 * redis_s / seconds:.0f} % of Redis; CPU of Redis {redis_s:.1f} s, of the workers {workers_s:.1f} s"
        )


def owners(server: Any) -> dict[bytes, bytes]:
    """Return path -> worker of all owner nodes."""
    nodes = server.hgetall(OWNERS_KEYS["nodes"])
    prefix = f"/owners/{TOPIC}/".encode()
    return {path: node.split(b" ", 4)[4] for path, node in nodes.items() if path.startswith(prefix)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run, and print what each phase took."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["--worker"]:
        work(*arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_owners", description=__doc__)
    parser.add_argument("--coordinators", type=int, default=64)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--slots", type=int, default=16_384)
    parser.add_argument("--session", type=float, default=10.0, help="session timeout, seconds")
    options = parser.parse_args(arguments)
    each = options.coordinators // options.processes
    with RedisServer() as redis, redis.connect() as server:
        running: dict[str, subprocess.Popen[bytes]] = {}
        try:
            load = Load(server, running)
            for number in range(options.processes):
                rest = [redis.url, f"p{number}", str(each), str(options.slots), str(options.session)]
                command = [sys.executable, "-m", "benchmarks.many_owners", "--worker", *rest]
                running[f"p{number}"] = subprocess.Popen(command)

            def even(processes: int) -> bool:
                found = list(owners(server).values())
                names = {name.partition(b"-")[0].decode() for name in found}
                counts = [found.count(name) for name in set(found)]
                whole = len(found) == options.slots and len(counts) == each * processes
                return whole and names <= running.keys() and max(counts) - min(counts) <= 1

            wait_until(lambda: even(options.processes), LIMIT_S)
            print(f"{options.slots:,} slots, {options.coordinators} workers, session {options.session:g} s")
            print(f"  joined after {load.since()}")
            time.sleep(2 * options.session)
            load.since()
            time.sleep(IDLE_S)
            print(f"  idle for {load.since()}")
            leader: Any = server.hget(OWNERS_KEYS["nodes"], "/leader")
            running.pop(leader.split(b" ", 4)[4].partition(b"-")[0].decode()).kill()
            load.since()
            wait_until(lambda: even(options.processes - 1), LIMIT_S)
            print(f"  owned again after the kill of {each} workers: {load.since()}", flush=True)
        finally:
            for process in running.values():
                process.kill()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
