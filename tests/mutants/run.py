"""Plants bugs in copies of the scripts and requires that the tests notice each.

Usage: python tests/mutants/run.py [WORD...]      only the mutants with one of these words in their names
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.mutants.mutant import Mutant  # noqa: E402 - the path comes first
from tests.mutants.mutants import MUTANTS  # noqa: E402

SUITES = ("tests/lua", "tests/stateful")
AT_ONCE = 2


@dataclass(frozen=True)
class Verdict:
    """What one suite says of one mutant.

    Attributes:
        caught_by: The test that failed; None where the mutant survived.
        seconds: How long that took.
    """

    caught_by: str | None
    seconds: float


def plant(mutant: Mutant, folder: Path) -> Path:
    """Copy the scripts into `folder` and change them.

    Raises:
        SystemExit: A text to replace is not there: the mutant no longer fits the scripts.
    """
    lua = folder / re.sub(r"\W+", "-", mutant.name)
    shutil.copytree(ROOT / "lua", lua)
    for name, old, new in mutant.edits:
        (path,) = lua.rglob(f"{name}.lua")
        text = path.read_text("utf-8")
        if old not in text:
            raise SystemExit(f"mutant {mutant.name!r} does not apply: {name}.lua has no {old!r}")
        path.write_text(text.replace(old, new), "utf-8")
    return lua


def judge(lua: Path | None, suite: str) -> Verdict:
    """Run a suite on these scripts (None: the repository's), up to its first failure."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", suite]
    environment = {**os.environ, "RMQ_HYPOTHESIS_PROFILE": "mutants"}
    if lua is not None:
        environment["RMQ_TEST_LUA"] = str(lua)
    start = time.monotonic()
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - start
    if run.returncode == 0:
        return Verdict(None, seconds)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
    if run.returncode != 1 or failed is None:
        raise SystemExit(f"pytest could not run {suite} ({run.returncode}):\n{run.stdout[-3000:]}{run.stderr[-3000:]}")
    return Verdict(failed[1].split("/")[-1], seconds)


def main(words: list[str]) -> int:
    """Run all mutants, print a table, and return 1 if one survived."""
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    survivors = 0
    print(f"{'planted bug':52} {'tests/stateful':>14}   tests/lua", flush=True)
    with tempfile.TemporaryDirectory(prefix="rmq-mutants-") as name, ThreadPoolExecutor(AT_ONCE) as pool:
        planted = [plant(mutant, Path(name)) for mutant in chosen]  # all of them fit, or nothing runs
        healthy = [pool.submit(judge, None, suite) for suite in SUITES]
        jobs = [[pool.submit(judge, lua, suite) for suite in SUITES] for lua in planted]
        if any(future.result().caught_by for future in healthy):
            pool.shutdown(cancel_futures=True)
            raise SystemExit("the tests fail without any planted bug")
        for mutant, (scripts, stateful) in zip(chosen, jobs, strict=True):
            by_script, by_history = scripts.result(), stateful.result()
            survivors += by_script.caught_by is None and by_history.caught_by is None
            seen = f"{by_history.seconds:.1f} s" if by_history.caught_by else "-"
            print(f"{mutant.name:52} {seen:>14}   {by_script.caught_by or '-'}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} planted bugs caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
