"""Runs a command, and keeps its result in docs/records/long-runs.json and on the page beside it.

    python -m tests.support.record NAME -- COMMAND...

NAME is one of `RUNS`. The result is the exit code, the last line of the output, how long it took, and when. What ends
by a signal is not kept, nor a first look (`--quick`). The exit code is that of the command.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.results import FOLDER, Results, cell, duration, keep, provenance, read

FILE = "long-runs"


@dataclass(frozen=True)
class Run:
    """A run that takes long.

    Attributes:
        target: How to start it.
        shows: What it shows where it passes.
    """

    target: str
    shows: str


RUNS = {
    "test-long": Run("make test-long", "properties and random histories of a slot hold, 5,000 examples each"),
    "test-spark-long": Run("make test-spark-long", "batches of Spark survive killed drivers and executors"),
    "spark-kills": Run(
        "make spark-kills", "Spark's drivers and JVMs, killed at random moments, lose no row and repeat none"
    ),
    "spark-rivals": Run(
        "make spark-rivals", "two queries of Spark, a listener and a batch reader share a topic under faults"
    ),
    "test-thrice": Run("make test-thrice", "the whole suite passes three times in a row"),
    "test-stalls": Run("make test-stalls", "the suite passes while all its processes stand still now and then"),
    "test-docker": Run("make test-docker", "docker-compose.yml and the image work in containers, also under faults"),
    "mutants": Run("make mutants", "bugs planted in the scripts are each noticed by some test"),
    "simulation": Run("make simulation", "simulated histories break no promise"),
    "simulation-planted": Run("make simulation-planted", "planted bugs are each found by a simulation"),
    "histories-alone": Run("make histories", "random histories with faults break no promise, on one Redis"),
    "histories-cluster": Run("make histories", "the same on a Redis Cluster"),
    "chaos": Run("make chaos", "worker processes keep the promises under faults, on 3 + 3 Redis and 3 ZooKeepers"),
    "chaos-redis": Run("make chaos", "the same with owners in Redis, on 3 + 3 Redis"),
    "campaign": Run("make campaign", "the same under a seeded plan of faults: [figures](campaign.md)"),
    "campaign-redis": Run("make campaign", "the same with owners in Redis: [figures](campaign.md)"),
    "bench": Run("make bench", "the figures of [benchmarks](benchmarks.md)"),
    "bench-peers": Run("make bench-peers", "the figures beside other queues"),
    "bench-rivals": Run("make bench-rivals", "what other [merging queues](merging_rivals.md) lose"),
}


def table(results: Results) -> str:
    """Return the page's table: a row for each run, also for one that has no result yet."""
    rows = ["| run | it shows that | last run | took | result |", "|---|---|---|---:|---|"]
    for name, run in RUNS.items():
        row = f"| `{run.target}` | {run.shows} |"
        if (last := results.get(name)) is None:
            rows.append(f"{row} not recorded yet | | |")
            continue
        verdict = "passed" if last["exit_code"] == 0 else f"**failed** ({last['exit_code']})"
        when = f"{last['finished'][:10]}, `{last['commit']}`"
        rows.append(f"{row} {when} | {duration(last['took_s'])} | {verdict}: {cell(last['said'])} |")
    return "\n".join(rows)


def main(arguments: Sequence[str], folder: Path = FOLDER) -> int:
    """Run the command, keep its result, and return its exit code."""
    if len(arguments) < 3 or arguments[1] != "--" or arguments[0] not in RUNS:
        print(f"usage: python -m tests.support.record NAME -- COMMAND...; NAME is one of {', '.join(RUNS)}")
        return 2
    name, command = arguments[0], list(arguments[2:])
    began_s, said = time.monotonic(), ""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace", env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            said = line.strip("= \n") or said  # without the rules that pytest draws
    if process.returncode < 0:
        print(f"{name} ended by signal {-process.returncode}: no result is kept", file=sys.stderr)
        return 128 - process.returncode
    if "--quick" in command:
        return process.returncode
    results = read(FILE, folder)
    program = Path(command[0]).name
    results[name] = {
        "command": " ".join((program, *command[1:])),
        "exit_code": process.returncode,
        "said": said,
        "took_s": round(time.monotonic() - began_s, 1),
        **provenance(),
    }
    keep(FILE, results, table, folder)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
