"""A million messages through `send_many` and a batch listener, in one process each: rates, and memory that stays flat.

    python -m benchmarks.million [--messages 1000000] [--slots 8] [--batch 1000] [--url URL]

Without a URL it starts an embedded Redis. The result goes to benchmarks/results/million.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.support.harness import results_folder
from rmq import Delivery, RangeMergeMessage, RmqClient, Topic, TopicType
from rmq._processes.frozen_objects import freeze_objects

LIMIT_MB = 150
_LONGEST_S = 600.0
_SAMPLES = 20


class Memory:
    """This process's resident memory from /proc, sampled as the work goes on."""

    def __init__(self, number: int) -> None:
        self._every = max(1, number // _SAMPLES)
        self._done = 0
        self.samples_mb: list[float] = [_status_mb("VmRSS")]

    def note(self, messages: int = 1) -> None:
        """Count messages, and take a sample where one is due."""
        before, self._done = self._done, self._done + messages
        if before // self._every != self._done // self._every:
            self.samples_mb.append(_status_mb("VmRSS"))

    def figures(self) -> dict[str, Any]:
        """The start, the peak, and what was added in the second half of the work, in MB."""
        half = self.samples_mb[len(self.samples_mb) // 2]
        return {
            "start_mb": self.samples_mb[0],
            "peak_mb": _status_mb("VmHWM"),
            "growth_of_second_half_mb": round(max(self.samples_mb) - max(half, *self.samples_mb[:2]), 1),
            "samples_mb": self.samples_mb,
        }


def send(url: str, topic: Topic, number: int, started: Any) -> dict[str, Any]:
    """Send all messages in one stream."""
    memory = Memory(number)

    def messages() -> Iterator[RangeMergeMessage]:
        for index in range(number):
            memory.note()
            yield RangeMergeMessage(f"item:{index}", time_range_ms=1)

    with RmqClient(url) as client:
        producer = client.producer(topic)
        started.wait()
        start_s = time.monotonic()
        result = producer.send_many(messages())
        took_s = time.monotonic() - start_s
    return {"new": result.new, "merged": result.merged, "took_s": round(took_s, 2), **memory.figures()}


def consume(url: str, topic: Topic, number: int, batch: int, started: Any) -> dict[str, Any]:
    """Consume until each message was handled once."""
    memory = Memory(number)
    done = threading.Event()
    handled = batches = 0

    with RmqClient(url) as client:

        @client.listener(topic, batch=batch)
        def handle(deliveries: list[Delivery]) -> None:
            nonlocal handled, batches
            handled += len(deliveries)
            batches += 1
            memory.note(len(deliveries))
            if handled >= number:
                done.set()

        started.wait()
        start_s = time.monotonic()
        client.start()
        done.wait(_LONGEST_S)
        took_s = time.monotonic() - start_s
        client.stop()
    return {"handled": handled, "batches": batches, "took_s": round(took_s, 2), **memory.figures()}


def measure(number: int, slots: int = 8, batch: int = 1_000, url: str | None = None) -> dict[str, Any]:
    """Run sender and listener at the same time, each in a process of its own.

    Args:
        number: How many messages.
        slots: Slots of the topic.
        batch: Most messages handed to the handler at once.
        url: Where Redis is; an embedded one by default.

    Returns:
        The figures of both, and what is left in the topic.
    """
    context = multiprocessing.get_context("spawn")
    with RmqClient(url or "embedded://") as client:
        topic = Topic(f"million-{os.getpid()}", TopicType.RANGE_MERGE, slots=slots)
        client.producer(topic)
        started = context.Event()
        pipes: list[Any] = []
        processes: list[Any] = []
        for work in ((send, client.url, topic, number, started), (consume, client.url, topic, number, batch, started)):
            ours, theirs = context.Pipe()
            process = context.Process(target=_report, args=(theirs, *work), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        started.set()
        sent, consumed = (pipe.recv() if pipe.poll(_LONGEST_S) else {} for pipe in pipes)
        for process in processes:
            process.join(30)
            process.kill()
            process.join()
            process.close()
        for pipe in pipes:
            pipe.close()
        stats = client.inspect(topic).stats()
    left = {"store": stats.backlog, "in_flight": stats.in_flight, "waiting": stats.waiting, "dead": stats.dead}
    return {
        "messages": number,
        "slots": slots,
        "batch": batch,
        "sent_per_s": round(number / sent["took_s"]),
        "consumed_per_s": round(number / consumed["took_s"]),
        "sender": sent,
        "consumer": consumed,
        "left": left,
        "unaccounted": stats.unaccounted,
        "acked": stats.total("acked"),
    }


def main() -> int:
    """Measure, print and save; return 1 where memory was not flat or a message is missing."""
    parser = argparse.ArgumentParser(description=measure.__doc__)
    parser.add_argument("--messages", type=int, help="1,000,000; quick: 100,000")
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--batch", type=int, default=1_000)
    parser.add_argument("--url")
    parser.add_argument("--results", type=Path, help="where the JSON goes")
    options = parser.parse_args()
    number = options.messages or (100_000 if options.quick else 1_000_000)
    figures = measure(number, options.slots, options.batch, options.url)
    document = {
        "benchmark": "million",
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system()},
        **figures,
    }
    folder: Path = options.results or results_folder(first_look=options.quick)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "million.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    sent, consumed = figures["sender"], figures["consumer"]
    print(f"{number:,} messages, {options.slots} slots, sent and consumed at the same time")
    print(f"sent      {figures['sent_per_s']:>9,} a second  peak {sent['peak_mb']:.0f} MB")
    print(f"consumed  {figures['consumed_per_s']:>9,} a second  peak {consumed['peak_mb']:.0f} MB")
    print(f"left: {figures['left']}, acked {figures['acked']:,}, unaccounted {figures['unaccounted']}")
    whole = figures["acked"] == number and not any(figures["left"].values()) and not figures["unaccounted"]
    return 0 if whole and max(sent["peak_mb"], consumed["peak_mb"]) < LIMIT_MB else 1


def _report(pipe: Any, function: Callable[..., dict[str, Any]], *args: Any) -> None:
    """The main function of both processes."""
    freeze_objects()  # as `client.run` does
    pipe.send(function(*args))
    pipe.close()


def _status_mb(name: str) -> float:
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith(f"{name}:"):
            return round(int(line.split()[1]) / 1024, 1)
    return 0.0


if __name__ == "__main__":
    sys.exit(main())
