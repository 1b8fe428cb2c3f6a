"""The asyncio side beside the plain one, on the same server in the same run: sends, polls and listeners."""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
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

SIDES = ("threads", "asyncio")
FLOOR = 0.8
"""Share of the plain rate that the asyncio side has to reach with batches."""

_numbers = count(1)


def measure(options: argparse.Namespace) -> Document:
    """Do the same work on both sides in turn; rates are medians."""
    number: int = options.number
    with standalone() as servers:

        def run(work: Work, part: int) -> Figures:
            servers.flush()
            wall_s, used_s = work(servers.url, part)
            return {"per_s": part / wall_s, "cpu_us": used_s * 1e6 / part}

        cases = {
            f"{name}; {side}": partial(run, work, number if "batches" in name else number // 20)
            for name, works in WORK.items()
            for side, work in zip(SIDES, works, strict=True)
        }
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
        "batches_share_at_least": FLOOR,
        "kept": all(row["share"] >= FLOOR for row in rows if "batches" in row["work"]),
    }


Taken = tuple[float, float]
Work = Callable[[str, int], Taken]


class Watch:
    """Takes the time, and the processor time of this process, from its making on."""

    def __init__(self) -> None:
        self._from_s, self._cpu_from_s = time.perf_counter(), cpu_s()

    def taken(self) -> Taken:
        """Return both, in seconds."""
        return time.perf_counter() - self._from_s, cpu_s() - self._cpu_from_s


def _topic() -> Topic:
    return Topic(f"aio-{next(_numbers)}", TopicType.PRIORITY, slots=SLOTS)


def _messages(number: int) -> Iterator[PriorityMessage]:
    return (PriorityMessage(f"m{index}", 100) for index in range(number))


def _plain(work: Callable[[RmqClient, Topic, int], Taken]) -> Work:
    def timed(url: str, number: int) -> Taken:
        with RmqClient(url) as client:
            return work(client, _topic(), number)

    return timed


def _awaited(work: Callable[[aio.RmqClient, Topic, int], Awaitable[Taken]]) -> Work:
    async def timed(url: str, number: int) -> Taken:
        async with aio.RmqClient(url) as client:
            return await work(client, _topic(), number)

    return lambda url, number: asyncio.run(timed(url, number))


@_plain
def _send_many(client: RmqClient, topic: Topic, number: int) -> Taken:
    producer = client.producer(topic)
    watch = Watch()
    producer.send_many(_messages(number))
    return watch.taken()


@_awaited
async def _send_many_aio(client: aio.RmqClient, topic: Topic, number: int) -> Taken:
    producer = await client.producer(topic)
    watch = Watch()
    await producer.send_many(_messages(number))
    return watch.taken()


@_plain
def _poll(client: RmqClient, topic: Topic, number: int) -> Taken:
    client.producer(topic).send_many(_messages(number))
    with client.consumer(topic) as consumer:
        watch, left = Watch(), number
        while left:
            deliveries = consumer.poll(BATCH, 5.0)
            consumer.ack(deliveries)
            left -= len(deliveries)
        return watch.taken()


@_awaited
async def _poll_aio(client: aio.RmqClient, topic: Topic, number: int) -> Taken:
    await (await client.producer(topic)).send_many(_messages(number))
    async with await client.consumer(topic) as consumer:
        watch, left = Watch(), number
        while left:
            deliveries = await consumer.poll(BATCH, 5.0)
            await consumer.ack(deliveries)
            left -= len(deliveries)
        return watch.taken()


def _listener(**options: Any) -> Work:
    @_plain
    def listen(client: RmqClient, topic: Topic, number: int) -> Taken:
        client.producer(topic).send_many(_messages(number))
        done: list[int] = []

        @client.listener(topic, **options)
        def handle(deliveries: Any) -> None:
            done.append(len(deliveries) if "batch" in options else 1)

        watch = Watch()
        client.start()
        while sum(done) < number:
            time.sleep(0.005)
        return watch.taken()

    return listen


def _listener_aio(**options: Any) -> Work:
    @_awaited
    async def listen(client: aio.RmqClient, topic: Topic, number: int) -> Taken:
        await (await client.producer(topic)).send_many(_messages(number))
        done: list[int] = []

        @client.listener(topic, **options)
        async def handle(deliveries: Any) -> None:
            done.append(len(deliveries) if "batch" in options else 1)

        watch = Watch()
        await client.start()
        while sum(done) < number:
            await asyncio.sleep(0.005)
        return watch.taken()

    return listen


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


def _sends(beside: int) -> tuple[Work, Work]:
    @_plain
    def send(client: RmqClient, topic: Topic, number: int) -> Taken:
        return _beside(beside, client.producer(topic).send, _messages(number))

    @_awaited
    async def send_aio(client: aio.RmqClient, topic: Topic, number: int) -> Taken:
        return await _beside_aio(beside, (await client.producer(topic)).send, _messages(number))

    return send, send_aio


def _acks(beside: int) -> tuple[Work, Work]:
    @_plain
    def ack(client: RmqClient, topic: Topic, number: int) -> Taken:
        client.producer(topic).send_many(_messages(number))
        with client.consumer(topic) as consumer:
            return _beside(beside, lambda delivery: delivery.ack(), consumer.poll(number, 5.0))

    @_awaited
    async def ack_aio(client: aio.RmqClient, topic: Topic, number: int) -> Taken:
        await (await client.producer(topic)).send_many(_messages(number))
        async with await client.consumer(topic) as consumer:
            return await _beside_aio(beside, lambda delivery: delivery.ack(), await consumer.poll(number, 5.0))

    return ack, ack_aio


WORK: dict[str, tuple[Work, Work]] = {
    "send_many, in batches": (_send_many, _send_many_aio),
    "poll and ack, in batches": (_poll, _poll_aio),
    "listener, in batches": (_listener(batch=BATCH), _listener_aio(batch=BATCH)),
    "listener, one by one": (_listener(), _listener_aio()),
    f"listener, {TASKS} beside each other": (_listener(threads=TASKS), _listener_aio(concurrency=TASKS)),
    "send, one after the other": _sends(1),
    "send, 8 beside each other": _sends(8),
    f"send, {TASKS} beside each other": _sends(TASKS),
    "ack, 8 beside each other": _acks(8),
    f"ack, {TASKS} beside each other": _acks(TASKS),
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
