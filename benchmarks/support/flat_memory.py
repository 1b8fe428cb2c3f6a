"""Many messages through `send_many` and a batch listener, in one process each: rates, and memory that stays flat."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.support.children import Child, Line
from benchmarks.support.servers import standalone
from rmq import Delivery, RangeMergeMessage, RmqClient, Topic, TopicType

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


def _send(line: Line, url: str, topic: Topic, number: int) -> dict[str, Any]:
    """Send all messages in one stream."""
    memory = Memory(number)

    def messages() -> Iterator[RangeMergeMessage]:
        for index in range(number):
            memory.note()
            yield RangeMergeMessage(f"item:{index}", time_range_ms=1)

    with RmqClient(url) as client:
        producer = client.producer(topic)
        line.ready()
        start_s = time.monotonic()
        result = producer.send_many(messages())
        took_s = time.monotonic() - start_s
    return {"new": result.new, "merged": result.merged, "took_s": round(took_s, 2), **memory.figures()}


def _consume(line: Line, url: str, topic: Topic, number: int, batch: int) -> dict[str, Any]:
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

        line.ready()
        start_s = time.monotonic()
        client.start()
        done.wait(_LONGEST_S)
        took_s = time.monotonic() - start_s
        client.stop()
    return {"handled": handled, "batches": batches, "took_s": round(took_s, 2), **memory.figures()}


def play(number: int, slots: int = 8, batch: int = 1_000) -> dict[str, Any]:
    """Run sender and listener at the same time; return the figures of both, and what is left in the topic.

    Args:
        number: How many messages.
        slots: Slots of the topic.
        batch: Most messages handed to the handler at once.
    """
    topic = Topic("million", TopicType.RANGE_MERGE, slots=slots)
    with standalone() as servers, RmqClient(servers.url) as client:
        client.producer(topic)
        children = Child(_send, client.url, topic, number), Child(_consume, client.url, topic, number, batch)
        for child in children:
            child.wait_ready()
        for child in children:
            child.go()
        sent, consumed = (child.result(_LONGEST_S) for child in children)
        stats = client.inspect(topic).stats()
    return {
        "messages": number,
        "slots": slots,
        "batch": batch,
        "sent_per_s": round(number / sent["took_s"]),
        "consumed_per_s": round(number / consumed["took_s"]),
        "sender": sent,
        "consumer": consumed,
        "left": {name: getattr(stats, name) for name in ("backlog", "in_flight", "waiting", "dead")},
        "unaccounted": stats.unaccounted,
        "acked": stats.total("acked"),
    }


def _status_mb(name: str) -> float:
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith(f"{name}:"):
            return round(int(line.split()[1]) / 1024, 1)
    return 0.0
