"""Runs simulations by their seeds: `python -m tests.simulation --seeds 1000`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from hashlib import sha1

from tests.simulation.plan import Limits, Plan, draw_plan
from tests.simulation.runner import Runner
from tests.simulation.shrinking import shrink
from tests.simulation.simulation import Outcome

MOST_SHOWN = 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many, 100 by default")
    parser.add_argument("--seed", type=int, default=1, help="the first one, 1 by default")
    parser.add_argument("--hour", action="store_true", help="an hour of ten workers each, instead of about a minute")
    parser.add_argument("--shrink", action="store_true", help="make the plan of a failing seed small, and print it")
    parser.add_argument("--lines", action="store_true", help="print all that happens")
    options = parser.parse_args()
    limits = HOUR if options.hour else Limits()
    began_s, outcomes = time.monotonic(), list[Outcome]()
    with Runner() as runner:
        for seed in range(options.seed, options.seed + options.seeds):
            plan = draw_plan(seed, limits)
            outcome = runner.run(plan, lines=options.lines)
            outcomes.append(outcome)
            if outcome.violations:
                _report(plan, outcome)
                if options.shrink:
                    _shrink(runner, plan, outcome)
    bad = sum(bool(outcome.violations) for outcome in outcomes)
    hours = sum(outcome.simulated_s for outcome in outcomes) / 3600
    print(
        f"{options.seeds} seeds, {bad} with violations; {hours:.2f} simulated hours in"
        f" {time.monotonic() - began_s:.1f} s; {sum(each.sends for each in outcomes)} sends,"
        f" {sum(each.runs for each in outcomes)} handlings, {sum(each.calls for each in outcomes)} calls to Redis;"
        f" digest {sha1(''.join(each.digest for each in outcomes).encode(), usedforsecurity=False).hexdigest()}"
    )
    return 1 if bad else 0


HOUR = Limits(length_s=3_600.0, workers=10, sends_per_s=1.0, faults=120)


def _report(plan: Plan, outcome: Outcome) -> None:
    kinds = Counter(violation.kind for violation in outcome.violations)
    print(f"seed {plan.seed}: {len(outcome.violations)} violations: {dict(kinds)}", file=sys.stderr)
    for violation in outcome.violations[:MOST_SHOWN]:
        print(f"  {violation}", file=sys.stderr)


def _shrink(runner: Runner, plan: Plan, outcome: Outcome) -> None:
    small = shrink(plan, lambda each: bool(runner.run(each).kinds & outcome.kinds))
    print(f"small plan: {small.described()}", file=sys.stderr)
    _report(small, runner.run(small, lines=True))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of a set of texts depends on it
        here = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        os.execve(sys.executable, here, {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
