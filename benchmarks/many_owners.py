"""Own one topic in Redis with many coordinators, and kill their leader: `python -m benchmarks.many_owners`.

Each process runs several coordinators, as so many workers would. Of Redis it counts the calls and the time of the
script `keeper` in each phase: while the workers join, while nothing happens, and from the kill of the process that
leads until all slots have live owners again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from benchmarks.big_ownership import take_part
from benchmarks.support.children import Child, Line
from benchmarks.support.meters import Meter
from benchmarks.support.servers import Servers, standalone
from rmq._broker.keys import OWNERS_KEYS
from rmq._ownership.redis_keeper import RedisCoordinator
from rmq._ownership.values import RedisOwners
from rmq._servers.urls import parse_url
from tests.support.waiting import wait_until

TOPIC = "jobs"
IDLE_S = 20.0
LIMIT_S = 300.0


def work(line: Line, url: str, process: str, coordinators: int, slots: int, session_s: float) -> None:
    """Run so many coordinators until killed."""
    owners = (RedisOwners(session_s, f"{process}-{number}") for number in range(coordinators))
    workers = [RedisCoordinator(parse_url(url), each) for each in owners]
    for worker in workers:
        take_part(worker, {TOPIC: slots})
    line.ready()


def phase(servers: Servers, workers: Collection[Child], what: str, done: Callable[[], object]) -> None:
    """Print what the calls of the keeper's script cost in CPU time, which a busy machine hardly changes."""
    before_s = sum(worker.cpu_s() for worker in workers)
    with Meter(servers) as meter:
        done()
    workers_s, cost = sum(worker.cpu_s() for worker in workers) - before_s, meter.cost
    calls, seconds, redis_s = cost.calls.get("evalsha", 0), cost.elapsed_s, cost.server_cpu_s
    print(
        f"  {what} {seconds:.1f} s, {calls / seconds:.0f} calls/s of {1000 * redis_s / max(1, calls):.2f} ms: "
        f"{100 * redis_s / seconds:.0f} % of Redis; CPU of Redis {redis_s:.1f} s, of the workers {workers_s:.1f} s",
        flush=True,
    )


def owners(server: Any) -> dict[bytes, bytes]:
    """Return path -> worker of all owner nodes."""
    nodes = server.hgetall(OWNERS_KEYS["nodes"])
    prefix = f"/owners/{TOPIC}/".encode()
    return {path: node.split(b" ", 4)[4] for path, node in nodes.items() if path.startswith(prefix)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run, and print what each phase took."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_owners", description=__doc__)
    parser.add_argument("--coordinators", type=int, default=64)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--slots", type=int, default=16_384)
    parser.add_argument("--session", type=float, default=10.0, help="session timeout, seconds")
    options = parser.parse_args(argv)
    each = options.coordinators // options.processes
    print(f"{options.slots:,} slots, {options.coordinators} workers, session {options.session:g} s")
    with standalone() as servers, servers.connect() as server:
        names = [f"p{number}" for number in range(options.processes)]
        running = {name: Child(work, servers.url, name, each, options.slots, options.session) for name in names}

        def even() -> bool:
            found = list(owners(server).values())
            names = {name.partition(b"-")[0].decode() for name in found}
            counts = [found.count(name) for name in set(found)]
            whole = len(found) == options.slots and len(counts) == each * len(running)
            return whole and names <= running.keys() and max(counts) - min(counts) <= 1

        settled = partial(wait_until, even, LIMIT_S)
        try:
            phase(servers, running.values(), "joined after", settled)
            time.sleep(2 * options.session)
            phase(servers, running.values(), "idle for", lambda: time.sleep(IDLE_S))
            leader: Any = server.hget(OWNERS_KEYS["nodes"], "/leader")
            running.pop(leader.split(b" ", 4)[4].partition(b"-")[0].decode()).kill()
            phase(servers, running.values(), f"owned again after the kill of {each} workers:", settled)
        finally:
            for process in running.values():
                process.kill()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
