"""What a planted bug is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

Edit = tuple[str, str, str]
"""Name of a script or of a library's definition, text to replace in it (all occurrences), text to put there."""


@dataclass(frozen=True)
class Mutant:
    """A planted bug.

    Attributes:
        name: What goes wrong, in words.
        edits: How.
    """

    name: str
    edits: tuple[Edit, ...]


def mutant(name: str, *edits: Edit) -> Mutant:
    """Return a planted bug."""
    return Mutant(name, edits)


def place_of(name: str, lua: Path) -> tuple[Path, str]:
    """Return the file of a script or a definition in a folder of Lua files, and the text that is its own."""
    for path in lua.rglob(f"{name}.lua"):
        if path.parent.name != "libraries":
            return path, path.read_text("utf-8")
    definition = re.compile(rf"^local (?:function )?{name}\b.*?(?=^local |^--|\Z)", re.MULTILINE | re.DOTALL)
    for path in (lua / "libraries").glob("*.lua"):
        if found := definition.search(path.read_text("utf-8")):
            return path, found[0]
    raise LookupError(f"no script and no definition is named {name}")
