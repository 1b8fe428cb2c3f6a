"""Plants bugs in the library and in the scripts, and says after how many seeds simulations find each.

Usage: `python -m tests.simulation.planting [--starts 5] [--most 300] [WORD...]`.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import statistics
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from tests.mutants.mutant import Mutant
from tests.mutants.run import plant
from tests.simulation.plans import plan_of
from tests.simulation.plants import PLANTS, Plant
from tests.simulation.runner import Runner
from tests.simulation.virtual import new_scripts
from tests.support.core import ScriptLibrary
from tests.support.slots import LUA_VARIABLE

MOST_SEEDS = 300
APART = 10_000
"""Between the first seeds of two searches."""


def resolved(path: str) -> tuple[Any, str, Any]:
    """Return where a function stands, its name there, and the function."""
    module, _, name = path.partition(":")
    *outer, last = name.split(".")
    place: Any = importlib.import_module(module)
    for each in outer:
        place = getattr(place, each)
    return place, last, inspect.getattr_static(place, last)


def edited(path: str, edits: Sequence[tuple[str, str]]) -> Any:
    """Return a function with other text in place of some of its own.

    Raises:
        SystemExit: A text to replace is not there: the planted bug no longer fits the library.
    """
    _, name, function = resolved(path)
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in edits:
        if old not in source:
            raise SystemExit(f"{path} has no {old!r}")
        source = source.replace(old, new)
    made: dict[str, Any] = {}
    exec("from __future__ import annotations\n" + source, function.__globals__, made)
    return made[name]


@contextmanager
def planted(bug: Plant) -> Iterator[ScriptLibrary | None]:
    """Plant a bug; give the scripts where it is in them."""
    with ExitStack() as stack:
        by_path: dict[str, list[tuple[str, str]]] = {}
        for path, old, new in bug.python:
            by_path.setdefault(path, []).append((old, new))
        for path, edits in by_path.items():
            place, name, _ = resolved(path)
            stack.enter_context(mock.patch.object(place, name, edited(path, edits)))
        scripts = None
        if bug.lua:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            lua = plant(Mutant(bug.name, bug.lua), Path(folder))
            with mock.patch.dict(os.environ, {LUA_VARIABLE: str(lua)}):
                scripts = new_scripts()
        yield scripts


def seeds_until_found(bug: Plant, first: int, most: int = MOST_SEEDS) -> tuple[int | None, str]:
    """Return after how many seeds from `first` on a bug is found, and by which check; `None` where it is not."""
    with planted(bug) as scripts, Runner(scripts) as runner:
        for number in range(most):
            outcome = runner.run(plan_of(first + number, bug.limits))
            if outcome.violations:
                return number + 1, str(outcome.violations[0])
    return None, ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.planting", description=__doc__)
    parser.add_argument("--starts", type=int, default=1, help="from how many first seeds; the median is told")
    parser.add_argument("--most", type=int, default=MOST_SEEDS, help="so many seeds are tried")
    parser.add_argument("words", nargs="*", help="only those with one of these words in their names")
    options = parser.parse_args()
    missed = searched = 0
    for bug in PLANTS:
        if options.words and not any(word in bug.name for word in options.words):
            continue
        found = [seeds_until_found(bug, 1 + APART * start, options.most) for start in range(options.starts)]
        numbers = [number for number, _ in found if number is not None]
        missed += len(numbers) < len(found)
        searched += 1
        median = f"{statistics.median(numbers):g}" if len(numbers) == len(found) else "MISSED"
        print(f"{bug.name:48} {median:>7}   {found[0][1][:100]}", flush=True)
    print(f"{searched - missed} of {searched} bugs found from each of {options.starts} first seeds")
    return 1 if missed else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        here = [sys.executable, "-m", "tests.simulation.planting", *sys.argv[1:]]
        os.execve(sys.executable, here, {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
