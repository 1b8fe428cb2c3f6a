"""Redis and Valkey side by side: cost, rate, and what small sets as lists cost and save."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.support import lives, loads, rendering
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.lives import LIFE, LISTEN, SEND
from benchmarks.support.samples import Sample, ratio, sample, summary
from benchmarks.support.servers import DEFAULT_ENTRIES, Servers, program, standalone
from benchmarks.throughput import STREAMS, both_at_once
from rmq import RmqClient, Topic, TopicType
from tests.support.server_matrix import Server, servers

COST, MEMORY = "cost", "memory"
SLOTS, MANY_SLOTS = 8, 64
KINDS = (TopicType.PRIORITY, TopicType.RANGE_MERGE)
FLOOR, FLOOR_LISTS, NO_LISTS = "floor", "floor with lists", "RMQ without lists"
ENTRIES = (DEFAULT_ENTRIES, 0)
SMALL_SLOTS = 1_024
SHAPES = {
    "10 a slot": (SMALL_SLOTS, 10, 10),
    "80 a slot, sent 10 at a time": (SMALL_SLOTS, 80, 10),
    "80 a slot, sent at once": (MANY_SLOTS, 80, 80),
    "12,500 a slot": (SLOTS, 12_500, 12_500),
}
"""Slots, messages for each on average, and how many of them a send brings."""


def measure(options: argparse.Namespace) -> Document:
    """Measure each server in turn: a life beside native commands, both directions at once, and bytes a message."""
    number = options.number or (20_000 if options.quick else 100_000)
    found = {each.name: each for each in servers(dict(os.environ))}
    names = options.servers or list(found)
    if unknown := set(names) - found.keys():
        raise SystemExit(f"no such server: {', '.join(sorted(unknown))}; there are {', '.join(found)}")
    samples: list[Sample] = []
    for repeat in range(options.repeats if COST in options.parts else 0):
        for server in map(found.__getitem__, names):
            say(f"servers: repeat {repeat + 1} of {options.repeats}, {server.name}")
            with program(server.program):
                samples += _costs(server, repeat, number)
                for kind in (TopicType.PRIORITY.value, STREAMS):
                    with standalone() as alone:
                        figures = both_at_once(alone, kind, 2 * number)
                    samples.append(sample(_case(server.name, kind), repeat, figures))
    document: Document = {
        "settings": {"messages": number, "content_bytes": 20, "batch": loads.BATCH},
        "servers": {name: found[name].version for name in names},
        "samples": samples,
    }
    if MEMORY in options.parts:
        document["memory"] = [_memory(found[name], options.quick) for name in names]
    return document


def _case(server: str, *what: str) -> str:
    return " / ".join((server, *what))


def _costs(server: Server, repeat: int, number: int) -> list[Sample]:
    """Measure lives: of two types in 8 slots beside both floors, and in many slots with and without lists."""
    contents = loads.contents(number)
    found: dict[str, lives.Figures] = {}
    with standalone() as alone:
        lives.warm_up(alone)
        for kind in KINDS:
            load = lives.native_life(kind, contents, SLOTS)
            found[_case(kind.value, FLOOR_LISTS)] = lives.floor(alone, load, lists=True)
            found[_case(kind.value, FLOOR)] = lives.floor(alone, load, lists=False)
            found[_case(kind.value, "RMQ")] = lives.by_rmq(alone, loads.topic(kind, SLOTS), contents)
        many = loads.topic(TopicType.PRIORITY, MANY_SLOTS)
        found["many slots, RMQ"] = lives.by_rmq(alone, many, contents)
        alone.keep_lists(0)
        found[f"many slots, {NO_LISTS}"] = lives.by_rmq(alone, many, contents)
    return [
        sample(_case(server.name, name, part), repeat, figures)
        for name, parts in found.items()
        for part, figures in parts.items()
    ]


def _memory(server: Server, quick: bool) -> Row:
    """Return what a message takes in backlogs of several shapes, with small sets as lists and without."""
    say(f"servers: memory of {server.name}")
    figures: dict[str, dict[str, float]] = {}
    allocator = ""
    with program(server.program):
        for shape, (slots, each, portion) in SHAPES.items():
            if quick and each > 1_000:
                each = portion = 1_000
            figures[shape] = {}
            for entries in ENTRIES:
                with standalone() as alone:  # a new one: what a flush leaves to be freed would count
                    alone.keep_lists(entries)
                    figures[shape][str(entries)] = round(bytes_a_message(alone, slots, each, portion), 1)
                    allocator = str(alone.connect().info("memory")["mem_allocator"])
    return {"name": server.name, "allocator": allocator, "bytes": figures}


def bytes_a_message(alone: Servers, slots: int, each: int, portion: int) -> float:
    """Fill slots that have been used before; return the growth of the server's memory for each message."""
    topic = Topic("bench-bytes", TopicType.PRIORITY, slots=slots)
    with RmqClient(alone.url) as client:
        producer, consumer = client.producer(topic), client.consumer(topic)
        warm = 16 * slots
        producer.send_many(loads.priority_messages(loads.contents(warm, 50_000_000), loads.priorities(warm)))
        done = 0
        while done < warm:
            page = consumer.poll(1_000, 1.0)
            consumer.ack(page)
            done += len(page)
        before = _used(alone)
        for first in range(0, each, portion):
            part = loads.contents(slots * portion, slots * first)
            producer.send_many(loads.priority_messages(part, loads.priorities(len(part))))
        return (_used(alone) - before) / (slots * each)


def _used(alone: Servers) -> int:
    return int(alone.connect().info("memory")["used_memory"])


def summarize(document: Document) -> Document:
    """Work out medians, and ratios within the repeats, for each server."""
    samples, found = document["samples"], summary(document["samples"])
    rows: list[Row] = []
    for name, version in document["servers"].items():
        row: Row = {"server": name, "version": version}
        for kind in KINDS:
            ours = {part: _case(name, kind.value, "RMQ", part) for part in (SEND, LISTEN, LIFE)}
            over = {
                who: ratio(samples, ours[LIFE], _case(name, kind.value, who, LIFE), "server_us")
                for who in (FLOOR, FLOOR_LISTS)
            }
            row[kind.value] = {**{part: found[case] for part, case in ours.items()}, "over": over}
        both = _case(name, TopicType.PRIORITY.value)
        row["both"] = found[both]
        row["streams"] = found[_case(name, STREAMS)]
        row["of_streams"] = ratio(samples, both, _case(name, STREAMS), "both_rate_per_s")
        many = [_case(name, f"many slots, {who}", LIFE) for who in ("RMQ", NO_LISTS)]
        row["many"] = [found[case]["server_us"] for case in many]
        row["gain"] = ratio(samples, many[1], many[0], "server_us")
        rows.append(row)
    return {"rows": rows}


def tables(document: Document) -> str:
    """Render cost, rates, and what the setting of lists brings and takes."""
    settings = document["settings"]
    costs = [(f"{row['server']}, {kind.value}", *_life(row[kind.value])) for row in document["rows"] for kind in KINDS]
    columns = ["server, type", "send, µs", "claim + ack, µs", "life, µs", "of the floor", "of the floor with lists"]
    rates = [
        (
            row["server"],
            rendering.number(row["both"]["both_rate_per_s"]),
            rendering.number(row["both"]["server_cpu_us"], 2),
            rendering.number(row["streams"]["both_rate_per_s"]),
            rendering.ratio(row["of_streams"]),
        )
        for row in document["rows"]
    ]
    rate_columns = ["server", "end to end, 1/s", "server CPU, µs", "Redis Streams, 1/s", "of Streams"]
    lists = [
        (row["server"], *(rendering.number(us, 2) for us in row["many"]), rendering.ratio(row["gain"]))
        for row in document["rows"]
    ]
    list_columns = [f"a life, {MANY_SLOTS} slots", "128, µs", "0, µs", "0 of 128"]
    memory = [
        (
            f"{server['name']}, {server['allocator']}",
            *(f"{both['128']:.0f} / {both['0']:.0f}" for both in server["bytes"].values()),
        )
        for server in document.get("memory", [])
    ]
    return (
        f"{settings['messages']:,} messages of {settings['content_bytes']} bytes, {SLOTS} slots, batches of "
        f"{settings['batch']}; µs are execution time by `INFO commandstats`. Ratios are medians within the repeats."
        f"\n\n{rendering.table([*columns, 'client CPU, µs'], costs)}\n\n"
        "PRIORITY, sent and consumed at the same time, beside Redis Streams by redis-py:\n\n"
        f"{rendering.table(rate_columns, rates)}\n\n"
        "`zset-max-listpack-entries` 128, the default, and 0, under PRIORITY messages: what a life costs, and bytes a "
        "message, 128 / 0: the growth of `used_memory` in slots that were used before.\n\n"
        f"{rendering.table(list_columns, lists)}\n\n{rendering.table(['bytes a message', *SHAPES], memory)}"
    )


def _life(figures: Row) -> Sequence[Any]:
    return [
        *(rendering.number(figures[part]["server_us"], 2) for part in (SEND, LISTEN, LIFE)),
        *(rendering.ratio(figures["over"][who]) for who in (FLOOR, FLOOR_LISTS)),
        rendering.number(figures[LIFE]["client_cpu_us"], 2),
    ]


def plot(document: Document, path: Path) -> None:
    """Draw cost, rate and bytes of each server."""
    made, (left, middle, right) = rendering.figure(3, "Redis and Valkey side by side")
    names = [row["server"].replace(" ", "\n") for row in document["rows"]]
    series = {kind.value: [row[kind.value][LIFE]["server_us"] for row in document["rows"]] for kind in KINDS}
    rendering.bars(left, names, series, "a life, µs of the server")
    rates = {
        label: [row[key]["both_rate_per_s"] / 1000 for row in document["rows"]]
        for key, label in (("both", "PRIORITY"), ("streams", "Redis Streams"))
    }
    rendering.bars(middle, names, rates, "end to end, thousand messages per second", 0)
    if "memory" not in document:
        rendering.save(made, path)
        return
    small, large = next(iter(SHAPES)), list(SHAPES)[-1]
    kept = {
        f"{shape}, {entries}": [server["bytes"][shape][str(entries)] for server in document["memory"]]
        for shape in (small, large)
        for entries in ENTRIES
    }
    rendering.bars(
        right, [server["name"].replace(" ", "\n") for server in document["memory"]], kept, "bytes per message", 0
    )
    rendering.save(made, path)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--number", type=int, help="messages (100,000; quick: 20,000)")
    parser.add_argument("--parts", nargs="+", choices=(COST, MEMORY), default=[COST, MEMORY], help="both by default")
    parser.add_argument(
        "--servers",
        nargs="+",
        help="such as 'Redis 7.0' 'Valkey 8.1'; by default all: see tests/support/server_matrix.py",
    )


BENCHMARK = Benchmark("servers", measure, tables, plot, _arguments, summarize)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
