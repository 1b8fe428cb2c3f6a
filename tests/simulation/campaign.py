"""Many simulations, in one process or in several, and the sum of what came of them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import sha1
from multiprocessing import get_context
from pathlib import Path

from tests.simulation.plan import Limits, Plan
from tests.simulation.plans import plan_of
from tests.simulation.runner import Runner
from tests.simulation.shrinking import shrink
from tests.simulation.simulation import Outcome

MOST_SHOWN = 3

PORTION = 25
"""So many seeds a process is given at once."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What to run: seeds, how large the plans are, and what is told of them."""

    seeds: range
    limits: Limits
    shrinks: bool = False
    lines: bool = False
    long: bool = False

    def plan(self, seed: int) -> Plan:
        """Draw the plan of a seed."""
        return plan_of(seed, self.limits, long=self.long)

    def part(self, first: int, number: int) -> Wish:
        """Return the same for some of the seeds, from the `first` one of them, counted from 0."""
        return replace(self, seeds=self.seeds[first : first + number])


@dataclass
class Sum:
    """What came of all seeds so far."""

    seeds: int = 0
    simulated_s: float = 0.0
    sends: int = 0
    handlings: int = 0
    calls: int = 0
    forgotten: int = 0
    violations: list[dict[str, object]] = field(default_factory=list[dict[str, object]])
    bad: int = 0
    seconds: float = 0.0
    digest: str = ""
    kinds: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    """Of each kind of plan: seeds, simulated seconds, sends and handlings."""

    def add(self, seed: int, outcome: Outcome) -> None:
        """Add what came of a seed."""
        self.seeds += 1
        self.simulated_s += outcome.simulated_s
        self.sends += outcome.sends
        self.handlings += outcome.runs
        self.calls += outcome.calls
        self.forgotten += outcome.forgotten
        kind = self.kinds.setdefault(outcome.kind, Counter())
        kind.update(seeds=1, seconds=round(outcome.simulated_s), sends=outcome.sends, handlings=outcome.runs)
        self.bad += bool(outcome.violations)
        self.violations += [{"seed": seed, "kind": each.kind, "text": each.text} for each in outcome.violations]
        self.digest = sha1((self.digest + outcome.digest).encode(), usedforsecurity=False).hexdigest()

    @property
    def hours(self) -> float:
        """Simulated hours."""
        return self.simulated_s / 3600

    def write(self, path: Path, first: int) -> None:
        """Write it to a file, so that the file is whole at any time."""
        told = {
            "first_seed": first,
            "seeds": self.seeds,
            "simulated_hours": round(self.hours, 3),
            "seconds": round(self.seconds, 1),
            "simulated_hours_per_second": round(self.hours / max(self.seconds, 1e-9), 5),
            "sends": self.sends,
            "handlings": self.handlings,
            "calls_to_redis": self.calls,
            "sends_forgotten_by_servers": self.forgotten,
            "seeds_with_violations": self.bad,
            "violations": self.violations,
            "kinds": {
                kind: {"simulated_hours": round(counts["seconds"] / 3600, 3)}
                | {name: counts[name] for name in ("seeds", "sends", "handlings")}
                for kind, counts in sorted(self.kinds.items())
            },
            "digest": self.digest,
        }
        new = path.with_name(f"{path.name}.new")
        new.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
        new.replace(path)


def outcomes(wish: Wish, jobs: int) -> Iterator[tuple[int, Outcome]]:
    """Run all seeds; give what came of each, in their order."""
    if jobs == 1:
        with Runner() as runner:
            for seed in wish.seeds:
                yield seed, _run(runner, seed, wish)
        return
    seeds, portion = wish.seeds, 1 if wish.long else PORTION
    portions = [wish.part(first, portion) for first in range(0, len(seeds), portion)]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for portion, found in zip(portions, pool.map(_run_all, portions), strict=True):
            yield from zip(portion.seeds, found, strict=True)


def _run_all(wish: Wish) -> list[Outcome]:
    """Run a portion, in a process of its own."""
    with Runner() as runner:
        return [_run(runner, seed, wish) for seed in wish.seeds]


def _run(runner: Runner, seed: int, wish: Wish) -> Outcome:
    """Run a seed, and tell of its violations."""
    plan = wish.plan(seed)
    outcome = runner.run(plan, lines=wish.lines)
    if outcome.violations:
        _report(plan, outcome)
        if wish.shrinks:
            _shrink(runner, plan, outcome)
    return outcome


def _report(plan: Plan, outcome: Outcome) -> None:
    kinds = Counter(violation.kind for violation in outcome.violations)
    print(f"seed {plan.seed}: {len(outcome.violations)} violations: {dict(kinds)}", file=sys.stderr)
    for violation in outcome.violations[:MOST_SHOWN]:
        print(f"  {violation}", file=sys.stderr)


def _shrink(runner: Runner, plan: Plan, outcome: Outcome) -> None:
    small = shrink(plan, lambda each: bool(runner.run(each).kinds & outcome.kinds))
    print(f"small plan: {small.described()}", file=sys.stderr)
    _report(small, runner.run(small, lines=True))
