"""What this checkout costs beside another one, client and server, in turn on one server: `--base FOLDER`."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from benchmarks.support import rendering
from benchmarks.support.harness import ROOT, Benchmark, Document, Row, commit, say
from benchmarks.support.servers import standalone

CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "send, PRIORITY": ("send", 2_000, {}),
    "send, RANGE_MERGE": ("send", 2_000, {"kind": "RANGE_MERGE"}),
    "send, FIXED_TIME": ("send", 2_000, {"kind": "FIXED_TIME"}),
    "send, STREAM": ("send", 2_000, {"kind": "STREAM"}),
    "send, body": ("send", 2_000, {"body": True}),
    "send_many, 1 slot": ("send_many", 20_000, {}),
    "send_many, 2 slots": ("send_many", 20_000, {"slots": 2}),
    "send_many, 8 slots": ("send_many", 20_000, {"slots": 8}),
    "send_many, 64 slots": ("send_many", 40_000, {"slots": 64}),
    "send_many, 8 slots, bodies": ("send_many", 20_000, {"slots": 8, "body": True}),
    "send_many, 8 slots, RANGE_MERGE": ("send_many", 20_000, {"slots": 8, "kind": "RANGE_MERGE"}),
    "send_many, 8 slots, durations": ("send_made", 20_000, {"slots": 8, "ranges": 10}),
    "send_many, 8 slots, FIXED_TIME": ("send_many", 20_000, {"slots": 8, "kind": "FIXED_TIME"}),
    "send_many, 8 slots, STREAM": ("send_many", 20_000, {"slots": 8, "kind": "STREAM"}),
    "send, Sum": ("send", 2_000, {"kind": "RANGE_MERGE", "merge": "sum"}),
    "send_many, 8 slots, Sum": ("send_many", 20_000, {"slots": 8, "kind": "RANGE_MERGE", "merge": "sum"}),
    "send_many, 8 slots, Collect": ("send_many", 20_000, {"slots": 8, "kind": "RANGE_MERGE", "merge": "collect"}),
    "send_many, 8 slots, unique Collect": ("send_many", 20_000, {"slots": 8, "kind": "RANGE_MERGE", "merge": "unique"}),
    "claims back to back": ("claim", 500, {"body": False}),
    "claims back to back, bodies": ("claim", 500, {"body": True}),
    "poll + ack, 1 at a time": ("poll", 1_000, {"batch": 1}),
    "poll + ack, 1 at a time, bodies": ("poll", 1_000, {"batch": 1, "body": True}),
    "poll + ack, 100": ("poll", 10_000, {"batch": 100}),
    "poll + ack, 500": ("poll", 20_000, {"batch": 500}),
    "poll + ack, 100, 8 slots": ("poll", 10_000, {"batch": 100, "slots": 8}),
    "poll + ack, 500, 8 slots": ("poll", 20_000, {"batch": 500, "slots": 8}),
    "poll + ack, 100, bodies": ("poll", 10_000, {"batch": 100, "body": True}),
    "poll + ack, 100, RANGE_MERGE": ("poll", 10_000, {"batch": 100, "kind": "RANGE_MERGE"}),
    "poll + ack, 100, FIXED_TIME": ("poll", 10_000, {"batch": 100, "kind": "FIXED_TIME"}),
    "poll + ack, 100, Sum": ("poll", 10_000, {"batch": 100, "kind": "RANGE_MERGE", "merge": "sum"}),
    "poll + ack, 100, Collect": ("poll", 10_000, {"batch": 100, "kind": "RANGE_MERGE", "merge": "collect"}),
    "poll + ack, 100, unique Collect": ("poll", 10_000, {"batch": 100, "kind": "RANGE_MERGE", "merge": "unique"}),
    "poll + ack, 1,000, Collect": ("poll", 20_000, {"batch": 1_000, "kind": "RANGE_MERGE", "merge": "collect"}),
    "poll + ack, 100, STREAM": ("poll", 10_000, {"batch": 100, "kind": "STREAM"}),
    "listener, batch 500, 1 slot": ("listen", 20_000, {"batch": 500}),
    "listener, batch 500, 8 slots": ("listen", 20_000, {"batch": 500, "slots": 8}),
    "listener, batch 500, 8 slots, RANGE_MERGE": ("listen", 20_000, {"batch": 500, "slots": 8, "kind": "RANGE_MERGE"}),
    "listener, batch 500, 64 slots": ("listen", 20_000, {"batch": 500, "slots": 64}),
    "listener, one by one, 1 slot": ("listen", 10_000, {}),
    "listener, one by one, 8 slots": ("listen", 10_000, {"slots": 8}),
    "listener, one by one, 64 slots": ("listen", 10_000, {"slots": 64}),
    "listener, batch 500, STREAM": ("listen", 10_000, {"batch": 500, "kind": "STREAM"}),
    "asyncio listener, batch 500, 8 slots": ("listen_aio", 20_000, {"batch": 500, "slots": 8}),
    "asyncio listener, one by one, 8 slots": ("listen_aio", 5_000, {"slots": 8}),
}
"""Load, messages and options; all of them take a fraction of a second, so that both sides meet the same machine."""

FIGURES = ("client_cpu_us", "server_cpu_us", "scripts_us", "scripts", "commands", "python_calls")


class Side:
    """An interpreter that works with one checkout's code.

    Args:
        folder: The checkout.
        port: The server's.
    """

    def __init__(self, folder: Path, port: int) -> None:
        own = folder / ".venv" / "bin" / "python"
        python = str(own) if own.is_file() else sys.executable
        loads = ROOT / "benchmarks" / "support" / "paired_loads.py"
        self._process = subprocess.Popen(
            [python, "-P", loads, str(port)],
            env=os.environ | {"PYTHONPATH": str(folder)},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, load: str, number: int, options: dict[str, Any], *, counting: bool = False) -> dict[str, float]:
        """Carry out a load and return its figures per message."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"load": load, "number": number, "options": options, "counting": counting}
        print(json.dumps(order), file=self._process.stdin, flush=True)
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"the process of a checkout ended during {load}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def measure(options: argparse.Namespace) -> Document:
    """Run each load with both checkouts in turn; ratios are medians of pairs, and of the least of each side."""
    share = 0.5 if options.quick else 1.0
    names = [name for name in CASES if not options.only or any(part in name for part in options.only)]
    if not names:
        raise SystemExit(f"--only is {' '.join(options.only)!r}; no load has a part of this in its name")
    if not (options.base / "rmq").is_dir():
        raise SystemExit(f"--base is {options.base}; it must be a checkout of RMQ")
    rows: list[Row] = []
    with standalone() as servers, ExitStack() as stack:
        folders = (options.base.resolve(), ROOT)
        sides = [stack.enter_context(closing(Side(folder, servers.port))) for folder in folders]
        for name in names:
            load, most, settings = CASES[name]
            number = max(100, int(most * share))
            for each in sides:
                each.run(load, min(number, 1_000), settings)  # scripts loaded, code warm
            pairs: list[list[dict[str, float]]] = []
            for turn in range(options.repeats):
                order = sides if turn % 2 else sides[::-1]
                found = [each.run(load, number, settings) for each in order]
                pairs.append(found if turn % 2 else found[::-1])
            counts = [each.run(load, number, settings, counting=True)["python_calls"] for each in sides]
            row = {"case": name, "messages": number, **_ratios(pairs, counts)}
            rows.append(row)
            say(
                f"paired: {name}: client {row['client_cpu_us_ratio']:.2f} (least {row['client_cpu_us_least']:.2f}), "
                f"calls {counts[0]:.1f} -> {counts[1]:.1f}, server {row['server_cpu_us_ratio']:.2f}, "
                f"scripts {row['scripts_us_ratio']:.2f}, commands {row['commands_base']:.3f} -> {row['commands']:.3f}"
            )
    settings = {"base": commit(options.base), "load_1min_at_end": round(os.getloadavg()[0], 2)}
    return {"settings": settings, "rows": rows}


def _ratios(pairs: list[list[dict[str, float]]], counts: list[float]) -> Row:
    row: Row = {}
    for figure in FIGURES[:-1]:
        base, ours = ([pair[index][figure] for pair in pairs] for index in (0, 1))
        row[figure + "_base"], row[figure] = round(statistics.median(base), 4), round(statistics.median(ours), 4)
        if min(base) > 0:
            row[figure + "_ratio"] = round(statistics.median(b / a for a, b in zip(base, ours, strict=True)), 3)
            row[figure + "_least"] = round(min(ours) / min(base), 3)
    row["python_calls_base"], row["python_calls"] = (round(number, 2) for number in counts)
    row["python_calls_ratio"] = round(counts[1] / counts[0], 3)
    return row


def tables(document: Document) -> str:
    """Render the ratios."""
    lines = rendering.listed(
        document["rows"],
        ("load", "{case}"),
        ("client CPU", "{client_cpu_us_ratio:×}"),
        ("of the least", "{client_cpu_us_least:×}"),
        ("calls before", "{python_calls_base:,.1f}"),
        ("calls now", "{python_calls:,.1f}"),
        ("server CPU", "{server_cpu_us_ratio:×}"),
        ("scripts", "{scripts_us_ratio:×}"),
        ("commands", "{commands_ratio:×}"),
    )
    machine, settings = document["machine"], document["settings"]
    return (
        f"Cost per message of {machine['commit']} over {settings['base']}, {document['repeats']} pairs, Redis "
        f"{document['redis']}, load {machine['load_1min_at_start']} to {settings['load_1min_at_end']}. `of the least`: "
        "the least of one side over that of the other. `calls`: of functions, Python's and C's. `scripts`: execution "
        f"time by `INFO commandstats`; `commands`: those within scripts.\n\n{lines}"
    )


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--base", type=Path, required=True, help="the other checkout, such as a git worktree")
    parser.add_argument("--only", nargs="+", help="loads whose name has one of these in it")


BENCHMARK = Benchmark("paired", measure, tables, None, arguments)
main = BENCHMARK.main


if __name__ == "__main__":
    raise SystemExit(main())
