"""What a planted bug is."""

from __future__ import annotations

from dataclasses import dataclass

Edit = tuple[str, str, str]
"""Name of a file in `lua/` without `.lua`, text to replace (all of its occurrences), text to put there."""


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
