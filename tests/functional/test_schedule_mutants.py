"""Bugs that are planted in the code of schedules: for each of them the test that is named fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.schedules import PLANTED, Planted

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants.schedules"]


def run(planted: str, test: str) -> subprocess.CompletedProcess[str]:
    test = f"tests/integration/test_schedules.py::{test}"
    environment = {**os.environ, "RMQ_PLANTED": planted, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*COMMAND, test], cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", timeout=110
    )


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_bug_is_noticed(planted: Planted) -> None:
    ran = run(planted.name, planted.noticed_by)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert f"FAILED tests/integration/test_schedules.py::{planted.noticed_by}" in ran.stdout
    assert "LookupError" not in ran.stdout


@pytest.mark.parametrize("test", sorted({planted.noticed_by for planted in PLANTED}))
def test_without_a_planted_bug_the_test_passes(test: str) -> None:
    ran = run("", test)
    assert ran.returncode == 0, ran.stdout + ran.stderr
