"""Plants bugs in copies of the scripts and requires that the tests notice each.

Usage: python tests/mutants/run.py [--first] [--note] [--edits NAME]... [WORD...]

WORD: only the mutants with one of these words in their names. NAME: only those that change a script or a definition
whose name has it. With --first a mutant is done when one of the suites has noticed it, that of the scripts first; and
the test that noticed it last, as `caught_by.json` says, before them. With --note that file is brought up to date.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.mutants.mutant import Mutant, place_of  # noqa: E402 - the path comes first
from tests.mutants.mutants import MUTANTS  # noqa: E402

SUITES = ("tests/lua", "tests/stateful")
AT_ONCE = 2
CAUGHT_BY = Path(__file__).parent / "caught_by.json"
"""JSON: mutant -> the test that noticed it last. All tests of the scripts take a minute, that one a second or two."""

NOT_FOUND = 4
"""Exit code of pytest where a test does not exist: it has another name by now."""


@dataclass(frozen=True)
class Verdict:
    """What one suite says of one mutant.

    Attributes:
        caught_by: The test that failed, from its file's path on; None where the mutant survived.
        seconds: How long that took.
    """

    caught_by: str | None
    seconds: float

    def __str__(self) -> str:
        return "-" if self.caught_by is None else self.caught_by.split("/")[-1]


def plant(mutant: Mutant, folder: Path) -> Path:
    """Copy the scripts into `folder` and change them.

    Raises:
        SystemExit: A text to replace is not there: the mutant no longer fits the scripts.
    """
    lua = folder / re.sub(r"\W+", "-", mutant.name)
    shutil.copytree(ROOT / "lua", lua)
    for name, old, new in mutant.edits:
        path, text = place_of(name, lua)
        if old not in text:
            raise SystemExit(f"mutant {mutant.name!r} does not apply: {name} has no {old!r}")
        path.write_text(path.read_text("utf-8").replace(text, text.replace(old, new)), "utf-8")
    return lua


def nearest_first(mutant: Mutant, suite: str) -> list[str]:
    """Return a suite's test files that have a word of a changed name or its file in their names; then the suite."""
    names = [each for name, _, _ in mutant.edits for each in (name, place_of(name, ROOT / "lua")[0].stem)]
    words = {word for name in names for word in name.split("_")}
    files = sorted(path.name for path in (ROOT / suite).glob("test_*.py"))
    return [*(f"{suite}/{name}" for name in files if words & set(name[:-3].split("_"))), suite]


def judge(lua: Path | None, *tests: str) -> Verdict:
    """Run tests on these scripts (None: the repository's), up to the first failure."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "RMQ_HYPOTHESIS_PROFILE": "mutants"}
    if lua is not None:
        environment["RMQ_TEST_LUA"] = str(lua)
    start = time.monotonic()
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - start
    if run.returncode == 0 or (run.returncode == NOT_FOUND and "::" in tests[0]):
        return Verdict(None, seconds)
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", run.stdout, re.MULTILINE)
    if run.returncode != 1 or failed is None:
        raise SystemExit(
            f"pytest could not run {tests[-1]} ({run.returncode}):\n{run.stdout[-3000:]}{run.stderr[-3000:]}"
        )
    return Verdict(failed[1], seconds)


def judge_in_turn(mutant: Mutant, lua: Path) -> tuple[Verdict, Verdict]:
    """Return what the scripts' own suite says, and only where that notices nothing, the stateful one."""
    if (last := caught_by().get(mutant.name)) and (verdict := judge(lua, last)).caught_by:
        return verdict, Verdict(None, 0.0)
    by_script = judge(lua, *nearest_first(mutant, SUITES[0]))
    return by_script, Verdict(None, 0.0) if by_script.caught_by else judge(lua, SUITES[1])


def judge_by_both(mutant: Mutant, lua: Path) -> tuple[Verdict, Verdict]:
    """Return what each suite says."""
    return judge(lua, *nearest_first(mutant, SUITES[0])), judge(lua, SUITES[1])


def caught_by() -> dict[str, str]:
    """Return which test noticed which mutant last."""
    found: dict[str, str] = json.loads(CAUGHT_BY.read_text("utf-8"))
    return found


def note(caught: dict[str, str]) -> None:
    """Keep which test noticed which mutant; forget the mutants that are gone."""
    known = {**caught_by(), **caught}
    kept = {mutant.name: known[mutant.name] for mutant in MUTANTS if mutant.name in known}
    fresh = CAUGHT_BY.with_suffix(".new")  # others read it meanwhile
    fresh.write_text(json.dumps(kept, indent=0, ensure_ascii=False) + "\n", "utf-8")
    fresh.replace(CAUGHT_BY)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Plant bugs in the scripts and see that the tests notice each.")
    parser.add_argument("words", nargs="*", metavar="WORD", help="only mutants with this in their names")
    parser.add_argument("--edits", action="append", default=[], metavar="NAME", help="only mutants that change it")
    parser.add_argument("--first", action="store_true", help="be content with the first suite that notices a mutant")
    parser.add_argument("--note", action="store_true", help=f"keep in {CAUGHT_BY.name} which test notices which mutant")
    return parser.parse_args()


def is_chosen(mutant: Mutant, words: Sequence[str], scripts: Sequence[str]) -> bool:
    """Return whether a mutant is among those that are asked for."""
    changed = [name for name, _, _ in mutant.edits]
    return (not words or any(word in mutant.name for word in words)) and (
        not scripts or any(script in name for script in scripts for name in changed)
    )


def main() -> int:
    """Run the mutants, print a table, and return 1 if one survived."""
    asked = arguments()
    chosen = [mutant for mutant in MUTANTS if is_chosen(mutant, asked.words, asked.edits)]
    judge_mutant = judge_in_turn if asked.first else judge_by_both
    survivors: list[str] = []
    print(f"{'planted bug':52} {'tests/stateful':>14}   tests/lua", flush=True)
    with tempfile.TemporaryDirectory(prefix="rmq-mutants-") as name, ThreadPoolExecutor(AT_ONCE) as pool:
        planted = [plant(mutant, Path(name)) for mutant in chosen]  # all of them fit, or nothing runs
        healthy = [pool.submit(judge, None, suite) for suite in SUITES]
        jobs = [pool.submit(judge_mutant, mutant, lua) for mutant, lua in zip(chosen, planted, strict=True)]
        if failed := [verdict.caught_by for future in healthy if (verdict := future.result()).caught_by]:
            pool.shutdown(cancel_futures=True)
            raise SystemExit(f"the tests fail without any planted bug: {failed}")
        for mutant, job in zip(chosen, jobs, strict=True):
            by_script, by_history = job.result()
            if by_script.caught_by is None and by_history.caught_by is None:
                survivors.append(mutant.name)
            elif asked.note:
                note({mutant.name: by_script.caught_by or str(by_history.caught_by)})
            seen = f"{by_history.seconds:.1f} s" if by_history.caught_by else "-" if by_history.seconds else "not run"
            print(f"{mutant.name:52} {seen:>14}   {by_script}", flush=True)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} planted bugs caught")
    for name in survivors:
        print(f"not caught: {name}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
