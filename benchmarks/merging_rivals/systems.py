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
class System:
    """A way of merging with a queue.

    Attributes:
        name: As on the command line.
        label: As in tables, without versions.
        environment: Where it runs; several systems may share one.
        packages: What is installed there; versions of the first two are shown.
        program: File in `programs/`.
        variant: Which way of using it; its program knows.
        how: That way, in words.
        left: Redis commands whose sum is what is not done yet, in flight included.
        recovery_s: How long after a killed worker its work may come again.
    """

    name: str
    label: str
    environment: str
    packages: tuple[str, ...]
    program: str
    variant: str
    how: str
    left: tuple[tuple[str, ...], ...]
    recovery_s: float


RMQ_LEFT = (("ZCARD", "rival_0"), ("ZCARD", "prepare{rival_0}"), ("ZCARD", "retry{rival_0}"))
RMQ_RECOVERY_S = 60
"""The lease of rmq_rival.py."""
BULLMQ_LEFT = (("LLEN", "bull:rival:wait"), ("LLEN", "bull:rival:active"), ("ZCARD", "bull:rival:delayed"))
BULLMQ_RECOVERY_S = 150
"""A lock of 30 s; a look for stalled jobs every 30 s, of which the first marks and the next one moves."""
ASYNQ_LEFT = (
    ("SCARD", "asynq:{default}:groups"),
    ("ZCARD", "asynq:{default}:aggregation_sets"),
    ("LLEN", "asynq:{default}:pending"),
    ("LLEN", "asynq:{default}:active"),
    ("ZCARD", "asynq:{default}:retry"),
)
ASYNQ_RECOVERY_S = 200
"""Sets that are being aggregated come back after 2 minutes, looked for every minute; a lease counts 30 s + 30 s."""
CELERY_LEFT = (("LLEN", "celery"), ("HLEN", "unacked"))
CELERY_RECOVERY_S = 60
"""The visibility timeout and locks of celery_tasks.py, looked at now and then."""
DEBOUNCE_RECOVERY_S = 260
DOCKET_LEFT = (("XLEN", "rival:stream"), ("ZCARD", "rival:queue"))
DOCKET_RECOVERY_S = 60
"""The redelivery timeout of docket_rival.py."""

SINGLETON = ("celery[redis]", "celery-singleton")
ONCE = ("celery[redis]", "celery-once")
DEBOUNCE = ("celery[redis]", "celery-debounce", "kombu[redis]")

SYSTEMS = (
    System(
        "rmq",
        "RMQ",
        "rmq",
        ("rmq",),
        "rmq_rival.py",
        "merge",
        "`RANGE_MERGE` with `Sliding(quiet, max_wait)`; `Newest()`, `Sum()`, and `Collect()` for the others",
        RMQ_LEFT,
        RMQ_RECOVERY_S,
    ),
    System(
        "bullmq",
        "BullMQ, debounce",
        "rivals_bullmq",
        ("bullmq",),
        "bullmq_rival.mjs",
        "debounce",
        "`delay` with `deduplication: {id, ttl, extend: true, replace: true}`",
        BULLMQ_LEFT,
        BULLMQ_RECOVERY_S,
    ),
    System(
        "bullmq_continuous",
        "BullMQ, continuous debounce",
        "rivals_bullmq",
        ("bullmq",),
        "bullmq_rival.mjs",
        "continuous",
        "`delay` with `deduplication: {id, keepLastIfActive: true, replace: true}`",
        BULLMQ_LEFT,
        BULLMQ_RECOVERY_S,
    ),
    System(
        "bullmq_none",
        "BullMQ, nothing merged",
        "rivals_bullmq",
        ("bullmq",),
        "bullmq_rival.mjs",
        "none",
        "no `deduplication`: what it costs to lose nothing",
        BULLMQ_LEFT,
        BULLMQ_RECOVERY_S,
    ),
    System(
        "asynq",
        "Asynq, groups",
        "rivals_asynq",
        ("github.com/hibiken/asynq",),
        "asynq",
        "group",
        "a group for each key, `GroupGracePeriod`, `GroupMaxDelay`, an aggregator that keeps all payloads",
        ASYNQ_LEFT,
        ASYNQ_RECOVERY_S,
    ),
    System(
        "celery_singleton",
        "Celery, celery-singleton",
        "rivals_celery_singleton",
        SINGLETON,
        "celery_rival.py",
        "singleton",
        '`unique_on=["key"]`, `lock_expiry`, a countdown of one window',
        CELERY_LEFT,
        CELERY_RECOVERY_S,
    ),
    System(
        "celery_once",
        "Celery, celery-once",
        "rivals_celery_once",
        ONCE,
        "celery_rival.py",
        "once",
        '`once={"keys": ["key"]}`, a countdown of one window',
        CELERY_LEFT,
        CELERY_RECOVERY_S,
    ),
    System(
        "celery_once_unlocked",
        "Celery, celery-once, unlocked",
        "rivals_celery_once",
        ONCE,
        "celery_rival.py",
        "once_unlocked",
        "the same with `unlock_before_run`",
        CELERY_LEFT,
        CELERY_RECOVERY_S,
    ),
    System(
        "celery_debounce",
        "Celery, celery-debounce",
        "rivals_celery_debounce",
        DEBOUNCE,
        "celery_rival.py",
        "debounce",
        "`task.debounce(key, value=..., countdown=...)`: what it compares are the positional arguments",
        CELERY_LEFT,
        DEBOUNCE_RECOVERY_S,
    ),
    System(
        "docket",
        "Docket, Debounce",
        "rivals_docket",
        ("pydocket",),
        "docket_rival.py",
        "debounce",
        "`Annotated[str, Debounce(...), ConcurrencyLimit(1)]`, `Retry`",
        DOCKET_LEFT,
        DOCKET_RECOVERY_S,
    ),
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
