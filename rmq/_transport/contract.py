"""Parses the header of a script, which names its keys and arguments. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from keyword import iskeyword

_ENTRY = re.compile(r"^--\s+(KEYS|ARGV)\[(\d+)(\.\.)?\]\s+(\w+)(\?)?(?:\s|$)")
_ANY_ENTRY = re.compile(r"^--\s+(?:KEYS|ARGV)\[")


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a script's keys, or of its arguments, in their order.

    Attributes:
        required: Names that every call passes.
        optional: Names after these that a call may leave out.
        tail: Name of any number of values at the end; `None` if there are none.
    """

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    tail: str | None = None


def contract_of(script: str, text: str) -> tuple[Names, Names]:
    """Return the names of a script's keys and of its arguments.

    Args:
        script: Name of the script, for errors.
        text: Text of the script; the header is its first comment.

    Raises:
        ValueError: A number is missing, a name is repeated or not an identifier, or an entry follows a tail.
    """
    entries: dict[str, list[tuple[int, str, bool, bool]]] = {"KEYS": [], "ARGV": []}
    for line in text.splitlines():
        if not line.startswith("--") or line.startswith("-- @include"):
            break
        match = _ENTRY.match(line)
        if match is not None:
            table, number, tail, name, optional = match.groups()
            entries[table].append((int(number), name, bool(optional), bool(tail)))
        elif _ANY_ENTRY.match(line):
            raise ValueError(f"script {script}: its header has an entry without a name: {line}")
    return _names(script, "KEYS", entries["KEYS"]), _names(script, "ARGV", entries["ARGV"])


def _names(script: str, table: str, entries: list[tuple[int, str, bool, bool]]) -> Names:
    names = [name for _, name, _, _ in entries]
    problem = ""
    if [number for number, *_ in entries] != list(range(1, len(entries) + 1)):
        problem = "are not numbered from 1"
    elif len(set(names)) < len(names) or any(not name.isidentifier() or iskeyword(name) for name in names):
        problem = "must be distinct identifiers"
    elif any(tail for *_, tail in entries[:-1]):
        problem = "have a tail that is not the last entry"
    elif any(before[2] and not after[2] and not after[3] for before, after in pairwise(entries)):
        problem = "have an optional entry before a required one"
    if problem:
        raise ValueError(f"script {script}: the {table} of its header {problem}: {', '.join(names)}")
    tail = names[-1] if entries and entries[-1][3] else None
    plain = entries[: len(entries) - (tail is not None)]
    return Names(
        tuple(name for _, name, optional, _ in plain if not optional),
        tuple(name for _, name, optional, _ in plain if optional),
        tail,
    )
