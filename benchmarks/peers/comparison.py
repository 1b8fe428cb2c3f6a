"""RMQ beside every peer, in turns on one server, in bulk and message by message: rates, and CPU on both sides."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import asdict

from benchmarks.peers import run
from benchmarks.peers.adapter import MANY, Peer
from benchmarks.support import rendering
from benchmarks.support.environments import NotInstalledError
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.samples import Sample, ratio, sample, summary
from benchmarks.support.servers import Servers, standalone

RATE = "rate_per_s"
TABLES = (
    ("In bulk", True, False),
    ("Message by message", False, False),
    ("Delayed queues, in bulk", True, True),
    ("Delayed queues, one by one", False, True),
)


def measure(options: argparse.Namespace) -> Document:
    """Enqueue and process with each peer in each of its ways."""
    peers: dict[str, Peer] = {}
    absent: dict[str, str] = {}
    for name in options.only:
        peer = run.load(name)
        try:
            run.environment(name, peer).install()
            peers[name] = peer
        except NotInstalledError as error:
            absent[peer.name] = str(error)
            say(f"peers: {name} does not install: {error}")
    samples: list[Sample] = []
    failed: dict[str, str] = {}
    with standalone() as servers:
        for repeat in range(options.repeats):
            for name, peer in list(peers.items())[:: -1 if repeat % 2 else 1]:
                for turn in range(max(len(peer.sends), len(peer.works))):
                    say(f"peers: repeat {repeat + 1} of {options.repeats}, {peer.name}, {turn + 1}")
                    try:
                        samples += _turn(servers, name, peer, turn, repeat, options.number * peer.times)
                    except (RuntimeError, OSError) as error:
                        failed[f"{peer.name}, {turn + 1}"] = str(error)
                        say(f"peers: {name} failed: {error}")
    return {
        "redis": servers.version,
        "settings": {"jobs": options.number, "content_bytes": 20, "due_s": run.DUE_S, "late_per_s": run.LATE_PER_S},
        "peers": {
            name: {**asdict(peer), "version": run.environment(name, peer).version()} for name, peer in peers.items()
        },
        "samples": samples,
        "not_installed": absent,
        "failed": failed,
    }


def _turn(servers: Servers, name: str, peer: Peer, turn: int, repeat: int, number: int) -> Iterable[Sample]:
    """Enqueue in one way, then process with one setting; in the first turn see also how late elements come."""
    way, setting = (list(each)[turn % len(each)] for each in (peer.sends, peer.works))
    servers.flush()
    with servers.connect() as client:
        yield sample(f"{name} sends {way}", repeat, run.enqueue(name, peer, client, servers.url, way, number))
        yield sample(f"{name} works {setting}", repeat, run.drain(name, peer, client, servers.url, setting))
    if peer.delayed and not turn:
        servers.flush()
        yield sample(f"{name} late", repeat, run.late(name, peer, servers.url))


def tables(document: Document) -> str:
    """Render a table for each way of use, and two for delayed queues."""
    jobs = document["settings"]["jobs"]
    times = [peer["times"] for peer in document["peers"].values()]
    text = f"{jobs:,} jobs, for the quick queues up to {jobs * max(times):,}; Redis {document['redis']}."
    for title, bulk, delayed in TABLES:
        text += f"\n\n**{title}**\n\n{_table(document, bulk=bulk, delayed=delayed)}"
    for title, problems in (("Not installed", document["not_installed"]), ("Failed", document["failed"])):
        if problems:
            text += f"\n\n{title}: " + "; ".join(f"{name} ({reason})" for name, reason in problems.items()) + "."
    return text


def _table(document: Document, *, bulk: bool, delayed: bool) -> str:
    found = summary(document["samples"])
    rows: list[Row] = []
    for name, peer in document["peers"].items():
        works = [key for key in peer["works"] if (bulk or key not in MANY) and f"{name} works {key}" in found]
        ways = [key for key in peer["sends"] if (key in MANY) == bulk and f"{name} sends {key}" in found]
        if peer["delayed"] != delayed or not works:
            continue
        for way in ways or (["none"] if bulk and "batch" in works else []):
            like = [key for key in works if (key == "columns") == (way == "columns")]
            work = max(like, key=lambda key: found[f"{name} works {key}"][RATE])
            row = {"sent": f"{name} sends {way}", "done": f"{name} works {work}", "late": found.get(f"{name} late")}
            rows.append({**peer, **row, "how": f"{peer['sends'].get(way, '–')}; {peer['works'][work]}"})
    columns: list[rendering.Column] = [("", "{name} {version}")]
    for side, head in (("sent", "enqueued"), ("done", "processed")):
        ours = [row for row in rows if row["name"].startswith("RMQ") and "columns" not in row["how"]]
        best = max((row[side] for row in ours), key=lambda case: found[case][RATE], default="")
        for row in rows:
            nothing = {RATE: None, "client_us": None, "server_us": None}
            row[side] = found.get(row[side], nothing) | {"of": ratio(document["samples"], row[side], best, "cpu_us")}
        columns += [
            (f"{head}, 1/s", f"{{{side}[{RATE}]:,.0f}}"),
            ("CPU: client", f"{{{side}[client_us]:,.1f}}"),
            ("Redis", f"{{{side}[server_us]:,.1f}}"),
            ("÷ RMQ's", f"{{{side}[of]:×}}"),
        ]
    if delayed and not bulk:
        columns += [(f"late, {key}, ms", f"{{late[{key}]:,.1f}}") for key in ("p50", "p99")]
    rows.sort(key=lambda row: -(row["sent"][RATE] or 0))
    return rendering.listed(rows, *columns, ("settings", "{how}"))


BENCHMARK = Benchmark("peers", measure, tables, repeats=3, numbers=(2_000, 500), cases=run.NAMES)
