"""All works with all systems, each on a Redis of its own; tables of what arrived, and a page's part of them."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.merging_rivals import running, systems
from benchmarks.merging_rivals import work as works
from benchmarks.merging_rivals.systems import System
from benchmarks.merging_rivals.work import Work
from benchmarks.support import rendering
from benchmarks.support.environments import NotInstalledError
from benchmarks.support.harness import Benchmark, Document, Row, say

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
        rows = list(pool.map(each, chosen))
    return {
        "shown": "Least and most",
        "settings": {
            "sends": number,
            "keys": keys,
            **works.SETTINGS,
            "works": {each.name: each.title for each in planned},
        },
        "rows": rows,
        "not_installed": absent | NOT_TRIED,
    }


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
    """Return a figure, or the least and the most of several runs; `lost`: accepted sends that never arrived."""
    if key == "lost":
        figures = [{key: max(0, each["sent"] - each["refused"] - each["arrived"])} for each in figures]
    found = sorted(each[key] for each in figures if each[key] is not None)
    if not found:
        return "–"
    least, most = (rendering.number(each) if isinstance(each, int) else f"{each:.1f}" for each in (found[0], found[-1]))
    return least if least == most else f"{least}–{most}"


HEADS = {
    "deliveries": "deliveries", "refused": "refused", "arrived": "values that arrived",
    "lost": "values that never arrived", "newest_missing": "newest never arrived, keys",
    "ended_old": "ended on an older value, keys", "shuffled": "last of a batch is not its newest",
    "sum_wrong": "wrong sums, keys", "sum_off": "off by", "twice": "handled twice",
    "keys_overlapped": "keys handled twice at once", "longest_wait_s": "longest wait, s",
}  # fmt: skip
"""Figure -> its heading."""
COLUMNS = {
    "newest": ("deliveries", "refused", "newest_missing", "ended_old", "shuffled", "longest_wait_s"),
    "sum": ("deliveries", "refused", "arrived", "lost", "sum_wrong", "sum_off"),
    "running": ("deliveries", "refused", "newest_missing", "lost", "keys_overlapped"),
    "failing": ("deliveries", "refused", "newest_missing", "ended_old", "lost", "keys_overlapped"),
    "killed": ("deliveries", "refused", "newest_missing", "ended_old", "lost", "twice", "keys_overlapped",
               "longest_wait_s"),
}  # fmt: skip
"""Work -> the figures of its table."""


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
        found = [(row, row["works"].get(name, ())) for row in document["rows"]]
        sent = next((figures[0]["sent"] for _, figures in found if figures), 0)
        lines = [
            (row["name"], *(shown(figures, key) for key in COLUMNS[name]))
            if figures
            else (row["name"], row["failed"].get(name, "failed"), *[""] * (len(COLUMNS[name]) - 1))
            for row, figures in found
        ]
        table = rendering.table(["", *(HEADS[key] for key in COLUMNS[name])], lines)
        parts.append(
            f"**{title}**: {sent:,} sends.\n\n{table}" + "".join(_notes(row, figures) for row, figures in found)
        )
    used = "\n".join(f"- {row['name']}, {row['version']}: {row['how']}." for row in document["rows"])
    absent = "\n".join(f"- {name}: {why}." for name, why in document["not_installed"].items())
    parts.append(f"How each was used:\n\n{used}\n\nNot tried:\n\n{absent}")
    return "\n\n".join(parts)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--work", nargs="+", choices=tuple(COLUMNS), help="only these works")
    parser.add_argument("--at-once", type=int, default=3, help="systems at a time: most of the time is waiting (3)")


BENCHMARK = Benchmark("merging_rivals", measure, tables, None, _arguments, cases=systems.NAMES)
main = BENCHMARK.main
