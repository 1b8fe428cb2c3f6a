"""The rivals: what each needs, how its program is started, and which way of using it its manual recommends."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.support.environments import NotInstalledError, node_environment, python_environment, run, set_up
from benchmarks.support.harness import ROOT

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
GO_FOLDER = "/usr/local/go/bin"
"""Where Go's own installer puts it, which is not on every PATH."""


@dataclass(frozen=True, slots=True)
class Program:
    """A queue with a way to merge.

    Attributes:
        environment: Where it runs.
        packages: What is installed there; versions of the first two are shown.
        program: File in `programs/`.
        left: Redis commands whose sum is what is not done yet, in flight included.
        recovery_s: How long after a killed worker its work may come again.
    """

    environment: str
    packages: tuple[str, ...]
    program: str
    left: tuple[tuple[str, ...], ...]
    recovery_s: float


@dataclass(frozen=True, slots=True)
class System(Program):
    """A way of merging with a queue.

    Attributes:
        name: As on the command line.
        label: As in tables, without versions.
        variant: Which way of using it; its program knows.
        how: That way, in words.
    """

    name: str
    label: str
    variant: str
    how: str


CELERY_LEFT = (("LLEN", "celery"), ("HLEN", "unacked"))
RMQ = Program(
    "rmq",
    ("rmq",),
    "rmq_rival.py",
    (("ZCARD", "rival_0"), ("ZCARD", "prepare{rival_0}"), ("ZCARD", "retry{rival_0}")),
    60,  # the lease of rmq_rival.py
)
BULLMQ = Program(
    "rivals_bullmq",
    ("bullmq",),
    "bullmq_rival.mjs",
    (("LLEN", "bull:rival:wait"), ("LLEN", "bull:rival:active"), ("ZCARD", "bull:rival:delayed")),
    150,  # a lock of 30 s; a look for stalled jobs every 30 s, of which the first marks and the next one moves
)
ASYNQ = Program(
    "rivals_asynq",
    ("github.com/hibiken/asynq",),
    "asynq",
    (
        ("SCARD", "asynq:{default}:groups"),
        ("ZCARD", "asynq:{default}:aggregation_sets"),
        ("LLEN", "asynq:{default}:pending"),
        ("LLEN", "asynq:{default}:active"),
        ("ZCARD", "asynq:{default}:retry"),
    ),
    200,  # sets that are aggregated come back after 2 minutes, looked for every minute; a lease counts 30 s + 30 s
)
DOCKET = Program(
    "rivals_docket",
    ("pydocket",),
    "docket_rival.py",
    (("XLEN", "rival:stream"), ("ZCARD", "rival:queue")),
    60,  # the redelivery timeout of docket_rival.py
)


def _celery(name: str, *packages: str, recovery_s: float = 60) -> Program:
    """The visibility timeout and locks of celery_tasks.py, looked at now and then, say how soon work comes again."""
    needed = ("celery[redis]", f"celery-{name}", *packages)
    return Program(f"rivals_celery_{name}", needed, "celery_rival.py", CELERY_LEFT, recovery_s)


SINGLETON, ONCE = _celery("singleton"), _celery("once")
DEBOUNCE = _celery("debounce", "kombu[redis]", recovery_s=260)

_WAYS = (
    (RMQ, "rmq", "RMQ", "merge",
     "`RANGE_MERGE` with `Sliding(quiet, max_wait)`; `Newest()`, `Sum()`, and `Collect()` for the others"),
    (BULLMQ, "bullmq", "BullMQ, debounce", "debounce",
     "`delay` with `deduplication: {id, ttl, extend: true, replace: true}`"),
    (BULLMQ, "bullmq_continuous", "BullMQ, continuous debounce", "continuous",
     "`delay` with `deduplication: {id, keepLastIfActive: true, replace: true}`"),
    (BULLMQ, "bullmq_none", "BullMQ, nothing merged", "none",
     "no `deduplication`: what it costs to lose nothing"),
    (ASYNQ, "asynq", "Asynq, groups", "group",
     "a group for each key, `GroupGracePeriod`, `GroupMaxDelay`, an aggregator that keeps all payloads"),
    (SINGLETON, "celery_singleton", "Celery, celery-singleton", "singleton",
     '`unique_on=["key"]`, `lock_expiry`, a countdown of one window'),
    (ONCE, "celery_once", "Celery, celery-once", "once",
     '`once={"keys": ["key"]}`, a countdown of one window'),
    (ONCE, "celery_once_unlocked", "Celery, celery-once, unlocked", "once_unlocked",
     "the same with `unlock_before_run`"),
    (DEBOUNCE, "celery_debounce", "Celery, celery-debounce", "debounce",
     "`task.debounce(key, value=..., countdown=...)`: what it compares are the positional arguments"),
    (DOCKET, "docket", "Docket, Debounce", "debounce",
     "`Annotated[str, Debounce(...), ConcurrencyLimit(1)]`, `Retry`"),
)  # fmt: skip
SYSTEMS = tuple(
    System(program.environment, program.packages, program.program, program.left, program.recovery_s, *way)
    for program, *way in _WAYS
)
NAMES = tuple(system.name for system in SYSTEMS)


def install(system: System) -> Path:
    """Set the environment up, unless it is there; return its folder.

    Raises:
        NotInstalledError: It does not install here.
    """
    if system.name == "rmq":
        return ROOT
    if system.program.endswith(".mjs"):
        return node_environment(system.environment, PROGRAMS / "package.json")
    if system.program.endswith(".py"):
        return python_environment(system.environment, system.packages, _constraints(system))
    return _go_environment(system)


def command(system: System, folder: Path) -> list[str]:
    """Return how its program is started, without the verb."""
    if system.program.endswith(".mjs"):
        return ["node", str(PROGRAMS / system.program)]
    if system.name == "rmq":
        return [sys.executable, str(PROGRAMS / system.program)]
    if system.program.endswith(".py"):
        return [str(folder / "bin" / "python"), str(PROGRAMS / system.program)]
    return [str(folder / "rival")]


def environment(folder: Path) -> dict[str, str]:
    """Return its program's environment variables."""
    ours = [str(ROOT)] if folder == ROOT else []
    paths = os.pathsep.join([str(PROGRAMS), *ours])
    return {**os.environ, "PYTHONPATH": paths, "RIVAL_NODE_MODULES": str(folder)}


def version(system: System, folder: Path) -> str:
    """Return the versions that are compared."""
    if system.name == "rmq":
        return "this"
    if system.program.endswith(".mjs"):
        found = json.loads((folder / "node_modules" / "bullmq" / "package.json").read_text("utf-8"))
        return str(found["version"])
    if system.program.endswith(".py"):
        names = [package.partition("[")[0] for package in system.packages[:2]]
        code = f"from importlib.metadata import version; print(*[version(each) for each in {names!r}], sep=', ')"
        python = str(folder / "bin" / "python")
        return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    lines = (folder / "go.mod").read_text("utf-8").split("\n")
    return next(line.split()[-1].lstrip("v") for line in lines if system.packages[0] in line)


def _constraints(system: System) -> Path:
    return HERE / "constraints" / f"{system.environment.removeprefix('rivals_')}.txt"


def _go_environment(system: System) -> Path:
    sources = [PROGRAMS / system.program / name for name in ("go.mod", "main.go")]

    def make(folder: Path) -> None:
        go = shutil.which("go") or shutil.which("go", path=GO_FOLDER)
        if go is None:
            raise NotInstalledError("go is not installed")
        for source in sources:
            shutil.copy(source, folder)
        # the sums of all modules are written there, and nowhere else
        run([go, "build", "-mod=mod", "-o", "rival", "."], folder)

    return set_up(system.environment, [source.read_text("utf-8") for source in sources], make)
