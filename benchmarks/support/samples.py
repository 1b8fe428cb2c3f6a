"""Figures of single repeats: kept beside the medians, so that a later run can add repeats, and ratios stay within one.

A repeat measures its cases one right after the other. Ratios are taken between two cases of one repeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from benchmarks.support.meters import medians, rounded

Sample = dict[str, Any]
"""One case in one repeat: `case`, `repeat` and `figures`, a dict of numbers."""


def sample(case: str, repeat: int, figures: dict[str, float]) -> Sample:
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
