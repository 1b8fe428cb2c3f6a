"""The asyncio side beside the plain one, on the same server in the same run: sends, polls and listeners."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.support import rendering
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.servers import standalone
from rmq import PriorityMessage, RmqClient, Topic, TopicType, aio

SLOTS = 16
BATCH = 1_000
TASKS = 100
"""Tasks, and threads on the plain side, that send or handle one message at a time beside each other."""

SIDES = ("threads", "asyncio")

FLOOR = 0.8
"""Share of the plain rate that the asyncio side has to reach with batches."""

Taken = tuple[float, float]

_numbers = count(1)


def measure(options: argparse.Namespace) -> Document:
    """Do the same work on both sides in turn; rates are medians."""
    number = options.number or (50_000 if options.quick else 200_000)
    rates: dict[tuple[str, str], list[float]] = {}
    costs: dict[tuple[str, str], list[float]] = {}
    with standalone() as servers:
        for repeat in range(options.repeats):
            for name in WORK:
                for side, work in zip(SIDES, WORK[name], strict=True):
                    say(f"aio: repeat {repeat + 1} of {options.repeats}, {name}, {side}")
                    part = number if "batches" in name else number // 20
                    servers.flush()
                    wall_s, cpu_s = work(servers.url, part)
                    rates.setdefault((name, side), []).append(part / wall_s)
                    costs.setdefault((name, side), []).append(cpu_s * 1e6 / part)
        version = servers.version
    rows = [_row(name, rates, costs) for name in WORK]
    return {
        "redis": version,
        "settings": {"messages": number, "slots": SLOTS, "batch": BATCH, "tasks": TASKS},
        "rows": rows,
        "batches_share_at_least": FLOOR,
        "kept": all(row["share"] >= FLOOR for row in rows if "batches" in row["work"]),
    }


def _row(name: str, rates: dict[tuple[str, str], list[float]], costs: dict[tuple[str, str], list[float]]) -> Row:
    """Return the medians; the share is that of runs next to each other, since other work comes and goes."""
    shares = [awaited / plain for plain, awaited in zip(*(rates[name, side] for side in SIDES), strict=True)]
    row: Row = {"work": name, "share": median(shares)}
    for side in SIDES:
        row |= {f"{side}_per_s": median(rates[name, side]), f"{side}_cpu_us": median(costs[name, side])}
    return row


class Watch:
    """Takes the time, and the processor time of this process, from its making on."""

    def __init__(self) -> None:
        self._from_s, self._cpu_from_s = time.perf_counter(), time.process_time()

    def taken(self) -> Taken:
        """Return both, in seconds."""
        return time.perf_counter() - self._from_s, time.process_time() - self._cpu_from_s


def _topic() -> Topic:
    return Topic(f"aio-{next(_numbers)}", TopicType.PRIORITY, slots=SLOTS)


def _messages(number: int) -> Iterator[PriorityMessage]:
    return (PriorityMessage(f"m{index}", 100) for index in range(number))


def _plain(work: Callable[[RmqClient, Topic, int], Taken]) -> Callable[[str, int], Taken]:
    def timed(url: str, number: int) -> Taken:
        with RmqClient(url) as client:
            return work(client, _topic(), number)

    return timed


def _awaited(work: Callable[[aio.RmqClient, Topic, int], Awaitable[Taken]]) -> Callable[[str, int], Taken]:
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


def _listen_plain(client: RmqClient, topic: Topic, number: int, **options: Any) -> Taken:
    client.producer(topic).send_many(_messages(number))
    done: list[int] = []

    @client.listener(topic, **options)
    def handle(deliveries: Any) -> None:
        done.append(len(deliveries) if options.get("batch") else 1)

    watch = Watch()
    client.start()
    while sum(done) < number:
        time.sleep(0.005)
    return watch.taken()


async def _listen_aio(client: aio.RmqClient, topic: Topic, number: int, **options: Any) -> Taken:
    await (await client.producer(topic)).send_many(_messages(number))
    done: list[int] = []

    @client.listener(topic, **options)
    async def handle(deliveries: Any) -> None:
        done.append(len(deliveries) if options.get("batch") else 1)

    watch = Watch()
    await client.start()
    while sum(done) < number:
        await asyncio.sleep(0.005)
    return watch.taken()


@_plain
def _singles(client: RmqClient, topic: Topic, number: int) -> Taken:
    producer = client.producer(topic)
    watch = Watch()
    for message in _messages(number):
        producer.send(message)
    return watch.taken()


@_awaited
async def _singles_aio(client: aio.RmqClient, topic: Topic, number: int) -> Taken:
    producer = await client.producer(topic)
    watch = Watch()
    for message in _messages(number):
        await producer.send(message)
    return watch.taken()


@_plain
def _singles_beside(client: RmqClient, topic: Topic, number: int) -> Taken:
    from concurrent.futures import ThreadPoolExecutor

    producer = client.producer(topic)
    with ThreadPoolExecutor(TASKS) as threads:
        watch = Watch()
        list(threads.map(producer.send, _messages(number)))
        return watch.taken()


@_awaited
async def _singles_beside_aio(client: aio.RmqClient, topic: Topic, number: int) -> Taken:
    producer = await client.producer(topic)
    messages = _messages(number)

    async def send() -> None:
        for message in messages:
            await producer.send(message)

    watch = Watch()
    await asyncio.gather(*(send() for _ in range(TASKS)))
    return watch.taken()


WORK: dict[str, tuple[Callable[[str, int], Taken], Callable[[str, int], Taken]]] = {
    "send_many, in batches": (_send_many, _send_many_aio),
    "poll and ack, in batches": (_poll, _poll_aio),
    "listener, in batches": (
        _plain(lambda client, topic, number: _listen_plain(client, topic, number, batch=BATCH)),
        _awaited(lambda client, topic, number: _listen_aio(client, topic, number, batch=BATCH)),
    ),
    "listener, one by one": (
        _plain(lambda client, topic, number: _listen_plain(client, topic, number)),
        _awaited(lambda client, topic, number: _listen_aio(client, topic, number)),
    ),
    f"listener, {TASKS} beside each other": (
        _plain(lambda client, topic, number: _listen_plain(client, topic, number, threads=TASKS)),
        _awaited(lambda client, topic, number: _listen_aio(client, topic, number, concurrency=TASKS)),
    ),
    "send, one after the other": (_singles, _singles_aio),
    f"send, {TASKS} beside each other": (_singles_beside, _singles_beside_aio),
}


def plot(document: Document, path: Path) -> None:
    """Draw both rates for each kind of work."""
    figure, axes = rendering.figure(2, "RMQ: the asyncio side beside the plain one", height=5.0)
    for axis, batches in zip(axes, (True, False), strict=True):
        rows = [row for row in document["rows"] if ("batches" in row["work"]) is batches]
        rendering.bars(
            axis,
            [
                row["work"]
                .replace(", ", ",\n")
                .replace("beside each", "beside\neach")
                .replace("after the", "after\nthe")
                for row in rows
            ],
            {side: [row[f"{side}_per_s"] / 1_000 for row in rows] for side in ("threads", "asyncio")},
            "1,000 messages/s",
        )
    rendering.save(figure, path)


def tables(document: Document) -> str:
    """Render the rates."""
    rows = [
        (
            row["work"],
            rendering.number(row["threads_per_s"]),
            rendering.number(row["asyncio_per_s"]),
            f"{row['share']:.2f}",
            rendering.number(row["threads_cpu_us"], 1),
            rendering.number(row["asyncio_cpu_us"], 1),
        )
        for row in document["rows"]
    ]
    columns = (
        "work", "threads, messages/s", "asyncio, messages/s", "asyncio / threads", "threads, CPU µs", "asyncio, CPU µs"
    )  # fmt: skip
    return rendering.table(columns, rows)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--number", type=int, help="messages per measurement with batches; a twentieth one by one")


BENCHMARK = Benchmark("aio", measure, tables, plot, _arguments)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
