"""What the first lines of docs/guide/spark.md show is true. tests/newcomer/tasks.py does what the README says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def run(code: str, folder: Path, limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run an example in a folder of its own, with an embedded Redis."""
    environment = {name: value for name, value in os.environ.items() if name != "RMQ_URL"}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_example_for_spark_runs_as_it_stands(tmp_path: Path) -> None:
    page = (ROOT / "docs/guide/spark.md").read_text("utf-8")
    code = re.search(r"## In fifteen lines.*?```python\n(.*?)```", page, re.DOTALL)
    assert code is not None
    ended = run(code[1], tmp_path, 350)
    assert ended.stdout == "500 pictures to draw\n", ended.stderr
