"""The rivals: what each needs, how its program is started, and which way of using it its manual recommends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.support.environments import Environment

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"


@dataclass(frozen=True, slots=True)
class System:
    """A queue with a way to merge.

    Attributes:
        place: Name of the environment in which it runs.
        packages: What is installed there; versions of the first two are shown. RMQ runs in our own environment.
        program: File in `programs/`.
        left: Redis commands whose sum is what is not done yet, in flight included.
        recovery_s: How long after a killed worker its work may come again.
        name: As on the command line.
        label: As in tables, without versions.
        variant: Which way of using it; its program knows.
        how: That way, in words.
    """

    place: str
    packages: tuple[str, ...]
    program: str
    left: tuple[tuple[str, ...], ...]
    recovery_s: float
    name: str = ""
    label: str = ""
    variant: str = ""
    how: str = ""

    @property
    def environment(self) -> Environment:
        """Where it runs."""
        constraints = HERE / "constraints" / f"{self.place.removeprefix('rivals_')}.txt"
        return Environment(self.place, PROGRAMS / self.program, self.packages, constraints)


CELERY_LEFT = (("LLEN", "celery"), ("HLEN", "unacked"))
RMQ = System(
    "rmq",
    (),
    "rmq_rival.py",
    (("ZCARD", "rival_0"), ("ZCARD", "prepare{rival_0}"), ("ZCARD", "retry{rival_0}")),
    60,  # the lease of rmq_rival.py
)
BULLMQ = System(
    "rivals_bullmq",
    ("bullmq",),
    "bullmq_rival.mjs",
    (("LLEN", "bull:rival:wait"), ("LLEN", "bull:rival:active"), ("ZCARD", "bull:rival:delayed")),
    150,  # a lock of 30 s; a look for stalled jobs every 30 s, of which the first marks and the next one moves
)
ASYNQ = System(
    "rivals_asynq",
    ("github.com/hibiken/asynq",),
    "asynq/main.go",
    (
        ("SCARD", "asynq:{default}:groups"),
        ("ZCARD", "asynq:{default}:aggregation_sets"),
        ("LLEN", "asynq:{default}:pending"),
        ("LLEN", "asynq:{default}:active"),
        ("ZCARD", "asynq:{default}:retry"),
    ),
    200,  # sets that are aggregated come back after 2 minutes, looked for every minute; a lease counts 30 s + 30 s
)
DOCKET = System(
    "rivals_docket",
    ("pydocket",),
    "docket_rival.py",
    (("XLEN", "rival:stream"), ("ZCARD", "rival:queue")),
    60,  # the redelivery timeout of docket_rival.py
)


def _celery(name: str, *packages: str, recovery_s: float = 60) -> System:
    """The visibility timeout and locks of celery_tasks.py, looked at now and then, say how soon work comes again."""
    needed = ("celery[redis]", f"celery-{name}", *packages)
    return System(f"rivals_celery_{name}", needed, "celery_rival.py", CELERY_LEFT, recovery_s)


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
    replace(program, name=name, label=label, variant=variant, how=how) for program, name, label, variant, how in _WAYS
)
NAMES = tuple(system.name for system in SYSTEMS)
