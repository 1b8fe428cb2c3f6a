"""A budget of simulated histories, and that a seed says everything: `make simulation` runs many more."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.unmeasured import unmeasured

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def simulate(*arguments: str, program: str = "tests.simulation") -> str:
    """Run simulations in a process of their own; return what it printed."""
    command = [sys.executable, "-m", program, *arguments]
    with unmeasured():
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-6000:] + done.stdout[-2000:]
    return done.stdout


@pytest.mark.timeout(300)
def test_simulated_histories_keep_all_promises(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    printed = simulate("--seeds", "12", "--out", str(out))
    assert "12 seeds, 0 with violations" in printed
    told = json.loads(out.read_text("utf-8"))
    assert (told["seeds"], told["violations"]) == (12, [])
    assert told["simulated_hours"] > 0.1
    assert told["handlings"] > 500
    assert told["digest"] in printed


@pytest.mark.timeout(300)
def test_simulations_end_when_their_time_is_over(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    assert "1 seeds, 0 with violations" in simulate("--seeds", "1000", "--seconds", "0", "--out", str(out))
    assert json.loads(out.read_text("utf-8"))["seeds"] == 1


@pytest.mark.timeout(300)
def test_long_histories_keep_all_promises(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    assert "2 seeds, 0 with violations" in simulate("--long", "--seed", "4", "--seeds", "2", "--out", str(out))
    [(kind, told)] = json.loads(out.read_text("utf-8"))["kinds"].items()
    assert (kind, told["seeds"]) == ("long", 2)
    assert told["simulated_hours"] > 12
    assert told["handlings"] > 100


@pytest.mark.timeout(300)
def test_a_seed_replays_exactly() -> None:
    """In another process, too."""
    first, second = (
        re.findall(r"(?m)^\d+\.\d{6} .*|digest \w+", simulate("--seeds", "3", "--lines", "--jobs", jobs))
        for jobs in ("1", "2")
    )
    assert len(first) > 1_000
    assert first[-1].startswith("digest")
    assert first[:-1] == second[:-1]
    assert first[-1] == second[-1]


@pytest.mark.timeout(300)
def test_simulations_find_planted_bugs() -> None:
    bugs = ("when it is claimed", "drops a fresh copy", "failed flight", "reply is lost counts", "wrong callers")
    printed = simulate("--most", "40", *bugs, program="tests.simulation.planting")
    assert len(printed.splitlines()) == len(bugs) + 1
    assert printed.splitlines()[-1].startswith("5 of 5 bugs found")
    for check in ("lost:", "unexpected:", "refused:"):
        assert check in printed
