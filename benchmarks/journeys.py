"""The way through the code: modules of `rmq` and Python frames that one call takes, once everything is warm.

    python -m benchmarks.journeys [--only send listener poll ack] [--trace]

One RANGE_MERGE message is sent; a listener does one round (claim, handler, and the ack of an earlier message); a
consumer polls one message, which is acked. Frames of comprehensions do not count: newer Pythons have none.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

import rmq
from benchmarks.support import rendering
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.servers import standalone
from rmq import PriorityMessage, RangeMergeMessage, RmqClient, Topic, TopicType

PACKAGE = Path(rmq.__file__).parent
WARM = 50
"""Calls before the first one that counts."""

SLOTS = 8
WAIT_S = 30.0

GOALS = {"send": (11, 22), "listener": (16, 45), "poll": (18, 85), "ack": (9, 28)}
"""Most modules and frames, where a goal is set."""

_INLINED = {"<listcomp>", "<dictcomp>", "<setcomp>"}
_topics = count(1)


@dataclass(slots=True)
class Journey:
    """What one call entered.

    Attributes:
        modules: Modules of `rmq`, in order of their first frame.
        steps: Depth and name of each frame.
    """

    modules: dict[str, int] = field(default_factory=dict[str, int])
    steps: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    _seen: set[FrameType] = field(default_factory=set[FrameType])  # kept, so that each frame is another object
    _first: int | None = None

    def begin(self) -> None:
        """Count what this thread enters from now on."""
        sys.setprofile(self._note)

    def end(self) -> None:
        """Count no more."""
        sys.setprofile(None)
        self._seen.clear()

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or code.co_name in _INLINED or frame in self._seen:  # a generator goes on in its frame
            return
        path = Path(code.co_filename)
        if not path.is_relative_to(PACKAGE):
            return
        self._seen.add(frame)
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        self.modules[module] = self.modules.get(module, 0) + 1
        depth = _depth(frame)
        self._first = depth if self._first is None else min(self._first, depth)
        self.steps.append((depth, f"{module}.{code.co_qualname}"))

    def tree(self) -> str:
        """Return the frames, each below the one that entered it."""
        return "\n".join("  " * (depth - (self._first or 0)) + name for depth, name in self.steps)


def _depth(frame: FrameType) -> int:
    depth, above = 0, frame.f_back
    while above is not None:
        depth += Path(above.f_code.co_filename).is_relative_to(PACKAGE)
        above = above.f_back
    return depth


def send(client: RmqClient, repeats: int) -> list[Journey]:
    """Send one RANGE_MERGE message after the other."""
    producer = client.producer(Topic(f"journey-{next(_topics)}", TopicType.RANGE_MERGE, slots=SLOTS))
    for number in range(WARM):
        producer.send(RangeMergeMessage(b"warm:%d" % number, time_range_ms=60_000))
    found: list[Journey] = []
    for number in range(repeats):
        message, journey = RangeMergeMessage(b"order:%d" % number, time_range_ms=60_000), Journey()
        journey.begin()
        producer.send(message)
        journey.end()
        found.append(journey)
    return found


def listener(client: RmqClient, repeats: int) -> list[Journey]:
    """From the end of one handler to the beginning of the next one, whose claim acks a message of the same slot."""
    topic = _filled(client, WARM + repeats + SLOTS)
    journeys = [Journey() for _ in range(repeats)]
    finished, begun = threading.Event(), count()

    def handle(found: Any) -> None:
        assert len(found) == 1
        number = next(begun) - WARM
        if 0 < number <= repeats:
            journeys[number - 1].end()
        if 0 <= number < repeats:
            journeys[number].begin()
        elif number == repeats:
            finished.set()

    client.listener(topic, batch=1)(handle)
    client.start()
    if not finished.wait(WAIT_S):
        raise TimeoutError("the listener did not get its messages")
    client.stop()
    return journeys


def _polled(client: RmqClient, repeats: int) -> tuple[list[Journey], list[Journey]]:
    """Poll messages one by one, and ack each; return the polls and the acks."""
    polls: list[Journey] = []
    acks: list[Journey] = []
    with client.consumer(_filled(client, WARM + repeats)) as consumer:
        for number in range(WARM + repeats):
            polled, acked = Journey(), Journey()
            polled.begin()
            [delivery] = consumer.poll(1, 5.0)
            polled.end()
            acked.begin()
            delivery.ack()
            acked.end()
            if number >= WARM:
                polls.append(polled)
                acks.append(acked)
    return polls, acks


def _filled(client: RmqClient, number: int) -> Topic:
    """Return a topic with enough messages in each slot."""
    topic = Topic(f"journey-{next(_topics)}", TopicType.PRIORITY, slots=SLOTS)
    client.producer(topic).send_many(PriorityMessage(b"order:%d" % index, 1_000) for index in range(4 * number))
    return topic


CASES: dict[str, Callable[[RmqClient, int], list[Journey]]] = {
    "send": send,
    "listener": listener,
    "poll": lambda client, repeats: _polled(client, repeats)[0],
    "ack": lambda client, repeats: _polled(client, repeats)[1],
}


def measure(options: argparse.Namespace) -> Document:
    """Count modules and frames of one send, one round of a listener, one poll, and one ack."""
    rows: list[Row] = []
    with standalone() as servers:
        for name in options.only:
            with RmqClient(servers.url) as client:
                journeys = CASES[name](client, options.repeats)
            frames = median(len(journey.steps) for journey in journeys)
            usual = min(journeys, key=lambda journey: abs(len(journey.steps) - frames))
            modules, most = GOALS.get(name, (None, None))
            rows.append(
                {
                    "case": name,
                    "modules": len(usual.modules),
                    "frames": len(usual.steps),
                    "modules_goal": modules,
                    "frames_goal": most,
                    "frames_by_module": usual.modules,
                }
            )
            if options.trace:
                say(f"{name}:\n{usual.tree()}\n")
    return {"rows": rows}


def tables(document: Document) -> str:
    """Render the counts."""
    return rendering.listed(
        document["rows"],
        ("call", "{case}"),
        ("modules", "{modules:,}"),
        ("at most", "{modules_goal:,}"),
        ("frames", "{frames:,}"),
        ("at most", "{frames_goal:,}"),
    )


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--trace", action="store_true", help="print the frames, each below the one that entered it")


BENCHMARK = Benchmark("journeys", measure, tables, None, arguments, cases=CASES)
main = BENCHMARK.main


if __name__ == "__main__":
    raise SystemExit(main())
