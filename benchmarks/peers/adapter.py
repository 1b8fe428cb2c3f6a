"""What every adapter offers, without any package: it is imported in the peers' environments and in ours.

An adapter is a script: `python <name>_peer.py enqueue URL NUMBER` sends so many jobs and prints how long that took;
`python <name>_peer.py work URL VARIANT` runs a worker until SIGTERM. Jobs do nothing. In our environment it is imported
for `PEER` only, so it imports its package inside of functions.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peer:
    """A queue to compare with.

    Attributes:
        name: As shown.
        packages: What its environment needs; the first one's version is shown.
        left: Redis commands whose sum is the number of jobs that are not done yet, in flight included.
        variants: Worker settings -> what they mean; the quickest one counts.
        sends: How jobs are enqueued, in words.
    """

    name: str
    packages: tuple[str, ...]
    left: tuple[tuple[str, ...], ...]
    variants: dict[str, str]
    sends: str


def content(index: int) -> str:
    """Return a job's argument: 20 characters, as long as RMQ's contents."""
    return f"order:{index:014d}"


def main(enqueue: Callable[[str, int], None], work: Callable[[str, str], None]) -> None:
    """Obey the command line."""
    verb, url, what = sys.argv[1:4]
    if verb == "work":
        work(url, what)
        return
    enqueue(url, 10)  # connections and caches are warm
    cpu_before_s, started_s = time.process_time(), time.perf_counter()
    enqueue(url, int(what))
    took = {"took_s": time.perf_counter() - started_s, "cpu_s": time.process_time() - cpu_before_s}
    print(json.dumps(took), flush=True)
