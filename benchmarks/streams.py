"""Stream topics: how long a message takes from its sender to its handler, beside redis-py."""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from functools import partial
from typing import Any

import redis

from benchmarks.support import loads, rendering
from benchmarks.support.children import Child, Line
from benchmarks.support.harness import Benchmark, Document, Row
from benchmarks.support.meters import Figures
from benchmarks.support.samples import in_turns, summary
from benchmarks.support.servers import Servers, standalone
from rmq import Delivery, Retention, RmqClient, StreamMessage, Topic, TopicType
from tests.support.waiting import wait_until

KEEP = Retention(max_length=None)
LIMIT_S = 120.0
PER_SECOND = 1_000
"""The pace of the latencies."""
HISTOGRAM_MS = (1, 2, 5, 10, 50, 1_000)
"""The published test of the original: 74 % below 1 ms, 99.9 % up to 2 ms."""


def send_paced(line: Line, url: str, name: str, messages: int, per_second: int, plain: bool) -> None:
    """Send messages that carry the sender's clock, in a process of its own; by redis-py alone where it is `plain`."""
    del line
    with RmqClient(url) as client, redis.Redis.from_url(url) as bare:  # pyright: ignore[reportUnknownMemberType]
        producer = None if plain else client.producer(Topic(name, TopicType.STREAM, retention=KEEP))
        for _ in loads.paced(range(messages), per_second):
            text = str(time.time_ns())
            bare.xadd(name, {"content": text}) if producer is None else producer.send(StreamMessage(text))


def latency(server: Servers, messages: int, per_second: int, unacked: int) -> dict[str, float]:
    """Measure send to handler, on one machine with one clock, beside so many entries that somebody never acks."""
    topic = Topic("latency", TopicType.STREAM, retention=KEEP)
    late_ms: list[float] = []
    with RmqClient(server.url) as client:
        if unacked:
            client.producer(topic).send_many(StreamMessage(str(number)) for number in range(unacked))
            with client.consumer(topic, group="g", start="all", name="hoards") as hoarder:
                left = unacked
                while left:
                    left -= len(hoarder.poll(min(left, 10_000)))

        @client.listener(topic, group="g", batch=10_000)
        def handle(deliveries: list[Delivery]) -> None:
            now_ns = time.time_ns()
            late_ms.extend((now_ns - int(delivery.content)) / 1e6 for delivery in deliveries)

        client.start()
        Child(send_paced, server.url, topic.name, messages, per_second, False).result(LIMIT_S)
        wait_until(lambda: len(late_ms) >= messages, LIMIT_S)
        client.stop()
    plain_ms = latency_plain(server, messages, per_second)
    numbers = {"messages": len(late_ms), "unacked": unacked}
    return {**numbers, **spread("RMQ", late_ms), **spread("redis-py", plain_ms)}


def latency_plain(server: Servers, messages: int, per_second: int) -> list[float]:
    """Measure the same with redis-py alone: a blocking XREADGROUP, then XACK, one after the other."""
    late_ms: list[float] = []
    with server.connect() as plain:
        plain.xgroup_create("plain", "g", "$", mkstream=True)

        def consume() -> None:
            while len(late_ms) < messages:
                found: Any = plain.xreadgroup("g", "c", {"plain": ">"}, count=10_000, block=1_000)
                for _, page in found:
                    now_ns = time.time_ns()
                    late_ms.extend((now_ns - int(fields[b"content"])) / 1e6 for _, fields in page)
                    plain.xack("plain", "g", *(entry_id for entry_id, _ in page))

        consumer = threading.Thread(target=consume)
        consumer.start()
        Child(send_paced, server.url, "plain", messages, per_second, True).result(LIMIT_S)
        consumer.join(LIMIT_S)
    return late_ms


def spread(who: str, late_ms: list[float]) -> dict[str, float]:
    """Return a histogram in percent, and the tail."""
    found, below = {}, 0.0
    for bound in HISTOGRAM_MS:
        share = sum(late < bound for late in late_ms) / len(late_ms)
        found[f"{who} < {bound} ms"], below = 100 * (share - below), share
    cuts = statistics.quantiles(late_ms, n=1_000)
    tail = {f"{who} {name}": cuts[place] for name, place in (("p50_ms", 499), ("p99_ms", 989), ("p99.9_ms", 998))}
    return {**found, **tail, f"{who} worst_ms": max(late_ms)}


UNACKED = {"latency": 0, "latency-unacked": 50}
"""Name -> unacked entries beside, for each message."""


def measure(options: argparse.Namespace) -> Document:
    """Measure each on a Redis of its own; `--quick` does a tenth of everything."""
    number: int = options.number

    def run(name: str) -> Figures:
        with standalone() as server:
            return latency(server, number, PER_SECOND, UNACKED[name] * number)

    samples = in_turns("streams", options.repeats, {name: partial(run, name) for name in options.only})
    return {"settings": {"per_second": PER_SECOND}, "samples": samples}


def summarize(document: Document) -> Document:
    """Work out medians."""
    return {"rows": summary(document["samples"])}


def tables(document: Document) -> str:
    """Render what was measured."""
    columns = ["from sender to handler", *(f"< {bound:,} ms" for bound in HISTOGRAM_MS)]
    columns += ["p50, ms", "p99, ms", "p99.9, ms", "worst, ms"]
    published = ("published test of the original", "74 %", "99.9 % up to 2 ms", *["–"] * 8)
    lines = [line for name, row in document["rows"].items() if name in UNACKED for line in _late(row)]
    text = f"{document['settings']['per_second']:,} messages a second; each share counts from the bound before it."
    return f"Redis {document['redis']}. {text}\n\n{rendering.table(columns, [published, *lines])}"


def _late(row: Row) -> list[tuple[str, ...]]:
    beside = f", beside {row['unacked']:,.0f} unacked entries" if row["unacked"] else ""
    return [
        (
            f"{who}{beside}",
            *(f"{row[f'{who} < {bound} ms']:.2f} %" for bound in HISTOGRAM_MS),
            *(rendering.number(row[f"{who} {tail}"], 2) for tail in ("p50_ms", "p99_ms", "p99.9_ms", "worst_ms")),
        )
        for who in ("RMQ", "redis-py")
    ]


BENCHMARK = Benchmark(
    "streams", measure, tables, summarize=summarize, repeats=1, numbers=(20_000, 2_000), cases=UNACKED
)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
