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
from collections.abc import Sequence
from typing import Any

from benchmarks.support import loads
from benchmarks.support.servers import standalone
from rmq import RmqClient

SHOWN = 22


def main(argv: Sequence[str] | None = None) -> int:
    """Profile a send_many and a batch listener."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hotspots", description=main.__doc__)
    parser.add_argument("--number", type=int, default=200_000)
    number = parser.parse_args(argv).number
    topic = loads.topic(loads.TYPES[1], slots=8)
    contents, priorities = loads.contents(number), loads.priorities(number)
    with standalone() as servers, RmqClient(servers.url) as client:
        profiler = cProfile.Profile()
        producer = client.producer(topic)
        profiler.runcall(lambda: producer.send_many(loads.priority_messages(contents, priorities)))
        _print("send_many", number, profiler)
        finished, seen = threading.Event(), 0
        profiler = cProfile.Profile()

        def handle(deliveries: list[Any]) -> None:
            nonlocal seen
            if not seen:
                profiler.enable()  # the thread of the handler is the one to watch
            seen += len(deliveries)
            if seen >= number:
                profiler.disable()
                finished.set()

        client.listener(topic, batch=loads.BATCH)(handle)
        client.start()
        finished.wait(300)
        client.stop()
        _print("batch listener", number, profiler)
    return 0


def _print(what: str, number: int, profiler: cProfile.Profile) -> None:
    out = io.StringIO()
    pstats.Stats(profiler, stream=out).strip_dirs().sort_stats("tottime").print_stats(SHOWN)
    print(f"== {what}, {number:,} messages\n{out.getvalue()}")


if __name__ == "__main__":
    raise SystemExit(main())
