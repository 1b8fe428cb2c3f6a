"""Consuming a stream in batches beside redis-py, in turns within one run: by listener and poll, and with deletes."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

from benchmarks.support import rendering
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.meters import Cost, Meter, medians, rounded
from benchmarks.support.servers import Servers, standalone
from rmq import Delivery, Retention, RmqClient, StreamMessage, Topic, TopicType

BATCHES = (1_000, 100)
TRIM_EVERY = 5_000
"""So many entries are acked between two clean-ups of what is done; a listener does one each `Retention.every`."""

RATE_FLOORS = {"listener": 0.9, "ack": 0.9, "delete": 1.3}
"""The share of redis-py's rate that consuming should reach."""

GROUP, PLAIN = "g", "plain"
WAYS = ("RMQ", "redis-py")
Work = Callable[[int, int], None]
"""Takes how many entries to consume, and the size of a batch."""


def measure(options: argparse.Namespace) -> Document:
    """Consume as many entries by RMQ and by redis-py, in turns; shares are medians of neighbours."""
    number = options.number or (20_000 if options.quick else 100_000)
    rows: list[Row] = []
    with standalone() as servers:
        plain = servers.connect()
        for what in RATE_FLOORS:
            for batch in BATCHES:
                costs: dict[str, list[Cost]] = {name: [] for name in WAYS}
                with _rmq(servers, what, batch) as (rmq, filled):
                    ways: dict[str, Work] = dict(zip(WAYS, (rmq, _redis_py(plain, what == "delete")), strict=True))
                    for repeat in range(options.repeats + 1):
                        say(f"consuming: {what}, batches of {batch}, repeat {repeat} of {options.repeats}")
                        filled(number)
                        _fill(plain, number)
                        for name in sorted(ways, reverse=repeat % 2 == 0):
                            cost = _metered(servers, ways[name], number, batch)
                            if repeat:  # the first warms up: scripts, connections, the size of claims
                                costs[name].append(cost)
                rows.append(_row(what, batch, number, costs))
    return {"redis": servers.version, "settings": {"number": number}, "floors": RATE_FLOORS, "rows": rows}


def _metered(servers: Servers, work: Work, number: int, batch: int) -> Cost:
    with Meter(servers) as meter:
        work(number, batch)
    return meter.cost


def _row(what: str, batch: int, number: int, costs: dict[str, list[Cost]]) -> Row:
    found = {name: [cost.row(number) for cost in each] for name, each in costs.items()}
    pairs = list(zip(found["RMQ"], found["redis-py"], strict=True))
    return {
        "what": what,
        "batch": batch,
        **{name: medians(each) for name, each in found.items()},
        "rate_share": rounded(median(ours["rate_per_s"] / theirs["rate_per_s"] for ours, theirs in pairs)),
        "cpu_share": rounded(median(_cpu_us(ours) / _cpu_us(theirs) for ours, theirs in pairs)),
    }


def _cpu_us(row: dict[str, float]) -> float:
    return row["server_cpu_us"] + row["client_cpu_us"]


@contextmanager
def _rmq(servers: Servers, what: str, batch: int) -> Iterator[tuple[Work, Callable[[int], object]]]:
    """Yield what consumes by RMQ, and what fills its topic."""
    retention = Retention(max_length=0 if what == "delete" else None, every="1s")
    topic = Topic(f"consuming-{what}-{batch}", TopicType.STREAM, retention=retention)
    with RmqClient(servers.url) as client:
        producer = client.producer(topic)
        consume = _listener(client, topic, batch) if what == "listener" else _polls(client, topic, what == "delete")
        yield consume, lambda number: producer.send_many(StreamMessage(str(each)) for each in range(number))


def _listener(client: RmqClient, topic: Topic, batch: int) -> Work:
    """Return what consumes by a listener, which is paused while its topic is filled."""
    stream, done = client.stream(topic), threading.Event()
    left = 0

    @client.listener(topic, group=GROUP, start="all", batch=batch)
    def handle(deliveries: Sequence[Delivery]) -> None:
        nonlocal left
        left -= len(deliveries)
        if left == 0:
            done.set()

    client.start()
    stream.pause(GROUP)

    def consume(number: int, batch: int) -> None:
        nonlocal left
        del batch
        left = number
        done.clear()
        stream.resume(GROUP)
        done.wait()
        stream.pause(GROUP)

    return consume


def _polls(client: RmqClient, topic: Topic, delete: bool) -> Work:
    """Return what consumes by poll and ack."""
    stream, consumer = client.stream(topic), client.consumer(topic, group=GROUP, start="all")

    def consume(number: int, batch: int) -> None:
        left, done = number, 0
        while left:
            page = consumer.poll(min(batch, left), 1.0)
            consumer.ack(page)
            left, done = left - len(page), done + len(page)
            if delete and done >= TRIM_EVERY:
                stream.trim()
                done = 0
        if delete:
            stream.trim()

    return consume


def _redis_py(plain: Any, delete: bool) -> Work:
    """Return what consumes by redis-py."""
    plain.delete(PLAIN)
    plain.xgroup_create(PLAIN, GROUP, "0", mkstream=True)

    def consume(number: int, batch: int) -> None:
        left = number
        while left:
            ((_, page),) = plain.xreadgroup(GROUP, "c", {PLAIN: ">"}, count=min(batch, left))
            ids = [entry_id for entry_id, _ in page]
            plain.xack(PLAIN, GROUP, *ids)
            if delete:
                plain.xdel(PLAIN, *ids)
            left -= len(page)

    return consume


def _fill(plain: Any, number: int) -> None:
    for first in range(0, number, 500):
        pipeline = plain.pipeline(transaction=False)
        for each in range(first, min(first + 500, number)):
            pipeline.xadd(PLAIN, {"content": str(each)})
        pipeline.execute()


WHAT = {"listener": "listener", "ack": "poll, ack", "delete": "poll, ack, delete"}


def tables(document: Document) -> str:
    """Render rates and costs."""
    columns = ("", "batch", "RMQ, 1/s", "redis-py, 1/s", "rate", "RMQ: server, client CPU, µs", "redis-py", "CPU")
    return rendering.table(columns, [_shown(row) for row in document["rows"]])


def _shown(row: Row) -> Sequence[str]:
    rates = [rendering.number(row[name]["rate_per_s"]) for name in WAYS]
    ours, theirs = (f"{row[name]['server_cpu_us']:.1f} + {row[name]['client_cpu_us']:.1f}" for name in WAYS)
    shares = rendering.ratio(row["rate_share"]), rendering.ratio(row["cpu_share"])
    return WHAT[row["what"]], rendering.number(row["batch"]), *rates, shares[0], ours, theirs, shares[1]


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--number", type=int, help="entries in each measurement")


BENCHMARK = Benchmark("consuming", measure, tables, None, _arguments)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
