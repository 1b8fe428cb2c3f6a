"""What every adapter offers, without any package: it is imported in the peers' environments and in ours.

An adapter is a program: `enqueue URL WAY NUMBER` sends so many jobs and prints how long that took; `work URL SETTING`
runs a worker until SIGTERM; that of a delayed queue also has `late URL RATE NUMBER`, which offers so many elements at
that rate, each 1 s ahead, takes them in the same process, and prints by how many ms each came late. Jobs do nothing.
A delayed queue's are due PEERS_DELAY_MS after the start of `enqueue`. In our environment an adapter in Python is
imported for `PEER` only, so it imports its package inside of functions.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

MANY = ("bulk", "batch", "columns")
THREADS = 8
TASKS = 100
DELAY_MS = int(os.environ.get("PEERS_DELAY_MS", "0"))


@dataclass(frozen=True, slots=True)
class Peer:
    """A queue to compare with.

    Attributes:
        name: As shown.
        packages: What its environment needs; the first one's version is shown.
        left: Redis commands whose sum is the number of jobs that are not done yet, in flight included.
        sends: Ways to enqueue -> what they mean; with many jobs a call they are called as in `MANY`.
        works: Worker settings -> what they mean; with many jobs for a handler they are called as in `MANY`.
        program: The adapter, unless it is in Python.
        times: How many times as many jobs it gets as the slow ones, whose measurement would else take long.
        delayed: Whether it is a queue of elements that come due.
    """

    name: str
    packages: tuple[str, ...]
    left: tuple[tuple[str, ...], ...]
    sends: dict[str, str]
    works: dict[str, str]
    program: str = ""
    times: int = 1
    delayed: bool = False


def content(index: int) -> str:
    """Return a job's argument: 20 characters, as long as RMQ's contents."""
    return f"order:{index:014d}"


def by_threads(number: int, send: Callable[[Iterable[int]], object]) -> None:
    """Let threads send a share of the jobs each, one at a time."""
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(send, (range(first, number, THREADS) for first in range(THREADS))))


async def by_tasks(number: int, send: Callable[[int], Awaitable[object]]) -> None:
    """Let tasks send a share of the jobs each, one at a time."""

    async def share(first: int) -> None:
        for index in range(first, number, TASKS):
            await send(index)

    await asyncio.gather(*map(share, range(TASKS)))


def main(sends: Mapping[str, Callable[[str, int], None]], work: Callable[[str, str], None]) -> None:
    """Obey the command line."""
    verb, url, what = sys.argv[1:4]
    if verb == "work":
        work(url, what)
        return
    enqueue = sends[what]
    enqueue(url, 10)  # connections and caches are warm
    cpu_before_s, started_s = time.process_time(), time.perf_counter()
    enqueue(url, int(sys.argv[4]))
    took = {"took_s": time.perf_counter() - started_s, "cpu_s": time.process_time() - cpu_before_s}
    print(json.dumps(took), flush=True)
