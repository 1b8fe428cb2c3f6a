"""A budget of simulated histories, and that a seed says everything: `make simulation` runs many more."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def simulate(*arguments: str, program: str = "tests.simulation") -> str:
    """Run simulations in a process of their own; return what it printed."""
    command = [sys.executable, "-m", program, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-6000:] + done.stdout[-2000:]
    return done.stdout


@pytest.mark.timeout(300)
def test_simulated_histories_keep_all_promises() -> None:
    printed = simulate("--seeds", "30")
    hours, handlings = re.search(r"([\d.]+) simulated hours.* (\d+) handlings", printed).groups()  # pyright: ignore[reportOptionalMemberAccess]
    assert float(hours) > 0.2
    assert int(handlings) > 2_000


@pytest.mark.timeout(300)
def test_a_seed_replays_exactly() -> None:
    first, second = (
        re.findall(r"(?m)^\d+\.\d{6} .*|digest \w+", simulate("--seeds", "3", "--lines")) for _ in range(2)
    )
    assert len(first) > 1_000
    assert first[-1].startswith("digest")
    assert first[:-1] == second[:-1]
    assert first[-1] == second[-1]


@pytest.mark.timeout(300)
def test_simulations_find_planted_bugs() -> None:
    bugs = ("when it is claimed", "drops a fresh copy", "failed flight", "reply is lost counts")
    printed = simulate("--most", "40", *bugs, program="tests.simulation.planting")
    assert len(printed.splitlines()) == len(bugs)
    for check in ("lost:", "unexpected:"):
        assert check in printed
