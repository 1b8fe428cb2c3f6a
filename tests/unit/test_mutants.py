"""Every planted bug still fits the scripts: one that does not would be a bug that nobody looks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant
from tests.mutants.mutants import MUTANTS

LUA = Path(__file__).resolve().parents[2] / "lua"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_fits(mutant: Mutant) -> None:
    for name, old, new in mutant.edits:
        (path,) = LUA.rglob(f"{name}.lua")
        assert old in path.read_text("utf-8")
        assert old != new
