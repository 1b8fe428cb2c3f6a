"""Each kind of query and job of `make spark-kills`, killed once at a moment by lot, and judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark_kills.__main__ import GROUPS, kill_group
from tests.spark_kills.judging import Verdict

pytestmark = pytest.mark.spark_long


@pytest.mark.parametrize("group", GROUPS.split(","))
def test_a_kill_loses_nothing_and_repeats_nothing(group: str, tmp_path: Path) -> None:
    judged = kill_group(group.split("+"), 1, 1, tmp_path / "files")
    for name, (verdict, kills) in judged.items():
        assert verdict.rows > 0
        assert len(kills) == 1
        assert verdict == Verdict(rows=verdict.rows, excused=verdict.excused), name
