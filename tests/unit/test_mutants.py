"""Every planted bug still fits the scripts: one that does not would be a bug that nobody looks for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant, place_of
from tests.mutants.mutants import MUTANTS
from tests.mutants.run import CAUGHT_BY

ROOT = Path(__file__).resolve().parents[2]
LUA = ROOT / "lua"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_fits(mutant: Mutant) -> None:
    for name, old, new in mutant.edits:
        assert old in place_of(name, LUA)[1]
        assert old != new


def test_what_is_kept_of_earlier_runs_names_planted_bugs_and_tests_that_are_there() -> None:
    kept: dict[str, str] = json.loads(CAUGHT_BY.read_text("utf-8"))
    assert kept.keys() <= {mutant.name for mutant in MUTANTS}
    for test in kept.values():
        path, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text("utf-8"), test
