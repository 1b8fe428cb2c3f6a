"""Where the server's time for a message goes, command by command, beside the least scripts and the native commands."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from benchmarks.support import least, lives, loads, rendering
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.meters import Cost
from benchmarks.support.samples import Sample, ratio, sample, summary
from benchmarks.support.servers import Servers, standalone
from rmq import TopicType
from rmq._model.scores import ages_for

NATIVE, LEAST, RMQ = "native commands", "least scripts", "RMQ"
WAYS = (NATIVE, LEAST, RMQ)
SEND, CLAIM, LIFE = "send", "claim + ack", "life"
WHOLE, OWN, WIRE = "all", "script", "wire"
"""All of the server's CPU; what scripts take beside the commands that they call; reading, parsing and writing."""


def measure(options: argparse.Namespace) -> Document:
    """Measure sends, claims and acks by native commands, the least scripts and RMQ, in turns."""
    number = options.number or (50_000 if options.quick else 100_000)
    contents = loads.contents(number)
    samples: list[Sample] = []
    with standalone() as servers:
        lives.warm_up(servers)
        for repeat in range(options.repeats):
            for slots in options.slots:
                for kind in loads.TYPES:
                    say(f"parts: repeat {repeat + 1} of {options.repeats}, {slots} slots, {kind.value}")
                    for way, costs in _each(servers, kind, contents, slots):
                        samples += _samples(f"{kind.value}, {slots} slots, {way}", repeat, costs, number)
        version = servers.version
    settings = {"messages": number, "content_bytes": 20, "batch": loads.BATCH}
    return {"redis": version, "settings": settings, "samples": samples}


def _each(
    servers: Servers, kind: TopicType, contents: list[bytes], slots: int
) -> Iterator[tuple[str, tuple[Cost, Cost]]]:
    servers.flush()
    bare = lives.native_life(kind, contents, slots)
    yield NATIVE, lives.run(servers, bare, replies_each=3, lists=False)
    servers.flush()
    scores = lives.native_scores(kind, len(contents))
    topic = loads.topic(kind, slots)
    if kind is TopicType.PRIORITY:  # with ages, as RMQ stores them
        scores = ages_for(topic.max_priority).aged(scores, 2**29)
    life = least.life(servers.connect(), kind, contents, scores, slots)
    yield LEAST, lives.run(servers, life, replies_each=1, lists=False)
    yield RMQ, lives.costs_of_rmq(servers, topic, contents)


def _samples(case: str, repeat: int, costs: tuple[Cost, Cost], number: int) -> list[Sample]:
    parts = {SEND: _parts(costs[0], number), CLAIM: _parts(costs[1], number)}
    parts[LIFE] = {
        name: sum(each.get(name, 0.0) for each in parts.values()) for name in {**parts[SEND], **parts[CLAIM]}
    }
    return [sample(f"{case}, {what}", repeat, figures) for what, figures in parts.items()]


def _parts(cost: Cost, number: int) -> dict[str, float]:
    """Return µs of the server a message: of each command, of scripts without commands, of the rest, and of all."""
    called = {name: usec / number for name, usec in cost.usec.items() if name not in ("evalsha", "script|load")}
    own = cost.usec["evalsha"] / number - sum(called.values()) if "evalsha" in cost.usec else 0.0
    whole = cost.server_cpu_s * 1e6 / number
    return {WHOLE: whole, OWN: own, WIRE: whole - own - sum(called.values())} | called


def summarize(document: Document) -> Document:
    """Work out medians, and ratios within the repeats."""
    samples, rows = document["samples"], list[Row]()
    samples = [{**each, "figures": {**dict.fromkeys(_names(samples), 0.0), **each["figures"]}} for each in samples]
    found = summary(samples)
    for slots in lives.ALL_SLOTS:
        for kind in loads.TYPES:
            for what in (SEND, CLAIM, LIFE):
                cases = {way: f"{kind.value}, {slots} slots, {way}, {what}" for way in WAYS}
                if cases[RMQ] in found:
                    figures = {way: found[case] for way, case in cases.items()}
                    over = {
                        f"{way} of {floor}": ratio(samples, cases[way], cases[floor], WHOLE)
                        for way, floor in ((LEAST, NATIVE), (RMQ, LEAST), (RMQ, NATIVE))
                    }
                    rows.append({"type": kind.value, "slots": slots, "what": what, **figures, "over": over})
    return {"rows": rows}


def _names(samples: list[Sample]) -> set[str]:
    return {name for each in samples for name in each["figures"]}


def tables(document: Document) -> str:
    """Render what each way takes, and of what RMQ's consists."""
    settings = document["settings"]
    columns = ["server CPU, µs a message", "slots", *WAYS, "least / native", "RMQ / least", "RMQ / native"]
    ways = [
        (
            f"{row['type']}, {row['what']}",
            row["slots"],
            *(rendering.number(row[way][WHOLE], 2) for way in WAYS),
            *map(rendering.ratio, row["over"].values()),
        )
        for row in document["rows"]
    ]
    parts = [(f"{row['type']}, {row['what']}, {row['slots']} slots", *_shown(row)) for row in document["rows"]]
    parts = [each for each in parts if f", {LIFE}," not in each[0]]
    return (
        f"{settings['messages']:,} messages of {settings['content_bytes']} bytes, batches of {settings['batch']}, "
        f"Redis {document['redis']}; no set is a list.\n\n{rendering.table(columns, ways)}\n\nOf what RMQ's time "
        "consists, and in brackets that of the least scripts: the commands that scripts call, the scripts themselves "
        "(Lua, and turning arguments and replies into Lua's values and back), and the wire (reading, parsing, "
        "writing).\n\n" + rendering.table(["µs a message", "commands", "scripts", "wire", "the commands"], parts)
    )


def _shown(row: Row) -> tuple[str, ...]:
    ours, theirs = row[RMQ], row[LEAST]
    pairs = [(_commands(each), each[OWN], each[WIRE]) for each in (ours, theirs)]
    figures = (f"{mine:.2f} ({least:.2f})" for mine, least in zip(*pairs, strict=True))
    names = sorted(_called(ours), key=lambda name: -ours[name])
    return *figures, ", ".join(f"{name} {ours[name]:.2f}" for name in names if ours[name] >= 0.005)


def _called(figures: dict[str, Any]) -> list[str]:
    return [name for name in figures if name not in (WHOLE, OWN, WIRE, "repeats")]


def _commands(figures: dict[str, Any]) -> float:
    return sum(figures[name] for name in _called(figures))


BENCHMARK = Benchmark("parts", measure, tables, None, lives.add_arguments, summarize)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
