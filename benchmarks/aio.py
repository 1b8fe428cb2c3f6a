"""The asyncio side beside the plain one, on the same server in the same run: sends, polls and listeners."""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import count
from typing import Any

from benchmarks.support import rendering
from benchmarks.support.harness import Benchmark, Document, Row
from benchmarks.support.meters import Figures, cpu_s
from benchmarks.support.samples import in_turns, ratio, summary
from benchmarks.support.servers import standalone
from rmq import PriorityMessage, RmqClient, Topic, TopicType, aio

SLOTS = 16
BATCH = 1_000
TASKS = 100
"""Tasks, and threads on the plain side, that send or handle one message at a time beside each other."""


_numbers = count(1)


def measure(options: argparse.Namespace) -> Document:
    """Do the same work on both sides in turn; rates are medians."""
    number: int = options.number
    with standalone() as servers:

        def run(name: str, side: Side) -> Figures:
            servers.flush()
            part = number if "batches" in name else number // 20
            wall_s, used_s = side.run(WORK[name], servers.url, part)
            return {"per_s": part / wall_s, "cpu_us": used_s * 1e6 / part}

        cases = {f"{name}; {who}": partial(run, name, side) for name in WORK for who, side in SIDES.items()}
        samples = in_turns("aio", options.repeats, cases)
    found = summary(samples)
    rows: list[Row] = [
        {
            "work": name,
            "share": ratio(samples, f"{name}; asyncio", f"{name}; threads", "per_s"),
            **{f"{side}_{key}": found[f"{name}; {side}"][key] for side in SIDES for key in ("per_s", "cpu_us")},
        }
        for name in WORK
    ]
    return {
        "redis": servers.version,
        "settings": {"messages": number, "slots": SLOTS, "batch": BATCH, "tasks": TASKS},
        "rows": rows,
    }


Taken = tuple[float, float]


class Watch:
    """Takes the time, and the processor time of this process, from its making on."""

    def __init__(self) -> None:
        self._from_s, self._cpu_from_s = time.perf_counter(), cpu_s()

    def taken(self) -> Taken:
        """Return both, in seconds."""
        return time.perf_counter() - self._from_s, cpu_s() - self._cpu_from_s


Steps = Generator[Any, Any, Taken]
"""A work, written once: it yields what each call returns, on the asyncio side an awaitable, and gets the result."""


def _beside(threads: int, action: Callable[[Any], object], values: Iterable[Any]) -> Taken:
    """Let each of several threads take the next value when it is done with one."""
    left = iter(list(values))

    def act() -> None:
        for value in left:
            action(value)

    watch = Watch()
    callers = [threading.Thread(target=act) for _ in range(threads)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return watch.taken()


async def _beside_aio(tasks: int, action: Callable[[Any], Awaitable[object]], values: Iterable[Any]) -> Taken:
    left = iter(list(values))

    async def act() -> None:
        for value in left:
            await action(value)

    watch = Watch()
    await asyncio.gather(*(act() for _ in range(tasks)))
    return watch.taken()


class Threads:
    """The plain side."""

    many, pause, beside = "threads", staticmethod(time.sleep), staticmethod(_beside)

    def handler(self, note: Callable[[Any], None]) -> Callable[[Any], Any]:
        """Return a handler that notes."""
        return note

    def run(self, work: Callable[..., Steps], url: str, number: int) -> Taken:
        """Do a work; return how long it took."""
        with RmqClient(url) as client:
            steps, result = work(self, client, _topic(), number), None
            try:
                while True:
                    result = steps.send(result)
            except StopIteration as ended:
                return ended.value


class Asyncio:
    """The side of `rmq.aio`."""

    many, pause, beside = "concurrency", staticmethod(asyncio.sleep), staticmethod(_beside_aio)

    def handler(self, note: Callable[[Any], None]) -> Callable[[Any], Any]:
        """Return a handler that notes."""

        async def handle(deliveries: Any) -> None:
            note(deliveries)

        return handle

    def run(self, work: Callable[..., Steps], url: str, number: int) -> Taken:
        """Do a work; return how long it took."""
        return asyncio.run(self._run(work, url, number))

    async def _run(self, work: Callable[..., Steps], url: str, number: int) -> Taken:
        async with aio.RmqClient(url) as client:
            steps, result = work(self, client, _topic(), number), None
            try:
                while True:
                    result = await steps.send(result)
            except StopIteration as ended:
                return ended.value


Side = Threads | Asyncio
SIDES: dict[str, Side] = {"threads": Threads(), "asyncio": Asyncio()}


def _topic() -> Topic:
    return Topic(f"aio-{next(_numbers)}", TopicType.PRIORITY, slots=SLOTS)


def _messages(number: int) -> Iterator[PriorityMessage]:
    return (PriorityMessage(f"m{index}", 100) for index in range(number))


def _send_many(side: Side, client: Any, topic: Topic, number: int) -> Steps:
    producer = yield client.producer(topic)
    watch = Watch()
    yield producer.send_many(_messages(number))
    return watch.taken()


def _poll(side: Side, client: Any, topic: Topic, number: int) -> Steps:
    yield from _send_many(side, client, topic, number)
    consumer = yield client.consumer(topic)
    watch, left = Watch(), number
    while left:
        deliveries = yield consumer.poll(BATCH, 5.0)
        yield consumer.ack(deliveries)
        left -= len(deliveries)
    return watch.taken()


def _listen(side: Side, client: Any, topic: Topic, number: int, batch: int | None = None, many: int = 0) -> Steps:
    yield from _send_many(side, client, topic, number)
    done: list[int] = []
    handle = side.handler(lambda deliveries: done.append(len(deliveries) if batch else 1))
    client.listener(topic, batch=batch, **({side.many: many} if many else {}))(handle)
    watch = Watch()
    yield client.start()
    while sum(done) < number:
        yield side.pause(0.005)
    return watch.taken()


def _send(side: Side, client: Any, topic: Topic, number: int, beside: int) -> Steps:
    producer = yield client.producer(topic)
    return (yield side.beside(beside, producer.send, _messages(number)))


def _ack(side: Side, client: Any, topic: Topic, number: int, beside: int) -> Steps:
    yield from _send_many(side, client, topic, number)
    consumer = yield client.consumer(topic)
    deliveries = yield consumer.poll(number, 5.0)
    return (yield side.beside(beside, lambda delivery: delivery.ack(), deliveries))


WORK: dict[str, Callable[..., Steps]] = {
    "send_many, in batches": _send_many,
    "poll and ack, in batches": _poll,
    "listener, in batches": partial(_listen, batch=BATCH),
    "listener, one by one": _listen,
    f"listener, {TASKS} beside each other": partial(_listen, many=TASKS),
    "send, one after the other": partial(_send, beside=1),
    "send, 8 beside each other": partial(_send, beside=8),
    f"send, {TASKS} beside each other": partial(_send, beside=TASKS),
    "ack, 8 beside each other": partial(_ack, beside=8),
    f"ack, {TASKS} beside each other": partial(_ack, beside=TASKS),
}


def tables(document: Document) -> str:
    """Render the rates."""
    return rendering.listed(
        document["rows"],
        ("work", "{work}"),
        ("threads, messages/s", "{threads_per_s:,.0f}"),
        ("asyncio, messages/s", "{asyncio_per_s:,.0f}"),
        ("asyncio / threads", "{share:.2f}"),
        ("threads, CPU µs", "{threads_cpu_us:,.1f}"),
        ("asyncio, CPU µs", "{asyncio_cpu_us:,.1f}"),
    )


SERIES = {side: f"{side}_per_s" for side in SIDES}
PLOT = rendering.picture(
    "RMQ: the asyncio side beside the plain one",
    rendering.Panel("1,000 messages/s", "{work}", SERIES, where=lambda row: "batches" in row["work"], each=1_000),
    rendering.Panel("1,000 messages/s", "{work}", SERIES, where=lambda row: "batches" not in row["work"], each=1_000),
)
BENCHMARK = Benchmark("aio", measure, tables, PLOT, numbers=(200_000, 50_000))
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
