"""One campaign from its beginning to its judgement."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rmq.errors import RmqError
from tests.campaign import clocks
from tests.campaign.crew import ROOT
from tests.campaign.drain import drain, report_dead, unaccounted
from tests.campaign.other_faults import OtherFaults
from tests.campaign.plan import OTHER_LANE, REDIS_LANE, Planned, draw_plan
from tests.campaign.redis_faults import RedisFaults
from tests.campaign.release import release_before
from tests.campaign.samples import Sampler, growing, most
from tests.campaign.stage import Stage, small_disk, stage
from tests.campaign.topics import FOLDING, LEASE_S, SESSION_S, SPARK, STREAM
from tests.histories.journal import now_s
from tests.histories.judge import Rules, Verdict, judge
from tests.histories.story import read

SPARK_PART = 0.7
"""Part of the time over which the writes of the Spark job are spread; the job takes time by itself."""

LATE_S = 60.0
"""A fault that would begin so long after the end is left out."""


@dataclass(frozen=True)
class Settings:
    """What a campaign is told.

    Attributes:
        messages: How many messages the producers send.
        faults: How many faults there are.
        minutes: In what time.
        seed: Draws everything.
        recovery_s: How long beyond the session timeout a slot may be without an owner.
        spark: How often the Spark job writes; 0: there is none.
        brief: Short faults, no elections in Redis: for a run within a minute.
        only: Kinds of faults; empty for all.
        soak: Whether what grows is a violation.
        before: The commit of the release before, None to find it.
        owners: What keeps the owners of slots: `zookeeper` or `redis`.
    """

    messages: int = 1_000_000
    faults: int = 200
    minutes: float = 30.0
    seed: int = 1
    recovery_s: float = 5.0
    spark: int = 20
    brief: bool = False
    only: Sequence[str] = ()
    soak: bool = False
    before: str | None = None
    owners: str = "zookeeper"


@dataclass
class Outcome:
    """What a campaign shows.

    Attributes:
        verdict: Of the judge.
        violations: All that is wrong, in words.
        faults: Kind -> how often.
        texts: What happened, in words.
        not_tried: Kind -> why not.
        left: Topic -> messages that were left over.
        most: What servers and workers used, in the second and in the last quarter.
        notes: What else there is to say.
    """

    verdict: Verdict = field(default_factory=Verdict)
    violations: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    texts: list[str] = field(default_factory=list)
    not_tried: dict[str, str] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    most: dict[str, list[float]] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)


def run(settings: Settings, path: Path, folder: Path) -> Outcome:
    """Run a campaign.

    Args:
        settings: What to do.
        path: Where events are written down.
        folder: For logs and the release before.
    """
    outcome, chance = Outcome(), random.Random(settings.seed)
    source = folder / "before"
    source.mkdir()
    before = release_before(source, settings.before)
    outcome.not_tried = _not_tried(before)
    if settings.owners == "redis" and not (source / "rmq/_ownership/redis_keeper.py").exists():
        outcome.not_tried.setdefault("release before", "it keeps no owners in Redis")
    outcome.notes["release before"] = before
    plan = draw_plan(settings.seed, settings.faults, settings.minutes * 60, _left_out(settings, outcome))
    path.write_text("")
    per_second = settings.messages / (settings.minutes * 60)
    with stage(path, folder, chance, per_second, elections=not settings.brief, owners=settings.owners) as made:
        made.journal.clock()
        sampler = Sampler(made, 1.0 if settings.brief else 5.0)
        sampler.start()
        spark = _start_spark(settings, path, made)
        _carry_out(settings, plan, made, source if before else None, outcome)
        if spark is not None:
            outcome.notes["spark"] = _end_spark(spark, path, outcome)
        made.crew.end(made.crew.senders)
        sent_s = now_s()
        outcome.left = drain(made.client)
        outcome.notes["drained_s"] = round(now_s() - sent_s, 1)
        sampler.stop()
        outcome.violations += [f"left over: {number} of {topic}" for topic, number in outcome.left.items()]
        outcome.violations += [
            f"not accounted for: {number} of {topic}" for topic, number in unaccounted(made.client).items()
        ]
        dead = report_dead(made.client)
        made.crew.end(made.crew.workers)
        outcome.violations += [f"process: {said}" for said in made.crew.bad_exits]
    rules = Rules(LEASE_S, SESSION_S, settings.recovery_s, FOLDING, (STREAM,), (SPARK,), dead, LEASE_S)
    outcome.verdict = judge(read(path), rules)
    outcome.violations += map(str, outcome.verdict.violations)
    outcome.most, grows = most(sampler.series), growing(sampler.series)
    outcome.notes |= {"dead": len(dead), "grows": grows}
    if settings.soak:
        outcome.violations += [f"grows: {said}" for said in grows]
    return outcome


def _not_tried(before: str | None) -> dict[str, str]:
    """Return what cannot be tried here, and why."""
    found: dict[str, str] = {}
    if clocks.library() is None:
        found["clock jumps"] = clocks.NOT_HERE
    if before is None:
        found["release before"] = "there is no git history"
    with small_disk() as disk:
        if disk is None:
            found["disk full"] = "only root may mount a small file system"
    return found


def _left_out(settings: Settings, outcome: Outcome) -> list[str]:
    from tests.campaign.plan import KINDS

    kinds = [kind for of_lane in KINDS.values() for kind in of_lane]
    of_zookeeper = [kind for kind in kinds if kind.startswith("zookeeper") and settings.owners == "redis"]
    left_out = (*outcome.not_tried, *of_zookeeper)
    return [kind for kind in kinds if kind in left_out or (settings.only and kind not in settings.only)]


def _carry_out(settings: Settings, plan: Sequence[Planned], made: Stage, before: Path | None, outcome: Outcome) -> None:
    """Let the faults happen, those of each lane in turn; return when all is well again, and the time is over."""
    begun_s = now_s()
    end_s = begun_s + settings.minutes * 60
    redis, other = RedisFaults(made, settings.brief), OtherFaults(made, before, settings.brief)
    lanes = {REDIS_LANE: (redis.settle, redis.by_kind), OTHER_LANE: (other.settle, other.by_kind)}

    def follow(lane: str) -> None:
        settle, by_kind = lanes[lane]
        for fault in (each for each in plan if each.lane == lane):
            time.sleep(max(0.0, begun_s + fault.at_s - now_s()))
            if now_s() > end_s + LATE_S and not settings.brief:  # a small campaign takes the time that it needs
                outcome.violations.append(f"campaign: no time for {fault.kind}")
                continue
            _carry_out_one(fault, settle, by_kind[fault.kind], made, outcome, begun_s)

    thread = threading.Thread(target=follow, args=(OTHER_LANE,))
    thread.start()
    follow(REDIS_LANE)  # in this thread: a Redis that it starts again ends with the thread that has started it
    thread.join()
    time.sleep(max(0.0, end_s - now_s()))
    redis.settle()
    other.settle()
    made.journal.write("watch", begun_s, now_s())
    outcome.notes["minutes"] = round((now_s() - begun_s) / 60, 1)


def _carry_out_one(
    fault: Planned,
    settle: Callable[[], None],
    do: Callable[[random.Random], str],
    made: Stage,
    outcome: Outcome,
    begun_s: float,
) -> None:
    try:
        settle()
        from_s = now_s()
        said = do(random.Random(fault.seed))
        made.journal.write("fault", fault.kind, from_s, now_s(), said)
        settle()
    except (AssertionError, RmqError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        outcome.violations.append(f"campaign: {fault.kind}: {type(error).__name__}: {error}")
        return
    made.crew.check()
    outcome.faults[fault.kind] += 1
    outcome.texts.append(f"{from_s - begun_s:7.1f} s  {fault.kind}: {said}")
    print(outcome.texts[-1], file=sys.stderr, flush=True)


def _start_spark(settings: Settings, path: Path, made: Stage) -> subprocess.Popen[str] | None:
    if not settings.spark:
        return None
    pause_s = SPARK_PART * settings.minutes * 60 / settings.spark
    options = {"url": made.shards.cluster.url, "journal": str(path), "writes": settings.spark, "pause_s": pause_s}
    command = [sys.executable, "-m", "tests.campaign.spark_job", json.dumps(options)]
    # a pipe is full of Spark's progress bars after some minutes, and the job would wait until somebody reads them
    with path.with_suffix(".spark").open("w") as log:
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)


def _end_spark(process: subprocess.Popen[str], path: Path, outcome: Outcome) -> dict[str, int]:
    try:
        said, _ = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
    errors = path.with_suffix(".spark").read_text("utf-8", "replace")
    lines = said.strip().splitlines()
    if process.returncode or not lines:
        outcome.violations.append(f"spark: ended with code {process.returncode}: {errors[-500:]}")
        return {}
    return json.loads(lines[-1])
