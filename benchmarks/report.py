"""Renders the tables of the pages that have any from the JSON in benchmarks/results, between their markers.

A marker is `<!-- benchmark: NAME -->`; what follows it, up to `<!-- end -->`, is replaced. Nothing else is touched.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.support.harness import LOAD, RESULTS, ROOT, Document

PAGES = tuple(ROOT / "docs" / "records" / f"{name}.md" for name in ("benchmarks", "merging_rivals"))
NAMES = (
    "cost",
    "throughput",
    "real",
    "latency",
    "backlog",
    "scaling",
    "aio",
    "streams",
    "consuming",
    "spark",
    "spark_source",
)
"""The benchmarks of RMQ itself, in the order in which the suite runs them."""
MODULES = {name: f"benchmarks.{name}" for name in NAMES} | {
    "owners": "benchmarks.real",
    "backlog_full": "benchmarks.backlog",
    "peers": "benchmarks.peers.comparison",
    "merging_rivals": "benchmarks.merging_rivals.comparison",
}
"""Name of a result -> the module that renders it."""
_MARKED = re.compile(r"(<!-- benchmark: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def render(page: str, results: Path) -> str:
    """Return the page with the newest tables in it; where a result is missing, it says so."""
    return _MARKED.sub(lambda match: f"{match[1]}\n{section(match[2], results)}\n\n{match[3]}", page)


def section(name: str, results: Path) -> str:
    """Return one benchmark's tables, with when and on what they were measured."""
    path = results / f"{name}.json"
    if not path.exists():
        return f"Not measured yet: `rmq bench {name}`."
    document: Document = json.loads(path.read_text("utf-8"))
    try:
        text = importlib.import_module(MODULES[name]).BENCHMARK.tables(document)
    except KeyError as error:
        return f"Measured by an earlier version, without {error}: `rmq bench {name}`."
    picture = results / f"{name}.png"
    if picture.exists():
        text += f"\n\n![{name}](../../benchmarks/results/{name}.png)"
    return f"{text}\n\n{provenance(document)}"


def provenance(document: Document) -> str:
    """Return when, on what, and in how many runs a document was measured."""
    machine = document["machine"]
    quick = "Quick sizes, for a first look only. " if document["quick"] else ""
    figures = (
        f"{document.get('shown', 'Medians')} of {document['repeats']}" if document["repeats"] > 1 else "Measured once"
    )
    runs = document.get("runs") or [{**machine, "finished": document["finished"]}]
    commits = ", ".join(dict.fromkeys(run["commit"] for run in runs))
    loads = [run[LOAD] for run in runs]
    parts = f" in {len(runs)} runs" if len(runs) > 1 else ""
    load = f"{min(loads)}" if min(loads) == max(loads) else f"{min(loads)} to {max(loads)}"
    return (
        f"*{quick}{figures}{parts}; {document['finished'][:10]}, commit {commits}; "
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}; Python "
        f"{machine['python']}, redis-py {machine['redis_py']}, hiredis {machine['hiredis']}; load at the start "
        f"{load}.*"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Bring the pages up to date, or with --check say whether they are."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=main.__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 where a page is stale")
    options = parser.parse_args(argv)
    stale = 0
    for page in PAGES:
        before = page.read_text("utf-8")
        after = render(before, options.results)
        stale |= before != after
        if not options.check:
            page.write_text(after, "utf-8")
            print(f"{page.name} is up to date", file=sys.stderr)
    return int(options.check and stale)


if __name__ == "__main__":
    raise SystemExit(main())
