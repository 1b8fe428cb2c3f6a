"""Runs simulations by their seeds: `python -m tests.simulation --seeds 1000 --jobs 2 --out result.json`."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path

from tests.simulation.campaign import PORTION, Sum, Wish, outcomes
from tests.simulation.plan import Limits

HOUR = Limits(length_s=3_600.0, workers=10, sends_per_s=1.0, faults=120, sparse=0.0, slow=0.0, scheduled=0.0)
SLOW, SCHEDULED = Limits(slow=1.0, scheduled=0.0), Limits(scheduled=1.0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many, 100 by default")
    parser.add_argument("--seed", type=int, default=1, help="the first one, 1 by default")
    parser.add_argument("--hour", action="store_true", help="an hour of ten workers each, instead of about a minute")
    parser.add_argument("--long", action="store_true", help="6 to 24 hours with little to do each")
    parser.add_argument("--slow", action="store_true", help="slow handlers beside idle workers in economy, each")
    parser.add_argument("--scheduled", action="store_true", help="workers that run schedules, each")
    parser.add_argument("--shrink", action="store_true", help="make the plan of a failing seed small, and print it")
    parser.add_argument("--lines", action="store_true", help="print all that happens")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the seeds, 1 by default")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no seed after so many real seconds")
    parser.add_argument("--out", type=Path, help="a JSON file that tells the result, renewed as the seeds go on")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.seeds)
    limits = HOUR if options.hour else SLOW if options.slow else SCHEDULED if options.scheduled else Limits()
    wish = Wish(seeds, limits, options.shrink, options.lines, options.long)
    began_s, total = time.monotonic(), Sum()
    for seed, outcome in outcomes(wish, options.jobs):
        total.add(seed, outcome)
        total.seconds = time.monotonic() - began_s
        last = total.seeds == options.seeds or total.seconds >= options.seconds
        if options.out and (options.long or total.seeds % PORTION == 0 or last):
            total.write(options.out, options.seed)
        if last:
            break
    print(
        f"{total.seeds} seeds, {total.bad} with violations; {total.hours:.2f} simulated hours in"
        f" {total.seconds:.1f} s; {total.sends} sends, {total.handlings} handlings, {total.calls} calls to Redis;"
        f" digest {total.digest}"
    )
    return 1 if total.bad else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of a set of texts depends on it
        here = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        os.execve(sys.executable, here, {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
