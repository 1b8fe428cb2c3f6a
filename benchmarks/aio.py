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

from benchmarks import rendering
from benchmarks.harness import Benchmark, Document, Row, say
from benchmarks.servers import standalone
from rmq import PriorityMessage, RmqClient, Topic, TopicType, aio

SLOTS = 16
BATCH = 1_000
TASKS = 100
"""Tasks, and threads on the plain side, that send or handle one message at a time beside each other."""

FLOOR = 0.8
"""Share of the plain rate that the asyncio side has to reach with batches."""

_numbers = count(1)


def measure(options: argparse.Namespace) -> Document:
    """Do the same work on both sides in turn; rates are medians."""
    number = options.number or (50_000 if options.quick else 200_000)
    rates: dict[tuple[str, str], list[float]] = {}
    with standalone() as servers:
        for repeat in range(options.repeats):
            for name in WORK:
                for side, work in zip(("threads", "asyncio"), WORK[name], strict=True):
                    say(f"aio: repeat {repeat + 1} of {options.repeats}, {name}, {side}")
                    part = number if "batches" in name else number // 20
                    servers.flush()
                    rates.setdefault((name, side), []).append(part / work(servers.url, part))
        version = servers.version
    rows: list[Row] = []
    for name in WORK:
        plain, awaited = (median(rates[name, side]) for side in ("threads", "asyncio"))
        rows.append({"work": name, "threads_per_s": plain, "asyncio_per_s": awaited, "share": awaited / plain})
    return {
        "redis": version,
        "settings": {"messages": number, "slots": SLOTS, "batch": BATCH, "tasks": TASKS},
        "rows": rows,
        "batches_share_at_least": FLOOR,
        "kept": all(row["share"] >= FLOOR for row in rows if "batches" in row["work"]),
    }


def _topic() -> Topic:
    return Topic(f"aio-{next(_numbers)}", TopicType.PRIORITY, slots=SLOTS)


def _messages(number: int) -> Iterator[PriorityMessage]:
    return (PriorityMessage(f"m{index}", 100) for index in range(number))


def _plain(work: Callable[[RmqClient, Topic, int], float]) -> Callable[[str, int], float]:
    def timed(url: str, number: int) -> float:
        with RmqClient(url) as client:
            return work(client, _topic(), number)

    return timed


def _awaited(work: Callable[[aio.RmqClient, Topic, int], Awaitable[float]]) -> Callable[[str, int], float]:
    async def timed(url: str, number: int) -> float:
        async with aio.RmqClient(url) as client:
            return await work(client, _topic(), number)

    return lambda url, number: asyncio.run(timed(url, number))


@_plain
def _send_many(client: RmqClient, topic: Topic, number: int) -> float:
    producer = client.producer(topic)
    from_s = time.perf_counter()
    producer.send_many(_messages(number))
    return time.perf_counter() - from_s


@_awaited
async def _send_many_aio(client: aio.RmqClient, topic: Topic, number: int) -> float:
    producer = await client.producer(topic)
    from_s = time.perf_counter()
    await producer.send_many(_messages(number))
    return time.perf_counter() - from_s


@_plain
def _poll(client: RmqClient, topic: Topic, number: int) -> float:
    client.producer(topic).send_many(_messages(number))
    with client.consumer(topic) as consumer:
        from_s, left = time.perf_counter(), number
        while left:
            deliveries = consumer.poll(BATCH, 5.0)
            consumer.ack(deliveries)
            left -= len(deliveries)
        return time.perf_counter() - from_s


@_awaited
async def _poll_aio(client: aio.RmqClient, topic: Topic, number: int) -> float:
    await (await client.producer(topic)).send_many(_messages(number))
    async with await client.consumer(topic) as consumer:
        from_s, left = time.perf_counter(), number
        while left:
            deliveries = await consumer.poll(BATCH, 5.0)
            await consumer.ack(deliveries)
            left -= len(deliveries)
        return time.perf_counter() - from_s


def _listen_plain(client: RmqClient, topic: Topic, number: int, **options: Any) -> float:
    client.producer(topic).send_many(_messages(number))
    done: list[int] = []

    @client.listener(topic, **options)
    def handle(deliveries: Any) -> None:
        done.append(len(deliveries) if options.get("batch") else 1)

    from_s = time.perf_counter()
    client.start()
    while sum(done) < number:
        time.sleep(0.005)
    return time.perf_counter() - from_s


async def _listen_aio(client: aio.RmqClient, topic: Topic, number: int, **options: Any) -> float:
    await (await client.producer(topic)).send_many(_messages(number))
    done: list[int] = []

    @client.listener(topic, **options)
    async def handle(deliveries: Any) -> None:
        done.append(len(deliveries) if options.get("batch") else 1)

    from_s = time.perf_counter()
    await client.start()
    while sum(done) < number:
        await asyncio.sleep(0.005)
    return time.perf_counter() - from_s


@_plain
def _singles(client: RmqClient, topic: Topic, number: int) -> float:
    producer = client.producer(topic)
    from_s = time.perf_counter()
    for message in _messages(number):
        producer.send(message)
    return time.perf_counter() - from_s


@_awaited
async def _singles_aio(client: aio.RmqClient, topic: Topic, number: int) -> float:
    producer = await client.producer(topic)
    from_s = time.perf_counter()
    for message in _messages(number):
        await producer.send(message)
    return time.perf_counter() - from_s


@_plain
def _singles_beside(client: RmqClient, topic: Topic, number: int) -> float:
    from concurrent.futures import ThreadPoolExecutor

    producer = client.producer(topic)
    with ThreadPoolExecutor(TASKS) as threads:
        from_s = time.perf_counter()
        list(threads.map(producer.send, _messages(number)))
        return time.perf_counter() - from_s


@_awaited
async def _singles_beside_aio(client: aio.RmqClient, topic: Topic, number: int) -> float:
    producer = await client.producer(topic)
    messages = _messages(number)

    async def send() -> None:
        for message in messages:
            await producer.send(message)

    from_s = time.perf_counter()
    await asyncio.gather(*(send() for _ in range(TASKS)))
    return time.perf_counter() - from_s


WORK: dict[str, tuple[Callable[[str, int], float], Callable[[str, int], float]]] = {
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
        )
        for row in document["rows"]
    ]
    return rendering.table(("work", "threads, messages/s", "asyncio, messages/s", "asyncio / threads"), rows)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--number", type=int, help="messages per measurement with batches; a twentieth one by one")


BENCHMARK = Benchmark("aio", measure, tables, plot, _arguments)

if __name__ == "__main__":
    raise SystemExit(BENCHMARK.main())
