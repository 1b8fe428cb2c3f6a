"""Where Python spends its time in the producer and in the batch listener: cProfile, own time first.

    python -m benchmarks.hotspots [--number 200000]

The profiler slows small functions down more than large ones: take the order from it, not the figures.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import pstats
import threading
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.support import loads
from benchmarks.support.servers import standalone
from rmq import RmqClient
from rmq._listening.listener_thread import ListenerThread

SHOWN = 22


def main(argv: Sequence[str] | None = None) -> int:
    """Profile a send_many and a batch listener."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hotspots", description=main.__doc__)
    parser.add_argument("--number", type=int, default=200_000)
    number = parser.parse_args(argv).number
    topic = loads.topic(loads.TYPES[1], slots=8)
    contents, priorities = loads.contents(number), loads.priorities(number)
    with standalone() as servers, RmqClient(servers.url) as client:
        producer = client.producer(topic)
        print_profile("send_many", number, lambda: producer.send_many(loads.priority_messages(contents, priorities)))
        finished, seen = threading.Event(), 0

        def handle(deliveries: list[Any]) -> None:
            nonlocal seen
            seen += len(deliveries)
            if seen >= number:
                finished.set()

        profiler = cProfile.Profile()
        run = ListenerThread.run

        def profiled(worker: ListenerThread) -> None:
            profiler.enable()
            try:
                run(worker)
            finally:
                profiler.disable()

        ListenerThread.run = profiled  # the worker's own thread is the one to watch
        client.listener(topic, batch=loads.BATCH)(handle)
        client.start()
        finished.wait(300)
        client.stop()
        _print("batch listener", number, profiler)
    return 0


def print_profile(what: str, number: int, work: Callable[[], Any]) -> None:
    """Profile a call and print the functions that took longest."""
    profiler = cProfile.Profile()
    profiler.runcall(work)
    _print(what, number, profiler)


def _print(what: str, number: int, profiler: cProfile.Profile) -> None:
    out = io.StringIO()
    stats = pstats.Stats(profiler, stream=out).strip_dirs().sort_stats("tottime")
    stats.print_stats(SHOWN)
    print(f"== {what}, {number:,} messages\n{out.getvalue()}")


if __name__ == "__main__":
    raise SystemExit(main())
