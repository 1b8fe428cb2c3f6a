"""Stream topics: batches and latency beside redis-py, fan-out to groups whose consumers are killed, and takeover."""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import redis

from benchmarks.support import rendering
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.samples import Sample, sample, summary
from benchmarks.support.servers import Servers, standalone
from rmq import Consumer, Delivery, Retention, RmqClient, StreamMessage, Topic, TopicType
from rmq._processes.frozen_objects import freeze_objects
from tests.support.fan_out import FanOut
from tests.support.fan_out import fan_out as fan_out_to
from tests.support.zookeeper import ZooKeeperEnsemble

KEEP = Retention(max_length=None)
KILLS = 12
PER_SECOND = 1_000
"""The pace of the latencies."""
HISTOGRAM_MS = (1, 2, 5, 10, 50, 1_000)
"""The published test of the original: 74 % below 1 ms, 99.9 % up to 2 ms."""


def paced(messages: int, per_second: int) -> Iterator[str]:
    """Yield the clock so many times, at a steady rate, each as soon as it is its turn."""
    started = time.monotonic()
    for number in range(messages):
        time.sleep(max(0.0, started + number / per_second - time.monotonic()))
        yield str(time.time_ns())


def send_paced(url: str, name: str, messages: int, per_second: int) -> None:
    """Send messages that carry the sender's clock, in a process of its own."""
    with RmqClient(url) as client:
        producer = client.producer(Topic(name, TopicType.STREAM, retention=KEEP))
        for clock in paced(messages, per_second):
            producer.send(StreamMessage(clock))


def send_paced_plain(url: str, name: str, messages: int, per_second: int) -> None:
    """The same with redis-py alone."""
    with redis.Redis.from_url(url) as plain:  # pyright: ignore[reportUnknownMemberType]
        for clock in paced(messages, per_second):
            plain.xadd(name, {"content": clock})


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
        in_process(send_paced, server.url, topic.name, messages, per_second)
        wait(lambda: len(late_ms) >= messages, 60)
        client.stop()
    plain_ms = latency_plain(server, messages, per_second)
    return {
        "messages": len(late_ms),
        "unacked": unacked,
        **spread("RMQ", late_ms),
        **spread("redis-py", plain_ms),
    }


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
        in_process(send_paced_plain, server.url, "plain", messages, per_second)
        consumer.join(60)
    return late_ms


def in_process(work: Callable[..., None], *args: object) -> None:
    """Do some work in a process of its own, and wait for its end."""
    process = multiprocessing.get_context("spawn").Process(target=_work_frozen, args=(work, *args))
    process.start()
    process.join()


def _work_frozen(work: Callable[..., None], *args: object) -> None:
    freeze_objects()  # as `client.run` does
    work(*args)


def spread(who: str, late_ms: list[float]) -> dict[str, float]:
    """Return a histogram in percent, and the tail."""
    found, below = {}, 0.0
    for bound in HISTOGRAM_MS:
        share = sum(late < bound for late in late_ms) / len(late_ms)
        found[f"{who} < {bound} ms"], below = 100 * (share - below), share
    cuts = statistics.quantiles(late_ms, n=1_000)
    tail = {f"{who} {name}": cuts[place] for name, place in (("p50_ms", 499), ("p99_ms", 989), ("p99.9_ms", 998))}
    return {**found, **tail, f"{who} worst_ms": max(late_ms)}


def throughput(server: Servers, messages: int) -> dict[str, float]:
    """Measure sending and consuming in batches beside plain redis-py doing the same."""
    topic = Topic("throughput", TopicType.STREAM, retention=KEEP)
    done: dict[str, float] = {"messages": messages}
    with RmqClient(server.url) as client, server.connect() as plain:
        done["send"] = rate(messages, lambda: client.producer(topic).send_many(numbered(messages)))
        with client.consumer(topic, group="g", start="all") as consumer:
            done["consume"] = rate(messages, lambda: drain(consumer, messages))

        def plain_send() -> None:
            for first in range(0, messages, 500):
                pipeline = plain.pipeline(transaction=False)
                for number in range(first, first + 500):
                    pipeline.xadd("plain", {"content": str(number)})
                pipeline.execute()

        def plain_consume() -> None:
            left = messages
            while left:
                found: Any = plain.xreadgroup("g", "c", {"plain": ">"}, count=1_000)
                ((_, page),) = found
                plain.xack("plain", "g", *(entry_id for entry_id, _ in page))
                left -= len(page)

        done["send, redis-py"] = rate(messages, plain_send)
        plain.xgroup_create("plain", "g", "0")
        done["consume, redis-py"] = rate(messages, plain_consume)
    return done


def numbered(messages: int) -> Iterator[StreamMessage]:
    """Return so many messages."""
    return (StreamMessage(str(number)) for number in range(messages))


def drain(consumer: Consumer, messages: int) -> None:
    """Consume so many messages in batches."""
    left = messages
    while left:
        page = consumer.poll(1_000, 1.0)
        consumer.ack(page)
        left -= len(page)


def rate(messages: int, work: Callable[[], object]) -> int:
    """Return how many messages a second some work deals with."""
    started = time.monotonic()
    work()
    return int(messages / (time.monotonic() - started))


def fan_out(server: Servers, messages: int) -> dict[str, float]:
    """Deliver messages to 3 groups of 4 consumer processes, of which some are killed with -9."""
    with tempfile.TemporaryDirectory() as folder:
        return shown(fan_out_to(server.url, "fan-out", Path(folder), messages, kills=KILLS), messages)


def fan_out_owned(server: Servers, messages: int) -> dict[str, float]:
    """The same with an owner for each slot of a group: the order is kept."""
    with ZooKeeperEnsemble(tick_ms=500) as zookeeper, tempfile.TemporaryDirectory() as folder:
        there = zookeeper.hosts, "/fan-out"
        played = fan_out_to(server.url, "fan-out", Path(folder), messages, kills=KILLS, zookeeper=there)
        return {**shown(played, messages), "out_of_order": sum(group.swapped for group in played.groups.values())}


def shown(played: FanOut, messages: int) -> dict[str, float]:
    """Return the figures of a fan-out."""
    groups = played.groups.values()
    return {
        "messages": messages, "groups": len(groups), "consumers": 12, "killed": played.killed,
        "seconds": round(played.seconds, 2), "missing": sum(group.missing for group in groups),
        "redelivered": sum(group.redelivered for group in groups),
        "of_these_uncounted": sum(group.uncounted for group in groups),
        "leases_expired": sum(group.expired for group in groups),
        "unaccounted": sum(group.unaccounted for group in groups),
    }  # fmt: skip


def takeover(server: Servers, entries: int) -> dict[str, float]:
    """Let survivors take over what a dead consumer holds, while new messages go on."""
    topic = Topic("takeover", TopicType.STREAM, lease=timedelta(seconds=2), retention=KEEP)
    taken: list[list[tuple[str, int]]] = [[], [], []]
    late_ms: list[float] = []
    with RmqClient(server.url) as client:
        producer = client.producer(topic)
        producer.send_many(StreamMessage(f"old{number}") for number in range(entries))
        with client.consumer(topic, group="g", start="all", name="dead") as dead:
            left = entries
            while left:
                left -= len(dead.poll(min(left, 10_000)))
        ended = threading.Event()

        def survive(place: int) -> None:
            with client.consumer(topic, group="g", name=f"survivor-{place}") as consumer:
                while not ended.is_set():
                    page = consumer.poll(100, 0.5)
                    now_ns = time.time_ns()
                    taken[place] += [(each.text, each.attempt) for each in page if each.text.startswith("old")]
                    new = [each.text for each in page if not each.text.startswith("old")]
                    late_ms.extend((now_ns - int(text)) / 1e6 for text in new)
                    consumer.ack(page)

        survivors = [threading.Thread(target=survive, args=(place,)) for place in range(3)]
        for survivor in survivors:
            survivor.start()
        until_s = time.monotonic() + 60
        while sum(map(len, taken)) < entries and time.monotonic() < until_s:
            producer.send(StreamMessage(str(time.time_ns())))
            time.sleep(0.005)
        ended.set()
        for survivor in survivors:
            survivor.join()
    everything = [one for part in taken for one in part]
    orders = [[int(text[3:]) for text, _ in part] for part in taken]
    return {
        "entries": entries, "taken_over": len(everything),
        "twice": len(everything) - len(set(everything)),
        "out_of_order": sum(order != sorted(order) for order in orders),
        "new_meanwhile": len(late_ms), "new_latest_ms": max(late_ms),
    }  # fmt: skip


def wait(condition: Callable[[], bool], limit_s: float) -> None:
    """Wait until something is so."""
    until_s = time.monotonic() + limit_s
    pause = threading.Event()
    while not condition():
        if time.monotonic() > until_s:
            raise TimeoutError("it did not come to an end")
        pause.wait(0.05)


def _latencies(server: Servers, messages: int) -> dict[str, float]:
    return latency(server, messages, PER_SECOND, 0)


def _latencies_unacked(server: Servers, messages: int) -> dict[str, float]:
    return latency(server, messages, PER_SECOND, 50 * messages)


MEASUREMENTS: dict[str, tuple[Callable[[Servers, int], dict[str, float]], int]] = {
    "throughput": (throughput, 200_000),
    "latency": (_latencies, 20_000),
    "latency-unacked": (_latencies_unacked, 20_000),
    "fan-out": (fan_out, 100_000),
    "fan-out-owned": (fan_out_owned, 100_000),
    "takeover": (takeover, 10_000),
}
"""What is measured, and with how many messages."""


def measure(options: argparse.Namespace) -> Document:
    """Measure each on a Redis of its own; `--quick` does a tenth of everything."""
    samples: list[Sample] = []
    for name in options.names:
        run, size = MEASUREMENTS[name]
        for repeat in range(options.repeats):
            say(f"streams: {name}, repeat {repeat + 1} of {options.repeats}")
            with standalone() as server:
                version = server.version
                samples.append(sample(name, repeat, run(server, size // (10 if options.quick else 1))))
    return {"redis": version, "settings": {"per_second": PER_SECOND}, "samples": samples}


def summarize(document: Document) -> Document:
    """Work out medians, and how consuming and sending compare to redis-py."""
    return {"rows": summary(document["samples"])}


def tables(document: Document) -> str:
    """Render what was measured."""
    rows: dict[str, Row] = document["rows"]
    parts: list[str] = []
    if found := rows.get("throughput"):
        lines = [
            (
                f"{what}, in batches",
                *(rendering.number(found[name]) for name in (what, f"{what}, redis-py")),
                rendering.ratio(found[what] / found[f"{what}, redis-py"]),
            )
            for what in ("send", "consume")
        ]
        parts.append(rendering.table(["", "RMQ, 1/s", "redis-py, 1/s", "ratio"], lines))
    if lines := [line for name in rows if name.startswith("latency") for line in _late(name, rows[name])]:
        columns = ["from sender to handler", *(f"< {bound:,} ms" for bound in HISTOGRAM_MS)]
        columns += ["p50, ms", "p99, ms", "p99.9, ms", "worst, ms"]
        published = ("published test of the original", "74 %", "99.9 % up to 2 ms", *["–"] * 8)
        text = f"{document['settings']['per_second']:,} messages a second; each share counts from the bound before it."
        parts.append(f"{text}\n\n{rendering.table(columns, [published, *lines])}")
    if lines := [_fanned(name, rows[name]) for name in rows if name.startswith("fan-out")]:
        columns = ["", "messages", "groups", "consumers", "killed -9", "seconds", "missing", "again", "out of order"]
        parts.append(rendering.table(columns, lines))
    if found := rows.get("takeover"):
        columns = ["", "entries", "taken over", "twice", "out of order", "new meanwhile", "latest of these, ms"]
        names = ("entries", "taken_over", "twice", "out_of_order", "new_meanwhile", "new_latest_ms")
        line = ("a dead consumer, 3 survivors", *(rendering.number(found[name]) for name in names))
        parts.append(rendering.table(columns, [line]))
    return f"Redis {document['redis']}.\n\n" + "\n\n".join(parts)


def _late(name: str, row: Row) -> list[tuple[str, ...]]:
    beside = f", beside {row['unacked']:,.0f} unacked entries" if row["unacked"] else ""
    return [
        (
            f"{who}{beside}",
            *(f"{row[f'{who} < {bound} ms']:.2f} %" for bound in HISTOGRAM_MS),
            *(rendering.number(row[f"{who} {tail}"], 2) for tail in ("p50_ms", "p99_ms", "p99.9_ms", "worst_ms")),
        )
        for who in ("RMQ", "redis-py")
    ]


def _fanned(name: str, row: Row) -> tuple[str, ...]:
    names = ("messages", "groups", "consumers", "killed")
    order = rendering.number(row.get("out_of_order"))
    figures = (rendering.number(row["seconds"], 1), *(rendering.number(row[key]) for key in ("missing", "redelivered")))
    what = "with owners in ZooKeeper" if name == "fan-out-owned" else "without owners"
    return what, *(rendering.number(row[key]) for key in names), *figures, order


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--names", nargs="+", choices=MEASUREMENTS, default=list(MEASUREMENTS), help="only these; all by default"
    )


BENCHMARK = Benchmark("streams", measure, tables, None, _arguments, summarize, repeats=1)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
