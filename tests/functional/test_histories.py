"""A short random history on one Redis and on a cluster; `make histories` gives it more time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("server", ["alone", "cluster"])
def test_a_random_history_keeps_all_promises(server: str):
    for minutes in ("0.2", "1"):  # a busy machine needs more time until enough has happened
        command = [sys.executable, "-m", "tests.histories", "--server", server, "--minutes", minutes, "--freeze", "4"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stderr[-3000:] + done.stdout
        *report_lines, summary = done.stdout.splitlines()
        report = json.loads("\n".join(report_lines))
        assert summary.endswith("lost 0, unfinished 0, unexpected 0, overlap of a content 0, early 0, unaccounted 0")
        if report["runs"] > 100:
            return
    pytest.fail(f"too few runs: {report}")
