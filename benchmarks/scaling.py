"""What a message costs as nodes, workers, producers and slots are added, and what that makes of more cores."""

from __future__ import annotations

import argparse
from functools import partial
from itertools import product

from benchmarks.support import loads, rendering
from benchmarks.support.flow import SLOTS, flow
from benchmarks.support.harness import Benchmark, Document, Row
from benchmarks.support.meters import Figures, rounded
from benchmarks.support.samples import in_turns, summary
from benchmarks.support.servers import some

NODES, WORKERS, PRODUCERS = (1, 3), (1, 2, 4), (1, 2, 4)
KINDS = ("priority", "priority in columns")
MANY_SLOTS = (1, 64, 512, 4_096)
CORES = (2, 4, 8, 16)

Case = tuple[str, int, int, int, int]
"""Kind, nodes, producers, workers, slots."""


def cases() -> list[Case]:
    """Return all of nodes x producers x workers for objects, the ends of it for columns, and more slots."""
    grid = [(KINDS[0], *counts, SLOTS) for counts in product(NODES, PRODUCERS, WORKERS)]
    columns = [(KINDS[1], nodes, count, count, SLOTS) for nodes in NODES for count in (1, 4)]
    return [*grid, *columns, *((KINDS[0], 1, 1, 1, slots) for slots in MANY_SLOTS)]


def measure(options: argparse.Namespace) -> Document:
    """Let producers send while workers consume, with each number of nodes."""

    def run(kind: str, nodes: int, producers: int, workers: int, slots: int) -> Figures:
        with some(nodes) as servers:
            return flow(servers, kind, options.number, senders=producers, workers=workers, slots=slots)

    named = {f"{case}": case for case in cases()}
    found = summary(in_turns("scaling", options.repeats, {name: partial(run, *case) for name, case in named.items()}))
    names = ("kind", "nodes", "producers", "workers", "slots")
    rows = [{**dict(zip(names, named[name], strict=True)), **row} for name, row in found.items()]
    settings = {"messages": options.number, "batch": loads.BATCH, "type": "PRIORITY"}
    return {
        "settings": settings,
        "rows": rows,
        "model": [model(row, cores) for row in rows if _modelled(row) for cores in CORES],
    }


def _modelled(row: Row) -> bool:
    """Return whether the costs of a row go into the model: the least processes, and those that share the work."""
    return row["slots"] == SLOTS and row["producers"] == row["workers"] and row["workers"] in (1, 4)


def model(row: Row, cores: int) -> Row:
    """Return how many messages a second so many cores take, and what they wait for: Redis, or the clients.

    Each node takes a core to itself at most, producers and workers share the others.
    """
    server_us, client_us = row["server_cpu_us"], row["sender_cpu_us"] + row["consumer_cpu_us"]
    clients = cores - min(row["nodes"], cores - 1)
    by_server, by_clients = ((cores - clients) / server_us * 1e6, clients / client_us * 1e6)
    return {
        "kind": row["kind"],
        "nodes": row["nodes"],
        "processes": row["producers"] + row["workers"],
        "cores": cores,
        "rate_per_s": rounded(min(by_server, by_clients)),
        "waits_for": "Redis" if by_server < by_clients else "clients",
        "enough_cores": rounded(row["nodes"] * (1 + client_us / server_us)),
    }


def tables(document: Document) -> str:
    """Render costs, and the model."""
    lines = rendering.listed(
        document["rows"],
        ("", "{kind}"),
        ("Redis", "{nodes}"),
        ("producers", "{producers}"),
        ("workers", "{workers}"),
        ("slots", "{slots:,}"),
        ("producer CPU, µs", "{sender_cpu_us:,.2f}"),
        ("worker CPU, µs", "{consumer_cpu_us:,.2f}"),
        ("server CPU, µs", "{server_cpu_us:,.2f}"),
        ("calls per 1,000", "{calls_per_1000:,.1f}"),
    )
    rates = {(row["kind"], row["nodes"], row["processes"], row["cores"]): row for row in document["model"]}
    ends = rendering.listed(
        [row for row in document["model"] if row["cores"] == CORES[-1]],
        ("costs of", "{kind}, {processes} processes"),
        ("Redis", "{nodes}"),
        *(
            (
                f"{cores} cores, 1/s",
                lambda row, cores=cores: _end(rates[row["kind"], row["nodes"], row["processes"], cores]),
            )
            for cores in CORES
        ),
        ("Redis is busy from", "{enough_cores:,.1f} cores"),
    )
    return rendering.text("scaling", document, table=lines, ends=ends)


def _end(row: Row) -> str:
    return f"{row['rate_per_s']:,.0f} ({row['waits_for']})"


COSTS = {"producer": "sender_cpu_us", "worker": "consumer_cpu_us", "server": "server_cpu_us"}
PLOT = rendering.picture(
    "Scaling",
    rendering.Panel(
        "CPU, µs per message",
        "{nodes} Redis\n{producers} + {workers}",
        COSTS,
        where=lambda row: row["kind"] == KINDS[0] and row["slots"] == SLOTS and row["producers"] == row["workers"],
    ),
    rendering.Panel(
        "CPU, µs per message",
        "{slots:,} slots",
        COSTS,
        where=lambda row: row["nodes"] * row["producers"] * row["workers"] == 1 and row["kind"] == KINDS[0],
    ),
)
BENCHMARK = Benchmark("scaling", measure, tables, PLOT, repeats=3, numbers=(100_000, 50_000))
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
