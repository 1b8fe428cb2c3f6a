"""What one frozen node of a cluster costs the others: rate, leases, and how soon it is back.

A node is stopped by SIGSTOP, as a hung machine or a partition would: it refuses nothing and answers nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from benchmarks.support.children import Child, Line
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.servers import Servers, cluster
from rmq import PriorityMessage, RmqClient, RmqError, Topic, TopicType, aio
from rmq._broker.keys import slot_keys
from rmq._transport.cluster_map import hash_slot

SLOTS = 16
LEASE_S = 5.0
HANDLER_S = 0.002
MODES = ("1 thread", "4 threads", "16 threads", "asyncio 16")
BEFORE_S = 5.0
AHEAD = 4_000
NODE_TIMEOUT = "cluster-node-timeout 600000"
"""The nodes shall not declare the frozen one dead: without replicas, the cluster would go down with it."""


def measure(options: argparse.Namespace) -> Document:
    """Measure a listener on two masters, of which one is frozen for a while."""
    seconds: float = options.seconds or (10.0 if options.quick else 60.0)
    rows: list[Row] = []
    with cluster(2, NODE_TIMEOUT) as servers:
        for number, mode in enumerate(options.modes):
            rows.append({"mode": mode} | _rates(servers, f"rate{number}", mode, seconds))
            rows[-1] |= _leases(servers, f"lease{number}", mode, seconds)
            say(f"{mode}: {rows[-1]}")
        version = servers.version
    settings = {"seconds": seconds, "lease_s": LEASE_S, "handler_s": HANDLER_S, "slots": SLOTS, "redis": version}
    return {"settings": settings, "rows": rows}


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, help="how long the node is frozen (60; quick: 10)")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)


def _rates(servers: Servers, name: str, mode: str, seconds: float) -> Row:
    """Count what a listener handles from the healthy node before, during and after the freeze."""
    topic = Topic(name, TopicType.PRIORITY, slots=SLOTS, lease=timedelta(seconds=LEASE_S))
    healthy, frozen = _slots_of(topic)
    with _feeding(servers.url, topic, healthy, frozen) as feed:
        child = Child(_count, servers.url, topic, mode, healthy)
        try:
            child.wait_ready()
            child.go()
            while child.reported()[0] < 50:
                pass
            time.sleep(1.0)
            before = _rate(child, BEFORE_S)
            feed.clear()
            with _freeze(servers):
                windows = [_rate(child, seconds / 5) for _ in range(5)]
                frozen_count = child.reported()[1]
            thawed_s = time.monotonic()
            back_s = None
            while back_s is None and time.monotonic() - thawed_s < 20:
                if child.reported()[1] > frozen_count:
                    back_s = round(time.monotonic() - thawed_s, 2)
        finally:
            child.end()
    during = sum(windows) / len(windows)
    return {
        "before_per_s": round(before),
        "frozen_per_s": round(during),
        "windows_per_s": [round(window) for window in windows],
        "worst_window_per_s": round(min(windows)),
        "share": round(during / before, 2),
        "back_s": back_s,
    }


def _leases(servers: Servers, name: str, mode: str, seconds: float) -> Row:
    """Hold handlers on both nodes over the freeze, beside a second listener that takes what is lost."""
    topic = Topic(name, TopicType.PRIORITY, slots=SLOTS, lease=timedelta(seconds=LEASE_S))
    healthy, frozen = _slots_of(topic)
    number = _lanes(mode)
    with RmqClient(servers.url) as client:
        producer = client.producer(topic)
        first = Child(_hold, servers.url, topic, mode, seconds + 15)
        second = None
        try:
            first.wait_ready()
            first.go()
            producer.send_many(_for_slots(topic, healthy, range(max(1, number // 2))))
            producer.send_many(_for_slots(topic, frozen, range(number // 2)))
            begun: set[str] = set()
            while len(begun) < max(1, number // 2) + number // 2:
                kind, content = first.reported()
                begun |= {content} if kind == "begun" else set()
            second = Child(_hold, servers.url, topic, mode, seconds + 15)
            second.wait_ready()
            second.go()
            time.sleep(1.0)
            with _freeze(servers):
                time.sleep(seconds)
                news, others = first.news(), second.news()
        finally:
            first.end()
            if second is not None:
                second.end()
    ours = {content for content in begun if _slot_of(topic, content) in healthy}
    lost = {content for kind, content in news if kind == "lost"}
    return {
        "held_healthy": len(ours),
        "lost_healthy": len(lost & ours),
        "overlaps": len({content for kind, content in others if kind == "begun"} & ours),
        "held_frozen": len(begun - ours),
        "lost_frozen": len(lost - ours),
    }


def _count(line: Line, url: str, topic: Topic, mode: str, healthy: Sequence[int]) -> None:
    """Handle, and report several times a second how much came from either node."""
    counts = [0, 0]
    mine = set(healthy)

    def count(slot: int) -> None:
        counts[slot not in mine] += 1

    line.ready()
    with _listening(url, topic, mode, HANDLER_S, lambda delivery: count(delivery.slot), lambda delivery: None):
        while True:
            time.sleep(0.1)
            line.report(list(counts))


def _hold(line: Line, url: str, topic: Topic, mode: str, seconds: float) -> None:
    """Handle slowly, and report what begins and whose lease is lost."""
    line.ready()
    with _listening(
        url,
        topic,
        mode,
        seconds,
        lambda delivery: line.report(("begun", delivery.text)),
        lambda delivery: line.report(("lost", delivery.text)),
    ):
        time.sleep(10 * seconds)


@contextmanager
def _listening(
    url: str,
    topic: Topic,
    mode: str,
    handler_s: float,
    on_begin: Callable[[Any], None],
    on_lost: Callable[[Any], None],
) -> Iterator[None]:
    if mode.startswith("asyncio"):
        loop = asyncio.new_event_loop()

        async def run() -> None:
            client = await aio.RmqClient(url).open()

            async def handle(delivery: aio.Delivery) -> None:
                on_begin(delivery)
                await asyncio.sleep(handler_s)

            client.listener(topic, concurrency=_lanes(mode), on_lost=on_lost)(handle)
            await client.start()
            await asyncio.sleep(100_000)

        threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True).start()
        yield
        return
    client = RmqClient(url)

    @client.listener(topic, threads=_lanes(mode), on_lost=on_lost)
    def handle(delivery: Any) -> None:
        on_begin(delivery)
        time.sleep(handler_s)

    client.start()
    yield


@contextmanager
def _feeding(url: str, topic: Topic, healthy: Sequence[int], frozen: Sequence[int]) -> Iterator[threading.Event]:
    """Keep a backlog on both nodes; on the healthy one only, once the event is cleared.

    Each node has a feeder of its own: a send that waits for the frozen node must not leave the healthy one dry.
    """
    both, ended = threading.Event(), threading.Event()
    both.set()

    def feed(slots: Sequence[int], wanted: threading.Event | None) -> None:
        number = 0
        with RmqClient(url) as client:
            producer, inspection = client.producer(topic), client.inspect(topic)
            while not ended.is_set() and (wanted is None or wanted.is_set()):
                try:
                    if inspection.stats(slots).backlog < AHEAD:
                        producer.send_many(_for_slots(topic, slots, range(number, number + 4 * AHEAD)))
                        number += 4 * AHEAD
                except RmqError:
                    if wanted is None or wanted.is_set():
                        raise
                ended.wait(0.1)

    feeders = [threading.Thread(target=feed, args=args) for args in ((healthy, None), (frozen, both))]
    for feeder in feeders:
        feeder.start()
    try:
        yield both
    finally:
        ended.set()
        for feeder in feeders:
            feeder.join()


@contextmanager
def _freeze(servers: Servers) -> Iterator[None]:
    """Stop the second node."""
    pid = int(servers.connect(1).info("server")["process_id"])
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _rate(child: Child, seconds: float) -> float:
    """Return how many messages a second came from the healthy node."""
    child.news()
    first, started_s = child.reported()[0], time.monotonic()
    time.sleep(seconds)
    last = child.news()[-1][0]
    return (last - first) / (time.monotonic() - started_s)


def _slots_of(topic: Topic) -> tuple[list[int], list[int]]:
    """Return the slots on the first node, and on the second."""
    first = [slot for slot in range(SLOTS) if hash_slot(slot_keys(topic.name, slot).store) < 8_192]
    return first, [slot for slot in range(SLOTS) if slot not in first]


def _slot_of(topic: Topic, content: str) -> int:
    return topic.slot_of(content.partition("/")[0].encode())


def _for_slots(topic: Topic, slots: Sequence[int], numbers: range) -> Iterator[PriorityMessage]:
    bases = {topic.slot_of(f"b{index}".encode()): f"b{index}" for index in range(2_000)}
    for number in numbers:
        basis = bases[slots[number % len(slots)]]
        yield PriorityMessage(f"{basis}/{number}", 100, slot_basis=basis)


def _lanes(mode: str) -> int:
    return int(mode.removeprefix("asyncio").split()[0])


def tables(document: Document) -> str:
    """Render the rows as Markdown."""
    settings = document["settings"]
    lines = [
        f"Two masters, one stopped by SIGSTOP for {settings['seconds']:g} s; leases of {settings['lease_s']:g} s, "
        f"handlers of {1000 * settings['handler_s']:g} ms.",
        "",
        "| listener | healthy node, msg/s before | while the other is frozen | share | worst fifth "
        "| back after | leases lost, healthy | overlaps | leases lost, frozen |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row['mode']} | {row['before_per_s']:,} | {row['frozen_per_s']:,} | {row['share']:.0%} "
        f"| {row['worst_window_per_s']:,} | {row['back_s']} s | {row['lost_healthy']} of {row['held_healthy']} "
        f"| {row['overlaps']} | {row['lost_frozen']} of {row['held_frozen']} |"
        for row in document["rows"]
    ]
    return "\n".join(lines)


BENCHMARK = Benchmark("freeze", measure, tables, arguments=_arguments)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
