"""What all benchmarks share: options, the machine's description, and where results go."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.support.samples import cases, joined
from benchmarks.support.samples import say as say
from benchmarks.support.servers import server_version
from rmq._processes.signals import freeze_objects

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
FIRST_LOOKS = ROOT / "build" / "benchmarks"
"""Where results go that are no measurements: small sizes, or sample data. git does not keep them."""

LOAD = "load_1min_at_start"

Row = dict[str, Any]
Document = dict[str, Any]
"""A result as it is kept: `benchmark`, `machine`, `settings`, and `rows` or whatever the benchmark measures."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark.

    Attributes:
        name: Name of its module and of its result files.
        measure: Does the work; what it returns goes into the document. A run of its own kind names itself `benchmark`.
        plot: Draws the document into a PNG; `None` for no plot.
        tables: Renders the document as Markdown.
        arguments: Adds options of its own to the command line.
        summarize: Works out from `samples` what else the document holds. Whoever has it can be measured in parts: with
            `--add` the samples of a run join those of the result that is there.
        repeats: How often each case is measured unless `--repeats` says so.
        numbers: How many messages are measured, and in a first look, unless `--number` says so.
        cases: What `--only` chooses from.
    """

    name: str
    measure: Callable[[argparse.Namespace], Document]
    tables: Callable[[Document], str]
    plot: Callable[[Document, Path], None] | None = None
    arguments: Callable[[argparse.ArgumentParser], None] | None = None
    summarize: Callable[[Document], Document] | None = None
    repeats: int = 5
    numbers: tuple[int, int] | None = None
    cases: Collection[str] = ()

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Measure, save, plot, print; return the exit code."""
        parser = argparse.ArgumentParser(prog=f"rmq bench {self.name}", description=self.measure.__doc__)
        parser.add_argument("--quick", action="store_true", help="small sizes and fewer repeats, for a first look")
        parser.add_argument(
            "--repeats", type=int, help=f"repeats, in turns; medians are reported ({self.repeats}; quick: 3 at most)"
        )
        parser.add_argument(
            "--results", type=Path, help="where JSON and PNG go (benchmarks/results; a first look: build/benchmarks)"
        )
        if self.summarize is not None:
            parser.add_argument("--add", action="store_true", help="add these repeats to the result that is there")
        parser.add_argument("--json", action="store_true", help="print the result as JSON instead of tables")
        if self.numbers is not None:
            usual, few = (f"{number:,}" for number in self.numbers)
            parser.add_argument("--number", type=int, help=f"messages of each measurement ({usual}; quick: {few})")
        if self.cases:
            parser.add_argument("--only", nargs="*", choices=self.cases, default=list(self.cases), help="some cases")
        if self.arguments is not None:
            self.arguments(parser)
        options = parser.parse_args(argv)
        if self.numbers is not None:
            options.number = options.number or self.numbers[options.quick]
        options.repeats = options.repeats or (min(3, self.repeats) if options.quick else self.repeats)
        _end_in_order()
        freeze_objects()  # as `client.run` does
        started_s = time.monotonic()
        document: Document = {"benchmark": self.name, "quick": options.quick, "machine": machine()}
        document |= {"redis": server_version(), "repeats": options.repeats}
        document |= self.measure(options)
        document["took_s"] = round(time.monotonic() - started_s, 1)
        document["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
        folder = options.results or (FIRST_LOOKS if options.quick else RESULTS)  # first looks must not replace results
        if self.summarize is not None:
            document = self.put_together(document, folder if options.add else None)
        self.save(document, folder)
        print(json.dumps(document) if options.json else self.tables(document))
        return 0

    def put_together(self, document: Document, folder: Path | None) -> Document:
        """Return the document with what its samples say; with a folder, those of the result in it come before."""
        assert self.summarize is not None
        document["runs"] = [
            {"finished": document["finished"], **{key: document["machine"][key] for key in ("commit", LOAD)}}
        ]
        path = folder / f"{document['benchmark']}.json" if folder else None
        before: Document = json.loads(path.read_text("utf-8")) if path is not None and path.exists() else {}
        if "samples" in before:
            if before["settings"] != document["settings"]:
                raise SystemExit(f"--add: {path} was measured with {before['settings']}, not {document['settings']}")
            document = {**before, **document, "samples": joined(before["samples"], document["samples"])}
            document["runs"] = [*before["runs"], *document["runs"]]
            document["took_s"] = round(before["took_s"] + document["took_s"], 1)
        document["repeats"] = min(len(each) for each in cases(document["samples"]).values())
        return document | self.summarize(document)

    def save(self, document: Document, folder: Path) -> None:
        """Write the document and its plot."""
        folder.mkdir(parents=True, exist_ok=True)
        name = document["benchmark"]
        (folder / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
        if self.plot is not None:
            self.plot(document, folder / f"{name}.png")


def machine() -> dict[str, Any]:
    """Describe the machine and the software, without names of hosts or folders.

    The commit is the one measured, with `+` when files that matter were changed since.
    """
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "redis_py": _version("redis"),
        "hiredis": _version("hiredis"),
        "rmq": _version("rmq"),
        "commit": commit() + ("+" if _git(ROOT, "status", "--porcelain", "rmq", "lua") else ""),
        LOAD: round(os.getloadavg()[0], 2),
    }


def _end_in_order() -> None:
    """Let SIGTERM and SIGINT end the benchmark's servers, too; again, they do nothing, so that this gets done."""

    def end(number: int, frame: object) -> None:
        del frame
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, end)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def commit(folder: Path = ROOT) -> str:
    """Return the commit of a checkout."""
    return _git(folder, "rev-parse", "--short", "HEAD") or "unknown"


def _git(folder: Path, *args: str) -> str:
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *args], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
