"""Figures of single repeats: kept beside the medians, so that a later run can add repeats, and ratios stay within one.

A repeat measures its cases one right after the other. Ratios are taken between two cases of one repeat.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.support.meters import Figures, Meter, medians, rounded
from benchmarks.support.servers import Servers

Sample = dict[str, Any]
"""One case in one repeat: `case`, `repeat` and `figures`, a dict of numbers."""


Work = Callable[[int], object]
"""Does so many messages' worth of work."""


def say(text: str) -> None:
    """Report progress beside the result."""
    print(f"  {text}", file=sys.stderr, flush=True)


def in_turns(name: str, repeats: int, cases: Mapping[str, Callable[[], Figures]]) -> list[Sample]:
    """Measure all cases, one right after the other, as often as is asked for; every second time in reverse order."""
    found: list[Sample] = []
    for repeat in range(repeats):
        for case, run in list(cases.items())[:: -1 if repeat % 2 else 1]:
            say(f"{name}: repeat {repeat + 1} of {repeats}, {case}")
            found.append(sample(case, repeat, run()))
    return found


def side_by_side(
    servers: Servers, name: str, repeats: int, number: int, sides: Mapping[str, tuple[Work, Work]]
) -> dict[str, Any]:
    """Fill and do the same work in two ways, in turns; return the medians of each, and the shares of neighbours.

    Args:
        servers: What is looked at.
        name: Of the work, for progress.
        repeats: How often it counts; once more beforehand, to warm up.
        number: How many messages.
        sides: Name -> what fills a topic, and the work; ours, then what it is held against.
    """
    found: dict[str, list[Figures]] = {side: [] for side in sides}
    for repeat in range(repeats + 1):
        say(f"{name}, repeat {repeat} of {repeats}")
        for side, (fill, work) in sorted(sides.items(), reverse=repeat % 2 == 0):
            fill(number)
            with Meter(servers) as meter:
                work(number)
            if repeat:
                found[side].append(meter.cost.row(number))
    pairs = list(zip(*found.values(), strict=True))
    return {
        **{side: medians(each) for side, each in found.items()},
        "rate_share": rounded(median(ours["rate_per_s"] / theirs["rate_per_s"] for ours, theirs in pairs)),
        "cpu_share": rounded(median(_cpu_us(ours) / _cpu_us(theirs) for ours, theirs in pairs)),
    }


def _cpu_us(row: Figures) -> float:
    return row["server_cpu_us"] + row["client_cpu_us"]


def sample(case: str, repeat: int, figures: Figures) -> Sample:
    """Return the figures of a case in a repeat."""
    return {"case": case, "repeat": repeat, "figures": {name: rounded(value) for name, value in figures.items()}}


def joined(before: Iterable[Sample], after: Iterable[Sample]) -> list[Sample]:
    """Return earlier samples and later ones; the later repeats get numbers behind the earlier ones."""
    earlier = list(before)
    first = 1 + max((each["repeat"] for each in earlier), default=-1)
    return [*earlier, *({**each, "repeat": first + each["repeat"]} for each in after)]


def cases(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    """Return the samples of each case, in the order in which the cases first came."""
    found: dict[str, list[Sample]] = {}
    for each in samples:
        found.setdefault(each["case"], []).append(each)
    return found


def summary(samples: Iterable[Sample]) -> dict[str, dict[str, float]]:
    """Return the median of each figure of each case, and under `repeats` how many there were."""
    return {
        case: {**medians([each["figures"] for each in found]), "repeats": len(found)}
        for case, found in cases(samples).items()
    }


def ratio(samples: Sequence[Sample], case: str, beside: str, figure: str) -> float | None:
    """Return the median of a figure over that of another case in the same repeat; None if no repeat has both."""
    found = [
        {each["repeat"]: each["figures"].get(figure) for each in samples if each["case"] == name}
        for name in (case, beside)
    ]
    pairs = [(found[0][repeat], found[1][repeat]) for repeat in found[0].keys() & found[1].keys()]
    ratios = [ours / theirs for ours, theirs in pairs if ours is not None and theirs]
    return rounded(median(ratios)) if ratios else None
