"""What a message's life costs the server and the client, against bare commands on the same server in the same run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.support import lives, loads, rendering
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.lives import LIFE, LISTEN, PULL, SEND, Figures
from benchmarks.support.samples import Sample, ratio, sample, summary
from benchmarks.support.servers import standalone
from rmq import TopicType

SLOTS = 8
"""The slots of the figures that the README names."""
RMQ = "RMQ"
FLOORS = {"floor with lists": True, "floor": False}
"""Native commands on a server that keeps small sets as lists, as all do by default, and on one that does not."""
PARTS = (SEND, LISTEN, PULL, LIFE)


def measure(options: argparse.Namespace) -> Document:
    """Measure send, claim and ack of each topic type against bare ZADD, ZPOPMIN, ZADD and ZREM."""
    number = options.number or (50_000 if options.quick else 100_000)
    contents = loads.contents(number)
    samples: list[Sample] = []
    with standalone() as servers:
        lives.warm_up(servers)
        for repeat in range(options.repeats):
            for slots in options.slots:
                for kind in loads.TYPES:
                    say(f"cost: repeat {repeat + 1} of {options.repeats}, {slots} slots, {kind.value}")
                    load = lives.native_life(kind, contents, slots)
                    for who, lists in FLOORS.items():
                        samples += _samples(kind, slots, who, repeat, lives.floor(servers, load, lists=lists))
                    topic = loads.topic(kind, slots)
                    samples += _samples(kind, slots, RMQ, repeat, lives.by_rmq(servers, topic, contents))
                    if slots == SLOTS:
                        pulled = lives.by_rmq(servers, topic, contents, PULL)
                        samples += _samples(kind, slots, RMQ, repeat, {PULL: pulled[PULL]})
        version = servers.version
    settings = {"messages": number, "content_bytes": 20, "batch": loads.BATCH}
    return {"redis": version, "settings": settings, "samples": samples}


def _samples(kind: TopicType, slots: int, who: str, repeat: int, figures: Figures) -> list[Sample]:
    return [sample(_case(kind, slots, who, what), repeat, each) for what, each in figures.items()]


def _case(kind: TopicType, slots: int, who: str, what: str) -> str:
    return f"{kind.value}, {slots} slots, {who}, {what}"


def summarize(document: Document) -> Document:
    """Work out medians, and ratios to both floors within the repeats."""
    samples, found = document["samples"], summary(document["samples"])
    rows: list[Row] = []
    for slots in lives.ALL_SLOTS:
        for kind in loads.TYPES:
            for what in PARTS:
                ours = _case(kind, slots, RMQ, what)
                if ours not in found:
                    continue
                row: Row = {"type": kind.value, "slots": slots, "what": what, RMQ: found[ours]}
                for who in FLOORS:
                    beside = _case(kind, slots, who, LISTEN if what == PULL else what)
                    over = {key: ratio(samples, ours, beside, key) for key in ("server_us", "server_cpu_us")}
                    row[who] = {**found[beside], "over": over}
                rows.append(row)
    return {"rows": rows}


def tables(document: Document) -> str:
    """Render the comparison."""
    columns = ["per message", "slots", "floor, µs", "RMQ, µs", "ratio", "with lists: floor, µs", "ratio"]
    columns += ["floor CPU, µs", "RMQ CPU, µs", "ratio", "client CPU, µs", "RMQ, 1/s"]
    settings = document["settings"]
    return (
        f"{settings['messages']:,} messages of {settings['content_bytes']} bytes, batches of {settings['batch']}, "
        f"Redis {document['redis']}. `µs`: execution time by `INFO commandstats`; `CPU`: all of the server's CPU time, "
        "with reading, parsing and writing. The floor works on as many sets as there are slots; it has neither leases, "
        "retries, fencing, compare-and-set nor counts. It ran with `zset-max-listpack-entries 0`, as sends "
        "and claims of batches make no lists, and once more with 128, the default (`with lists`).\n\n"
        + rendering.table(columns, [_line(row) for row in document["rows"]])
    )


def _line(row: Row) -> list[Any]:
    ours, bare, listed = row[RMQ], row["floor"], row["floor with lists"]
    return [
        f"{row['type']}, {row['what']}",
        row["slots"],
        *(rendering.number(each["server_us"], 2) for each in (bare, ours)),
        rendering.ratio(bare["over"]["server_us"]),
        rendering.number(listed["server_us"], 2),
        rendering.ratio(listed["over"]["server_us"]),
        *(rendering.number(each["server_cpu_us"], 2) for each in (bare, ours)),
        rendering.ratio(bare["over"]["server_cpu_us"]),
        rendering.number(ours["client_cpu_us"], 2),
        rendering.number(ours["rate_per_s"]),
    ]


def plot(document: Document, path: Path) -> None:
    """Draw server time per message beside the floors, for each number of slots."""
    shown = [slots for slots in lives.ALL_SLOTS if any(row["slots"] == slots for row in document["rows"])]
    made, axes = rendering.figure(len(shown), "Server time per message")
    for axis, slots in zip(axes, shown, strict=True):
        rows = [row for row in document["rows"] if row["slots"] == slots and row["what"] in (SEND, LISTEN)]
        names = [f"{row['type'].replace('_', ' ').lower()}\n{row['what']}" for row in rows]
        series = {who: [row[who]["server_us"] for row in rows] for who in (*FLOORS, RMQ)}
        rendering.bars(axis, names, series, "µs per message, executing")
        axis.tick_params(axis="x", labelsize=7)
        axis.set_title(f"{slots} slots", fontsize=9)
    rendering.save(made, path)


BENCHMARK = Benchmark("cost", measure, tables, plot, lives.add_arguments, summarize)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
