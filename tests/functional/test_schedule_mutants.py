"""Bugs that are planted in the code of schedules: for each of them the test that is named fails."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.mutants.schedules import BUGS, NOTICED_BY
from tests.support.unmeasured import unmeasured

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants.schedules"]
AT_ONCE = 4
"""Most of them wait: for what a bug keeps from happening."""


@pytest.mark.timeout(900)
def test_each_planted_bug_is_noticed_and_without_one_the_tests_pass() -> None:
    with unmeasured():
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    noticed_by = {bug.name: [NOTICED_BY[bug.name]] for bug in BUGS}
    noticed_by[""] = sorted(set(NOTICED_BY.values()))

    def run(planted: str) -> subprocess.CompletedProcess[str]:
        tests = [f"tests/integration/test_schedules.py::{test}" for test in noticed_by[planted]]
        planting = environment | {"RMQ_PLANTED": planted}
        return subprocess.run(
            [*COMMAND, *tests], cwd=ROOT, env=planting, capture_output=True, encoding="utf-8", timeout=600
        )

    with ThreadPoolExecutor(AT_ONCE) as pool:
        ran = dict(zip(noticed_by, pool.map(run, noticed_by), strict=True))
    healthy = ran.pop("")
    assert healthy.returncode == 0, healthy.stdout + healthy.stderr
    assert ran.keys() == NOTICED_BY.keys()
    for bug, done in ran.items():
        said = done.stdout + done.stderr
        assert done.returncode == 1, said
        assert f"FAILED tests/integration/test_schedules.py::{NOTICED_BY[bug]}" in said, bug
