"""Enqueue and process rates of every peer, in turns on one server; a peer that does not install is reported as such."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from benchmarks.peers import run
from benchmarks.peers.adapter import Peer
from benchmarks.support import rendering
from benchmarks.support.environments import NotInstalledError
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.meters import rounded
from benchmarks.support.servers import Servers, standalone

BROKERS = (*run.OURS, "streams")
"""These get ten times as many messages: the others would take long, and these would be over too soon. They are no task
queues: the best of the others in Python is what RMQ's rates are held against."""


RATES = ("enqueue_per_s", "process_per_s")


def measure(options: argparse.Namespace) -> Document:
    """Enqueue and process with each peer and each of its settings; medians of interleaved repeats."""
    number = options.number or (2_000 if options.quick else 20_000)
    names = options.only or run.NAMES
    peers: dict[str, Peer] = {}
    absent: dict[str, str] = {}
    for name in names:
        try:
            run.install(name)
            peers[name] = run.load(name)
        except NotInstalledError as error:
            absent[name] = str(error)
            say(f"peers: {name} does not install: {error}")
    enqueued: dict[str, list[dict[str, float]]] = {}
    processed: dict[tuple[str, str], list[float]] = {}
    failed: dict[str, str] = {}
    with standalone() as servers:
        for repeat in range(options.repeats):
            for name, peer in peers.items():
                for variant in peer.variants:
                    say(f"peers: repeat {repeat + 1} of {options.repeats}, {peer.name}, {variant}")
                    many = number * (10 if name in BROKERS else 1)
                    try:
                        sent, rate = _one(servers, name, peer, variant, many)
                    except (RuntimeError, OSError) as error:
                        failed[f"{name}, {variant}"] = str(error)
                        say(f"peers: {name}, {variant} failed: {error}")
                        continue
                    enqueued.setdefault(name, []).append(sent)
                    processed.setdefault((name, variant), []).append(rate)
    rows = [_row(name, peer, enqueued[name], processed) for name, peer in peers.items() if name in enqueued]
    return {
        "redis": servers.version,
        "settings": {"jobs": number, "jobs_rmq_and_streams": number * 10, "content_bytes": 20},
        "rows": rows,
        "not_installed": absent,
        "failed": failed,
        "against_best_task_queue": _against_best(rows),
    }


def _one(servers: Servers, name: str, peer: Peer, variant: str, number: int) -> tuple[dict[str, float], float]:
    servers.flush()
    sent = run.enqueue(name, servers.url, number)
    with servers.connect() as client:
        waiting = run.jobs_left(peer, client)
        rate = run.drain(name, peer, client, servers.url, variant, waiting)
    return {"rate_per_s": number / sent["took_s"], "client_cpu_us": sent["cpu_s"] * 1e6 / number}, rate


def _row(name: str, peer: Peer, sent: list[dict[str, float]], processed: dict[tuple[str, str], list[float]]) -> Row:
    rates = {
        variant: rounded(statistics.median(processed[name, variant]))
        for variant in peer.variants
        if (name, variant) in processed
    }
    best = max(rates, key=lambda variant: rates[variant])
    return {
        "peer": name,
        "name": peer.name,
        "version": run.version(name, peer),
        "enqueue_per_s": rounded(statistics.median(each["rate_per_s"] for each in sent)),
        "enqueue_cpu_us": rounded(statistics.median(each["client_cpu_us"] for each in sent)),
        "enqueue_how": peer.sends,
        "process_per_s": rates[best],
        "process_how": peer.variants[best],
        "all_settings": {peer.variants[variant]: rate for variant, rate in rates.items()},
    }


def _against_best(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Return for each way to use RMQ how many times the best Python task queue's rates it reaches."""
    queues = [row for row in rows if row["peer"] not in BROKERS and not row["peer"].endswith("_node")]
    if not queues:
        return {}
    best = {key: max(row[key] for row in queues) for key in RATES}
    return {
        row["name"]: {key: rounded(row[key] / rate) for key, rate in best.items()}
        for row in rows
        if row["peer"] in run.OURS
    }


def tables(document: Document) -> str:
    """Render both rates and the settings."""
    rows = sorted(document["rows"], key=lambda row: -row["process_per_s"])
    ours = next((row for row in rows if row["peer"] == "rmq"), None)
    text = rendering.listed(
        [{**row, "of": {key: ours[key] / row[key] if ours else None for key in RATES}} for row in rows],
        ("", "{name} {version}"),
        ("enqueued, 1/s", "{enqueue_per_s:,.0f}"),
        ("RMQ against it", "{of[enqueue_per_s]:×}"),
        ("processed, 1/s", "{process_per_s:,.0f}"),
        ("RMQ against it", "{of[process_per_s]:×}"),
        ("settings", "{enqueue_how}; {process_how}"),
    )
    for name, found in document["against_best_task_queue"].items():
        text += (
            f"\n\n{name} against the best Python task queue in each direction: enqueue {found['enqueue_per_s']:.1f} ×, "
            f"process {found['process_per_s']:.1f} ×."
        )
    for title, problems in (("Not installed", document["not_installed"]), ("Failed", document["failed"])):
        if problems:
            text += f"\n\n{title}: " + "; ".join(f"{name} ({reason})" for name, reason in problems.items()) + "."
    settings = document["settings"]
    return (
        f"No-op handlers, {settings['jobs']:,} jobs ({settings['jobs_rmq_and_streams']:,} for RMQ and Streams), Redis "
        f"{document['redis']}; enqueued by one process, then processed. Of several worker settings the quickest is "
        f"shown. Starting up is not counted.\n\n{text}"
    )


def plot(document: Document, path: Path) -> None:
    """Draw both rates on a log scale."""
    rows = sorted(document["rows"], key=lambda row: row["process_per_s"])
    made, axes = rendering.figure(2, "No-op jobs on the same Redis", height=0.8 + 0.38 * len(rows))
    for axis, key, label in zip(axes, RATES, ("enqueued", "processed"), strict=True):
        colours = [rendering.COLOURS[1 if row["peer"] in run.OURS else 0] for row in rows]
        drawn = axis.barh([row["name"] for row in rows], [row[key] for row in rows], color=colours)
        axis.bar_label(drawn, labels=[f"{row[key]:,.0f}" for row in rows], fontsize=7, padding=2)
        axis.set(xscale="log", xlabel=f"{label} per second, log scale")
        axis.grid(axis="y", visible=False)
        axis.tick_params(axis="y", labelsize=8)
        axis.margins(x=0.2)
    rendering.save(made, path)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--number", type=int, help="jobs (20,000; quick: 2,000); ten times as many for RMQ and Streams")
    parser.add_argument("--only", nargs="+", choices=run.NAMES, help="only these peers")


BENCHMARK = Benchmark("peers", measure, tables, plot, _arguments)
