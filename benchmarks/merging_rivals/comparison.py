"""All works with all systems, each on a Redis of its own; tables of what arrived, and a page's part of them."""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.merging_rivals import running, systems
from benchmarks.merging_rivals import work as works
from benchmarks.merging_rivals.systems import System
from benchmarks.merging_rivals.work import Work
from benchmarks.support import rendering
from benchmarks.support.environments import NotInstalledError
from benchmarks.support.harness import Benchmark, Document, Row, results_folder, say

Figures = dict[str, Any]
NOT_TRIED = {
    "Inngest": (
        "its package `inngest-cli` 1.45.1 is an installer, which downloads the program from the project's page of "
        "releases; these runs had no access to that page"
    ),
    "BullMQ Pro": "groups and batches are in a paid package, which the public registry does not have",
}
"""Named as rivals elsewhere, and not to be had from the public registries alone."""


def measure(options: argparse.Namespace) -> Document:
    """Do the same work with every system, its handlers noting outside Redis what arrives; count what is lost."""
    number, keys = (400, 40) if options.quick else (2_000, 200)
    planned = works.works(number, keys)
    wanted = [each for each in planned if not options.work or each.name in options.work]
    chosen: list[System] = []
    absent: dict[str, str] = {}
    for system in (each for each in systems.SYSTEMS if each.name in options.only):
        try:
            system.environment.install()
            chosen.append(system)
        except NotInstalledError as error:
            absent[system.label] = str(error)
            say(f"{system.name} does not install: {error}")
    with ThreadPoolExecutor(options.at_once) as pool:
        each = functools.partial(_one, wanted=wanted, repeats=options.repeats)
        rows = _with_earlier(options, list(pool.map(each, chosen)))
    return {
        "shown": "Least and most",
        "settings": {
            "sends": number,
            "keys": keys,
            "quiet_ms": works.QUIET_MS,
            "max_wait_ms": works.MAX_WAIT_MS,
            "retry_ms": works.RETRY_MS,
            "concurrency": works.CONCURRENCY,
            "works": {each.name: each.title for each in planned},
        },
        "rows": rows,
        "not_installed": absent | NOT_TRIED,
    }


def _with_earlier(options: argparse.Namespace, rows: Sequence[Row]) -> list[Row]:
    """Return the rows in the systems' order; where that is asked for, what was not done now is as it was."""
    path = (options.results or results_folder(first_look=options.quick)) / "merging_rivals.json"
    found: dict[str, Row] = {}
    if options.keep and path.exists():
        found = {row["system"]: row for row in json.loads(path.read_text("utf-8"))["rows"]}
    for row in rows:
        earlier = found.get(row["system"], {"works": {}})
        found[row["system"]] = row | {"works": earlier["works"] | row["works"]}
    return [found[name] for name in systems.NAMES if name in found]


def _one(system: System, wanted: Sequence[Work], repeats: int) -> Row:
    row: Row = {
        "system": system.name,
        "name": system.label,
        "version": system.environment.version(2),
        "how": system.how,
        "works": {each.name: [] for each in wanted},
        "failed": {},
    }
    for repeat in range(repeats):
        for work in wanted:
            try:
                figures = running.run(system, work)
            except (RuntimeError, OSError) as error:
                row["failed"][work.name] = str(error)
                say(f"{system.name}, {work.name} failed: {error}")
                continue
            say(f"{system.name}, {work.name}, {repeat + 1} of {repeats}: {figures['deliveries']} deliveries")
            row["works"][work.name].append(figures)
    return row


def shown(figures: Sequence[Figures], key: str) -> str:
    """Return a figure, or the least and the most of several runs."""
    found = sorted(each[key] for each in figures if each[key] is not None)
    if not found:
        return "–"
    least, most = (rendering.number(each) if isinstance(each, int) else f"{each:.1f}" for each in (found[0], found[-1]))
    return least if least == most else f"{least}–{most}"


def _lost(figures: Sequence[Figures]) -> str:
    """Return how many sends were accepted and never arrived."""
    return shown([{"lost": max(0, each["sent"] - each["refused"] - each["arrived"])} for each in figures], "lost")


Column = tuple[str, Callable[[Sequence[Figures]], str]]


def _column(title: str, key: str) -> Column:
    return title, lambda figures: shown(figures, key)


DELIVERIES = _column("deliveries", "deliveries")
REFUSED = _column("refused", "refused")
MISSING = _column("newest never arrived, keys", "newest_missing")
OLD = _column("ended on an older value, keys", "ended_old")
WAIT = _column("longest wait, s", "longest_wait_s")
ARRIVED = _column("values that arrived", "arrived")
LOST: Column = ("values that never arrived", _lost)
TWICE = _column("handled twice", "twice")
OVERLAPPED = _column("keys handled twice at once", "keys_overlapped")
COLUMNS: dict[str, tuple[Column, ...]] = {
    "newest": (DELIVERIES, REFUSED, MISSING, OLD, _column("last of a batch is not its newest", "shuffled"), WAIT),
    "sum": (DELIVERIES, REFUSED, ARRIVED, LOST, _column("wrong sums, keys", "sum_wrong"), _column("off by", "sum_off")),
    "running": (DELIVERIES, REFUSED, MISSING, LOST, OVERLAPPED),
    "failing": (DELIVERIES, REFUSED, MISSING, OLD, LOST, OVERLAPPED),
    "killed": (DELIVERIES, REFUSED, MISSING, OLD, LOST, TWICE, OVERLAPPED, WAIT),
}


def _notes(row: Row, figures: Sequence[Figures]) -> str:
    """Return what the table's figures do not say: work that was broken off, or ended with its worker."""
    seen = {
        "sends waited for a handler that never came": "not_sent",
        "runs were broken off unfinished": "unfinished",
        "times the worker ended by itself": "worker_ended",
    }
    counted = {
        what: sum(len(v) if isinstance(v := each[key], list) else v for each in figures) for what, key in seen.items()
    }
    found = [f"{count} {what}" for what, count in counted.items() if count]
    return f"\n\n{row['name']}: {', '.join(found)}." if found else ""


def tables(document: Document) -> str:
    """Render a table for each work, then how each system was used."""
    settings = document["settings"]
    parts: list[str] = []
    for name, title in settings["works"].items():
        columns = COLUMNS[name]
        found = [(row, row["works"].get(name, ())) for row in document["rows"]]
        sent = next((figures[0]["sent"] for _, figures in found if figures), 0)
        lines = [
            (row["name"], *(value(figures) for _, value in columns))
            if figures
            else (
                row["name"],
                *(row["failed"].get(name, "failed") if not index else "" for index in range(len(columns))),
            )
            for row, figures in found
        ]
        table = rendering.table(["", *(title for title, _ in columns)], lines)
        parts.append(
            f"**{title}**: {sent:,} sends.\n\n{table}" + "".join(_notes(row, figures) for row, figures in found)
        )
    used = "\n".join(f"- {row['name']}, {row['version']}: {row['how']}." for row in document["rows"])
    absent = "\n".join(f"- {name}: {why}." for name, why in document["not_installed"].items())
    parts.append(f"How each was used:\n\n{used}\n\nNot tried:\n\n{absent}")
    return "\n\n".join(parts)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--work", nargs="+", choices=tuple(COLUMNS), help="only these works")
    parser.add_argument("--keep", action="store_true", help="keep from the last result what is not done now")
    parser.add_argument("--at-once", type=int, default=3, help="systems at a time: most of the time is waiting (3)")


BENCHMARK = Benchmark("merging_rivals", measure, tables, None, _arguments, cases=systems.NAMES)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison."""
    return BENCHMARK.main(argv)
