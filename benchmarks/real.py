"""End to end as a site runs it: with owners in ZooKeeper, an AOF, a replica; more slots, workers and Redis nodes.

With --owners instead: two workers of 16 slots, with owners in ZooKeeper, with owners in Redis, and without owners.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.support import loads, rendering
from benchmarks.support.children import Child, Line
from benchmarks.support.harness import Benchmark, Document, Row
from benchmarks.support.meters import CLIENT_SIDE, Figures, Meter, cpu_s
from benchmarks.support.samples import in_turns, ratio, summary
from benchmarks.support.servers import Servers, replicated, some
from rmq import Coordinator, RmqClient, Topic, TopicType
from tests.support.owned_worker import owned_by
from tests.support.zookeeper import ZooKeeperEnsemble

BARE, ALL, IN_ZOOKEEPER, IN_REDIS = "bare Redis", "all three", "ZooKeeper ownership", "Redis ownership"
SETUPS: dict[str, frozenset[str]] = {
    BARE: frozenset(),
    IN_ZOOKEEPER: frozenset({"owned"}),
    IN_REDIS: frozenset(),
    "AOF everysec": frozenset({"aof"}),
    "a replica, `replicated`": frozenset({"replica"}),
    ALL: frozenset({"owned", "aof", "replica"}),
}
SLOTS, MORE_SLOTS = 8, 64
WORKERS, NODES = (2, 4), (3,)
THREADS = 2
WARM_UP = 4_000
"""Messages before those that count: once they are through, each slot has its worker, and scripts are loaded."""
LIMIT_S = 300.0
COUNT, END = "count", "end"
"""Words to a worker: what comes now counts; all is handled."""


@dataclass(frozen=True, slots=True)
class Case:
    """A setup, and how many of what."""

    setup: str
    slots: int = SLOTS
    workers: int = 1
    nodes: int = 1
    batch: int | None = loads.BATCH

    @property
    def name(self) -> str:
        """The name of its samples."""
        way = "" if self.batch else ", one by one"
        return f"{self.setup}, {self.slots} slots, {self.workers} workers, {self.nodes} nodes{way}"


PARTS: dict[str, list[Case]] = {
    "slots": [Case(setup, slots) for slots in (SLOTS, MORE_SLOTS) for setup in SETUPS],
    "workers": [Case(setup, workers=workers) for workers in WORKERS for setup in (BARE, ALL)],
    "nodes": [Case(setup, MORE_SLOTS, nodes=nodes) for nodes in NODES for setup in (BARE, ALL)],
}
KEEPERS = (BARE, IN_ZOOKEEPER, IN_REDIS)
OWNERS = [Case(setup, 16, workers=2, batch=batch) for batch in (loads.BATCH, None) for setup in KEEPERS]
CASES = [*(case for part in PARTS.values() for case in part), *OWNERS]
RATIOS = ("rate_per_s", "server_cpu_us", "client_cpu_us", "calls")
SINGLE, SINGLE_PER_S = 10, 1_000
"""Where each message is sent by itself: by what the number of messages is divided, and how many are sent a second. So
few that the workers keep up: once they lag behind, a claim takes more messages, and costs follow by how far they do."""


def measure(options: argparse.Namespace) -> Document:
    """Send PRIORITY messages in one process and consume them in others at the same time, in each setup in turn."""
    number = options.number or (20_000 if options.quick else 100_000)
    places = count()
    with ZooKeeperEnsemble() as zookeeper:

        def measured(case: Case) -> Figures:
            traits = SETUPS[case.setup]
            with site(case.nodes, traits) as servers:
                place = (zookeeper.hosts, f"/real-{next(places)}") if "owned" in traits else None
                return run(servers, case, place, number if case.batch else number // SINGLE)

        chosen = OWNERS if options.owners else [each for part in options.parts for each in PARTS[part]]
        cases = {each.name: partial(measured, each) for each in chosen}
        samples = in_turns("real", options.repeats, cases)
    settings = {"messages": number, "type": "PRIORITY", "content_bytes": 20, "batch": loads.BATCH, "threads": THREADS}
    settings["single_per_s"] = SINGLE_PER_S
    named = {"benchmark": "owners"} if options.owners else {}
    return {**named, "settings": settings, "cores": os.cpu_count(), "samples": samples}


@contextlib.contextmanager
def site(nodes: int, traits: frozenset[str]) -> Iterator[Servers]:
    """Run the Redis servers of a setup."""
    config = ("appendonly yes", "appendfsync everysec") if "aof" in traits else ()
    with (replicated if "replica" in traits else some)(nodes, *config) as servers:
        yield servers


def run(servers: Servers, case: Case, zookeeper: tuple[str, str] | None, number: int) -> dict[str, float]:
    """Let a sender and the workers run at the same time, once every slot is served."""
    durability = "replicated" if servers.replica_ports else "memory"
    workers = [Child(_work, servers.url, case, zookeeper) for _ in range(case.workers)]
    sender = Child(_send, servers.url, case, durability, number)
    children = [*workers, sender]
    try:
        for child in children:
            child.wait_ready()
        for child in workers:
            child.go()
        if zookeeper or case.setup == IN_REDIS:
            _await_shares(workers, case)
        sender.go()
        sender.wait_ready()
        _await_handled(workers, WARM_UP)
        for child in workers:
            child.go(COUNT)
        with Meter(servers) as meter, Meter(servers.replicas) as replicas:
            sender.go()
            _await_handled(workers, number)
        for child in workers:
            child.go(END)
        sent = sender.result(LIMIT_S)
        handled = [child.result(LIMIT_S) for child in workers]
    finally:
        for child in children:
            child.end()
    elapsed_s = max(each["until_s"] for each in handled) - sent["from_s"]
    worker_cpu_s = sum(each["cpu_s"] for each in handled)
    return {
        "rate_per_s": number / elapsed_s,
        "send_rate_per_s": number / (sent["until_s"] - sent["from_s"]),
        "server_us": meter.cost.executing_us("evalsha") / number,
        "server_cpu_us": meter.cost.server_cpu_s * 1e6 / number,
        "replica_cpu_us": replicas.cost.server_cpu_s * 1e6 / number,
        "sender_cpu_us": sent["cpu_s"] * 1e6 / number,
        "worker_cpu_us": worker_cpu_s * 1e6 / number,
        "client_cpu_us": (sent["cpu_s"] + worker_cpu_s) * 1e6 / number,
        "calls": sum(meter.cost.calls.get(name, 0) for name in CLIENT_SIDE) / number,
    }


def _await_shares(workers: list[Child], case: Case) -> None:
    """Wait until each worker owns its share of the slots."""
    least = case.slots // case.workers
    owned = [0] * len(workers)
    deadline = time.monotonic() + LIMIT_S
    while min(owned) < least:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the workers own {owned} of {case.slots} slots")
        for place, child in enumerate(workers):
            owned[place] = next((word["owned"] for word in reversed(child.news()) if "owned" in word), owned[place])
        time.sleep(0.02)


def _await_handled(workers: list[Child], number: int) -> None:
    deadline, left = time.monotonic() + LIMIT_S, number
    while left > 0:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{left} of {number} messages are not handled")
        time.sleep(0.01)
        left -= sum(word.get("handled", 0) for child in workers for word in child.news())


def _send(line: Line, url: str, case: Case, durability: str, number: int) -> dict[str, float]:
    contents, priorities = loads.contents(number + WARM_UP), loads.priorities(10_000)
    with RmqClient(url, durability=durability) as client:
        producer = client.producer(_topic(case))
        one_by_one = lambda messages: deque(map(producer.send, loads.paced(messages, SINGLE_PER_S)), 0)  # noqa: E731
        send: Any = producer.send_many if case.batch else one_by_one
        line.ready()
        send(loads.soon(TopicType.PRIORITY, contents[number:], priorities, 0))
        line.ready()
        cpu_before_s, from_s = cpu_s(), time.time()
        send(loads.soon(TopicType.PRIORITY, contents[:number], priorities, 0))
        return {"from_s": from_s, "until_s": time.time(), "cpu_s": cpu_s() - cpu_before_s}


def _work(line: Line, url: str, case: Case, zookeeper: tuple[str, str] | None) -> dict[str, float]:
    lock = threading.Lock()
    fresh, until_s, cpu_before_s = 0, 0.0, 0.0

    def handle(delivered: Any) -> None:
        nonlocal fresh, until_s
        with lock:
            fresh += len(delivered) if case.batch else 1
            until_s = time.time()

    coordinator = Coordinator(zookeeper[0], chroot=zookeeper[1]) if zookeeper else None
    with RmqClient(url, zookeeper=coordinator, owners="redis" if case.setup == IN_REDIS else None) as client:
        client.listener(_topic(case), batch=case.batch, threads=THREADS)(handle)
        line.ready()
        client.start()
        owned, word = 0, None
        while word != END:
            time.sleep(0.01)
            if line.told() and (word := line.hear()) == COUNT:
                cpu_before_s = cpu_s()
            if owned != (now_owned := owned_by(client)):
                owned = now_owned
                line.report({"owned": owned})
            with lock:
                handled, fresh = fresh, 0
            if handled:
                line.report({"handled": handled})
        used_s = cpu_s() - cpu_before_s
        client.stop()
    return {"until_s": until_s, "cpu_s": used_s}


def _topic(case: Case) -> Topic:
    return Topic("bench-real", TopicType.PRIORITY, slots=case.slots)


def summarize(document: Document) -> Document:
    """Work out medians, and each setup's ratios to the one that it is held against in the same repeat."""
    samples, found = document["samples"], summary(document["samples"])
    against = IN_ZOOKEEPER if document["benchmark"] == "owners" else BARE
    rows: list[Row] = []
    for case in CASES:
        if case.name in found:
            beside = replace(case, setup=against).name
            names = {"setup": case.setup, "slots": case.slots, "workers": case.workers, "nodes": case.nodes}
            ratios = {f"{figure}_ratio": ratio(samples, case.name, beside, figure) for figure in RATIOS}
            rows.append({**names, "batch": case.batch, **found[case.name], **ratios})
    return {"rows": rows}


def tables(document: Document) -> str:
    """Render the rates."""
    settings = document["settings"]
    if document["benchmark"] == "owners":
        return _owners_table(document)
    rates = rendering.listed(
        document["rows"],
        ("setup", "{setup}"),
        ("slots", "{slots}"),
        ("workers", "{workers}"),
        ("Redis nodes", "{nodes}"),
        ("end to end, 1/s", "{rate_per_s:,.0f}"),
        ("of bare", "{rate_per_s_ratio:×}"),
        ("EVALSHA, µs", "{server_us:,.2f}"),
        ("Redis CPU, µs", "{server_cpu_us:,.2f}"),
        ("of bare", "{server_cpu_us_ratio:×}"),
        ("replica CPU, µs", "{replica_cpu_us:,.2f}"),
        ("sender CPU, µs", "{sender_cpu_us:,.2f}"),
        ("worker CPU, µs", "{worker_cpu_us:,.2f}"),
    )
    return (
        f"{settings['messages']:,} {settings['type']} messages of {settings['content_bytes']} bytes, batches of "
        f"{settings['batch']}, handlers that do nothing; one process sends while the workers, of {settings['threads']} "
        f"threads each, consume. Redis {document['redis']}, ZooKeeper and all processes share {document['cores']} "
        "cores. `end to end`: from the first send to the last delivery. `EVALSHA`: its time in `INFO commandstats`. "
        "`of bare`: medians of the ratios to the bare Redis with as many slots, workers and nodes in the same repeat."
        f"\n\n{rates}"
    )


def _owners_table(document: Document) -> str:
    settings, of = document["settings"], "of ZooKeeper"
    costs = rendering.listed(
        document["rows"],
        ("setup", "{setup}"),
        ("sent and handled", lambda row: f"in batches of {row['batch']}" if row["batch"] else "one by one"),
        ("messages/s", "{rate_per_s:,.0f}"),
        (of, "{rate_per_s_ratio:×}"),
        ("Redis CPU, µs", "{server_cpu_us:,.2f}"),
        (of, "{server_cpu_us_ratio:×}"),
        ("client CPU, µs", "{client_cpu_us:,.2f}"),
        (of, "{client_cpu_us_ratio:×}"),
        ("calls", "{calls:,.4g}"),
        (of, "{calls_ratio:×}"),
    )
    return (
        f"{settings['messages']:,} {settings['type']} messages of {settings['content_bytes']} bytes, one by one "
        f"{settings['messages'] // SINGLE:,} at {settings['single_per_s']:,} a second, in 16 slots; handlers that do "
        f"nothing. One process sends while two workers, of {settings['threads']} threads each, consume. `messages/s`: "
        "from the first send to the last "
        "delivery. CPU and calls to Redis are for each message, those of sender, workers and keepers of the owners "
        f"together. Redis {document['redis']}, ZooKeeper, which runs in all cases and is not counted, and all "
        f"processes share {document['cores']} cores. `{of}`: medians of the ratios to owners in ZooKeeper in the same "
        f"repeat; every second repeat has the reverse order.\n\n{costs}"
    )


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--number", type=int, help="messages (100,000; quick: 20,000)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what is varied; all by default")
    parser.add_argument("--owners", action="store_true", help="owners in Redis beside owners in ZooKeeper instead")


PLOT = rendering.picture(
    "End to end as a site runs it",
    rendering.Panel(
        "thousand messages per second",
        "{setup}\n{slots} slots",
        {"": "rate_per_s"},
        where=lambda row: (row["workers"], row["nodes"]) == (1, 1),
        each=1_000,
        digits=0,
    ),
)


def _plot(document: Document, path: Path) -> None:
    if document["benchmark"] == "real":
        PLOT(document, path)


BENCHMARK = Benchmark("real", measure, tables, _plot, _arguments, summarize)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
