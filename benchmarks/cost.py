"""What a message's life costs the server and the client, against bare commands on the same server in the same run."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import product

from benchmarks.support import lives, loads, rendering
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.lives import LIFE, LISTEN, PULL, SEND
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
    contents = loads.contents(options.number)
    samples: list[Sample] = []
    with standalone() as servers:
        lives.warm_up(servers)
        for repeat, slots, kind in product(range(options.repeats), map(int, options.only), loads.TYPES):
            say(f"cost: repeat {repeat + 1} of {options.repeats}, {slots} slots, {kind.value}")
            load = lives.native_life(kind, contents, slots)
            found = {who: lives.floor(servers, load, lists=lists) for who, lists in FLOORS.items()}
            topic = loads.topic(kind, slots)
            found[RMQ] = lives.by_rmq(servers, topic, contents)
            if slots == SLOTS:
                found[RMQ][PULL] = lives.by_rmq(servers, topic, contents, PULL)[PULL]
            samples += [
                sample(_case(kind, slots, who, what), repeat, figures)
                for who, life in found.items()
                for what, figures in life.items()
            ]
        for turn in range(options.repeats):
            for cargo in loads.CARGOES[:: -1 if turn % 2 else 1]:
                say(f"cost: repeat {turn + 1} of {options.repeats}, {cargo}")
                merging = loads.topic(TopicType.RANGE_MERGE, SLOTS, cargo=cargo)
                parts = lives.by_rmq(servers, merging, contents, LISTEN, cargo)
                samples += [sample(f"{cargo}: {what}", turn, figures) for what, figures in parts.items()]
    settings = {"messages": options.number, "content_bytes": 20, "batch": loads.BATCH}
    return {"settings": settings, "samples": samples}


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
    carried: list[Row] = []
    for cargo, what in product(loads.CARGOES, (SEND, LISTEN, LIFE)):
        case, beside = f"{cargo}: {what}", f"{loads.BODIES}: {what}"
        over = {key: ratio(samples, case, beside, key) for key in ("server_cpu_us", "client_cpu_us")}
        carried += [{"cargo": cargo, "what": what, **found[case], "over": over}] if case in found else []
    return {"rows": rows, "carried": carried}


def tables(document: Document) -> str:
    """Render the comparison."""
    lines = rendering.listed(
        document["rows"],
        ("per message", "{type}, {what}"),
        ("slots", "{slots}"),
        ("floor, µs", "{floor[server_us]:,.2f}"),
        ("RMQ, µs", "{RMQ[server_us]:,.2f}"),
        ("ratio", "{floor[over][server_us]:×}"),
        ("with lists: floor, µs", "{floor with lists[server_us]:,.2f}"),
        ("ratio", "{floor with lists[over][server_us]:×}"),
        ("floor CPU, µs", "{floor[server_cpu_us]:,.2f}"),
        ("RMQ CPU, µs", "{RMQ[server_cpu_us]:,.2f}"),
        ("ratio", "{floor[over][server_cpu_us]:×}"),
        ("client CPU, µs", "{RMQ[client_cpu_us]:,.2f}"),
        ("RMQ, 1/s", "{RMQ[rate_per_s]:,.0f}"),
    )
    carried = rendering.listed(
        document.get("carried", ()),
        ("RANGE_MERGE with", "{cargo}, {what}"),
        ("server CPU, µs", "{server_cpu_us:,.2f}"),
        ("of bodies", "{over[server_cpu_us]:×}"),
        ("client CPU, µs", "{client_cpu_us:,.2f}"),
        ("of bodies", "{over[client_cpu_us]:×}"),
    )
    return rendering.text("cost", document, slots=SLOTS, table=lines, carried=carried)


def _panel(slots: int) -> rendering.Panel:
    def chosen(row: Row) -> bool:
        return row["slots"] == slots and row["what"] in (SEND, LISTEN)

    def of(who: str) -> Callable[[Row], float]:
        return lambda row: row[who]["server_us"]

    name = f"{{type}}\n{{what}}, {slots}"
    return rendering.Panel("µs per message, executing", name, {who: of(who) for who in (*FLOORS, RMQ)}, where=chosen)


PLOT = rendering.picture("Server time per message", *map(_panel, lives.ALL_SLOTS))
CASES = [str(slots) for slots in lives.ALL_SLOTS]
BENCHMARK = Benchmark("cost", measure, tables, PLOT, None, summarize, numbers=(100_000, 50_000), cases=CASES)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
