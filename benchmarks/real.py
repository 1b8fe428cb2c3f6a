"""End to end as a site runs it: with owners in ZooKeeper, an AOF, a replica; more slots, workers and Redis nodes.

With --owners instead: two workers of 16 slots, with owners in ZooKeeper, with owners in Redis, and without owners.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.support import loads, rendering
from benchmarks.support.flow import THREADS, Site, flow
from benchmarks.support.harness import Benchmark, Document, Row
from benchmarks.support.meters import Figures
from benchmarks.support.samples import in_turns, ratio, summary
from benchmarks.support.servers import Servers, some
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
WARM_UP = 4_000
"""Messages before those that count: once they are through, each slot has its worker, and scripts are loaded."""


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
    number: int = options.number
    places = count()
    with ZooKeeperEnsemble() as zookeeper:

        def measured(case: Case) -> Figures:
            traits = SETUPS[case.setup]
            with site(case.nodes, traits) as servers:
                place = (zookeeper.hosts, f"/real-{next(places)}") if "owned" in traits else None
                return run(servers, case, place, number if case.batch else number // SINGLE)

        chosen = OWNERS if options.owners else [each for part in options.only for each in PARTS[part]]
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
    with some(nodes, *config, replicas="replica" in traits) as servers:
        yield servers


def run(servers: Servers, case: Case, zookeeper: tuple[str, str] | None, number: int) -> Figures:
    """Let a sender and the workers run at the same time, once every slot is served."""
    owners = {"zookeeper": zookeeper} if zookeeper else {"owners": "redis"} if case.setup == IN_REDIS else None
    site = Site("replicated" if servers.replica_ports else "memory", owners, case.batch, WARM_UP)
    rate = 0 if case.batch else SINGLE_PER_S
    found = flow(servers, "priority", number, rate=rate, workers=case.workers, slots=case.slots, site=site)
    return {
        "rate_per_s": found["both_rate_per_s"],
        "send_rate_per_s": found["sent_per_s"],
        **{key: found[key] for key in ("server_us", "server_cpu_us", "replica_cpu_us", "sender_cpu_us")},
        "worker_cpu_us": found["consumer_cpu_us"],
        "client_cpu_us": found["sender_cpu_us"] + found["consumer_cpu_us"],
        "calls": found["calls_per_1000"] / 1_000,
    }


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
    return rendering.text("real", document, table=rates)


def _owners_table(document: Document) -> str:
    of = "of ZooKeeper"
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
    return rendering.text("owners", document, singles=document["settings"]["messages"] // SINGLE, of=of, table=costs)


def _arguments(parser: argparse.ArgumentParser) -> None:
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


BENCHMARK = Benchmark("real", measure, tables, _plot, _arguments, summarize, numbers=(100_000, 20_000), cases=PARTS)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
