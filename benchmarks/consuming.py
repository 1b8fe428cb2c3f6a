"""Consuming a stream in batches beside redis-py, in turns within one run: by listener and poll, and with deletes."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

from benchmarks.support import rendering
from benchmarks.support.harness import Benchmark, Document, Row
from benchmarks.support.samples import Work, side_by_side
from benchmarks.support.servers import Servers, standalone
from rmq import Delivery, Retention, RmqClient, StreamMessage, Topic, TopicType

BATCHES = (1_000, 100)
TRIM_EVERY = 5_000
"""So many entries are acked between two clean-ups of what is done; a listener does one each `Retention.every`."""

GROUP, PLAIN = "g", "plain"


def measure(options: argparse.Namespace) -> Document:
    """Consume as many entries by RMQ and by redis-py, in turns; shares are medians of neighbours."""
    number: int = options.number
    rows: list[Row] = []
    with standalone() as servers:
        plain = servers.connect()
        for what, batch in product(WHAT, BATCHES):
            with _rmq(servers, what, batch) as ours:
                sides = {"RMQ": ours, "redis-py": _redis_py(plain, batch, what == "delete")}
                name = f"consuming: {what}, batches of {batch}"
                found = side_by_side(servers, name, options.repeats, number, sides)
                rows.append({"what": what, "batch": batch, **found})
    return {"redis": servers.version, "settings": {"number": number}, "rows": rows}


@contextmanager
def _rmq(servers: Servers, what: str, batch: int) -> Iterator[tuple[Work, Work]]:
    """Yield what fills a topic, and what consumes by RMQ."""
    retention = Retention(max_length=0 if what == "delete" else None, every="1s")
    topic = Topic(f"consuming-{what}-{batch}", TopicType.STREAM, retention=retention)
    with RmqClient(servers.url) as client:
        producer = client.producer(topic)
        listens = what == "listener"
        consume = _listener(client, topic, batch) if listens else _polls(client, topic, batch, what == "delete")
        yield lambda number: producer.send_many(StreamMessage(str(each)) for each in range(number)), consume


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

    def consume(number: int) -> None:
        nonlocal left
        left = number
        done.clear()
        stream.resume(GROUP)
        done.wait()
        stream.pause(GROUP)

    return consume


def _polls(client: RmqClient, topic: Topic, batch: int, delete: bool) -> Work:
    """Return what consumes by poll and ack."""
    stream, consumer = client.stream(topic), client.consumer(topic, group=GROUP, start="all")

    def consume(number: int) -> None:
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


def _redis_py(plain: Any, batch: int, delete: bool) -> tuple[Work, Work]:
    """Return what fills a stream, and what consumes by redis-py."""
    plain.delete(PLAIN)
    plain.xgroup_create(PLAIN, GROUP, "0", mkstream=True)

    def fill(number: int) -> None:
        for first in range(0, number, 500):
            pipeline = plain.pipeline(transaction=False)
            for each in range(first, min(first + 500, number)):
                pipeline.xadd(PLAIN, {"content": str(each)})
            pipeline.execute()

    def consume(number: int) -> None:
        left = number
        while left:
            ((_, page),) = plain.xreadgroup(GROUP, "c", {PLAIN: ">"}, count=min(batch, left))
            ids = [entry_id for entry_id, _ in page]
            plain.xack(PLAIN, GROUP, *ids)
            if delete:
                plain.xdel(PLAIN, *ids)
            left -= len(page)

    return fill, consume


WHAT = {"listener": "listener", "ack": "poll, ack", "delete": "poll, ack, delete"}


def tables(document: Document) -> str:
    """Render rates and costs."""
    return rendering.listed(
        document["rows"],
        ("", lambda row: WHAT[row["what"]]),
        ("batch", "{batch:,}"),
        ("RMQ, 1/s", "{RMQ[rate_per_s]:,.0f}"),
        ("redis-py, 1/s", "{redis-py[rate_per_s]:,.0f}"),
        ("rate", "{rate_share:×}"),
        ("RMQ: server, client CPU, µs", "{RMQ[server_cpu_us]:.1f} + {RMQ[client_cpu_us]:.1f}"),
        ("redis-py", "{redis-py[server_cpu_us]:.1f} + {redis-py[client_cpu_us]:.1f}"),
        ("CPU", "{cpu_share:×}"),
    )


BENCHMARK = Benchmark("consuming", measure, tables, numbers=(100_000, 20_000))
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
