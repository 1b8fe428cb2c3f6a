"""Bugs that are planted in the code of schedules: for each of them the test that is named fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.schedules import PLANTED, Planted
from tests.support.unmeasured import unmeasured

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants.schedules"]


def run(planted: str, *tests: str) -> subprocess.CompletedProcess[str]:
    tests = tuple(f"tests/integration/test_schedules.py::{test}" for test in tests)
    with unmeasured():
        environment = {**os.environ, "RMQ_PLANTED": planted, "PYTHONPATH": str(ROOT)}
    command = [*COMMAND, *tests]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", timeout=110)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_bug_is_noticed(planted: Planted) -> None:
    ran = run(planted.name, planted.noticed_by)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert f"FAILED tests/integration/test_schedules.py::{planted.noticed_by}" in ran.stdout
    assert "LookupError" not in ran.stdout


def test_without_a_planted_bug_the_tests_pass() -> None:
    ran = run("", *sorted({planted.noticed_by for planted in PLANTED}))
    assert ran.returncode == 0, ran.stdout + ran.stderr
