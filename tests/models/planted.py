"""The scripts with one of the bugs of `tests/mutants`."""

from __future__ import annotations

from pathlib import Path

from tests.mutants.mutants import MUTANTS
from tests.support.core import ScriptLibrary
from tests.support.slots import READ_FAKE_CLOCK, scripts_under_test

INCLUDES = Path(__file__).resolve().parents[2] / "lua/includes"


def planted(name: str) -> ScriptLibrary:
    """Return the scripts with a bug in some of their includes.

    Args:
        name: The name of the bug.
    """
    (mutant,) = (each for each in MUTANTS if each.name == name)
    overrides = dict[str, str]()
    for file, text, instead in mutant.edits:
        (path,) = INCLUDES.rglob(f"{file}.lua")
        before = overrides.get(file) or path.read_text("utf-8")
        assert text in before
        overrides[file] = before.replace(text, instead)
    return scripts_under_test(ScriptLibrary, READ_FAKE_CLOCK, *overrides.values())
