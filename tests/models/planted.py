"""The scripts with one of the bugs of `tests/mutants`."""

from __future__ import annotations

from pathlib import Path

from tests.mutants.mutant import place_of
from tests.mutants.mutants import MUTANTS
from tests.support.core import ScriptLibrary
from tests.support.slots import READ_FAKE_CLOCK, scripts_under_test

LUA = Path(__file__).resolve().parents[2] / "lua"


def planted(name: str) -> ScriptLibrary:
    """Return the scripts with a bug in some of their definitions.

    Args:
        name: The name of the bug.
    """
    (mutant,) = (each for each in MUTANTS if each.name == name)
    overrides = dict[str, str]()
    for name, text, instead in mutant.edits:
        before = overrides.get(name) or place_of(name, LUA)[1]
        assert text in before
        overrides[name] = before.replace(text, instead)
    return scripts_under_test(ScriptLibrary, READ_FAKE_CLOCK, *overrides.values())
