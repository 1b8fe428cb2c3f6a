"""What the README shows is true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def test_the_first_example_runs_as_it_stands(tmp_path: Path) -> None:
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    statements = [line for line in code[1].splitlines() if line.strip() and not line.strip().startswith("#")]
    assert len(statements) <= 15
    environment = {name: value for name, value in os.environ.items() if name != "RMQ_URL"}
    ended = subprocess.run(
        [sys.executable, "-c", code[1]],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stderr == ""
    assert ended.stdout == "draw item:42, attempt 1\n"


@pytest.mark.timeout(400)
def test_the_example_for_spark_runs_as_it_stands(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    code = re.search(r"## On Spark.*?```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    environment = {name: value for name, value in os.environ.items() if name != "RMQ_URL"}
    ended = subprocess.run(
        [sys.executable, "-c", code[1]],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=350,
        check=False,
    )
    assert ended.stdout == "500 pictures to draw\n", ended.stderr


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
