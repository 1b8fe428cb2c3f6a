"""Links a Lua script with the definitions of libraries that it reaches.

A library in `lua/libraries` is a file of top-level `local` definitions. `-- @include NAME` stands where a script, or a
library, uses one. A script gets only the definitions that it reaches, each before the first that uses it: Redis carries
out a script's definitions at each call, at about 0.1 us each. An indented include is local to its block, so that only
this block pays for what it alone reaches: code that is rarely needed is included there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

_INCLUDE = re.compile(r"^( *)-- @include (\w+(?:, \w+)*)$", re.MULTILINE)
_DEFINITION = re.compile(r"^local (?:function (\w+)|(\w+(?:, \w+)*) =)")
_STRING_OR_COMMENT = re.compile(r"'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"|--[^\n]*")
_USE = re.compile(r"(?<![.:\w])[A-Za-z_]\w*\b(?!\s*=[^=])")


@dataclass
class _Block:
    """A text, or the lines from an indented include on to the end of the include's block.

    Attributes:
        libraries: Names of the libraries that the block includes.
        parts: Its lines, and the blocks within.
        at: Index in `parts` where the definitions go.
    """

    libraries: set[str] = field(default_factory=set[str])
    parts: list[str | _Block] = field(default_factory=list["str | _Block"])
    at: int = 0

    @classmethod
    def read(cls, lines: list[str], indent: int = 0) -> _Block:
        """Take the lines of a block from the end of `lines`, whose last line is the next one."""
        block = cls()
        while lines and (lines[-1].isspace() or lines[-1].startswith(" " * indent)):
            include = _INCLUDE.match(lines[-1])
            if include and len(include[1]) > indent:
                block.parts.append(cls.read(lines, len(include[1])))
            elif include:
                block.at = block.at if block.libraries else len(block.parts)
                block.libraries.update(include[2].split(", "))
                lines.pop()
            else:
                block.parts.append(lines.pop())
        return block

    @cached_property
    def uses(self) -> list[str]:
        """The names that the block's own lines use, each once."""
        code = "".join(part for part in self.parts if isinstance(part, str))
        return list(dict.fromkeys(_USE.findall(_STRING_OR_COMMENT.sub("''", code))))


def block_of(text: str) -> _Block:
    """Return a text as a block."""
    return _Block.read(text.splitlines(keepends=True)[::-1])


class _Definition(NamedTuple):
    """A top-level definition of a library: a function, or constants."""

    library: str
    names: tuple[str, ...]
    block: _Block


class Linker:
    """Links scripts with libraries.

    Args:
        libraries: Texts of the libraries, by name. No two of them define the same name.
        overrides: A text of definitions, which replace those of the same name.

    Raises:
        ValueError: Two libraries define the same name.
    """

    def __init__(self, libraries: Mapping[str, str], overrides: str = "") -> None:
        self._definitions: dict[str, _Definition] = {}
        self._includes = {name: {name, *_included(text)} for name, text in libraries.items()}
        instead = {each.names: each for each in _definitions("", overrides)}
        for library, text in libraries.items():
            for each in _definitions(library, text):
                each = instead[each.names]._replace(library=library) if each.names in instead else each
                if twice := self._definitions.keys() & each.names:
                    other = self._definitions[twice.pop()]
                    raise ValueError(f"{', '.join(each.names)} is defined in {other.library} and in {library}")
                self._definitions |= dict.fromkeys(each.names, each)

    def linked(self, text: str) -> str:
        """Return a script's text with the definitions that it reaches.

        Raises:
            KeyError: A library does not exist; the argument is its name.
        """
        return "".join(self._placed(block_of(text), set(), set()))

    def reach(self, libraries: Iterable[str]) -> set[str]:
        """Return libraries, and those that they include, directly or indirectly."""
        found, open_ = set[str](), list(libraries)
        while open_:
            if (name := open_.pop()) not in found:
                found.add(name)
                open_ += self._includes[name]
        return found

    def _placed(self, block: _Block, visible: set[str], reach: set[str]) -> list[str]:
        """Return a block's lines with the definitions that it needs, except those that are already visible."""
        reach = reach | self.reach(block.libraries)
        definitions: list[str] = []
        for name in self._needs(block, reach):
            self._define(name, visible, definitions)
        lines = self._lines(block, visible, reach)
        return [*lines[: block.at], *definitions, *lines[block.at :]]

    def _lines(self, block: _Block, visible: set[str], reach: set[str]) -> list[str]:
        return [
            part if isinstance(part, str) else "".join(self._placed(part, {*visible}, reach)) for part in block.parts
        ]

    def _define(self, name: str, visible: set[str], to: list[str]) -> None:
        """Append a definition, and before it those that it needs, to `to`, unless they are visible."""
        if name in visible:
            return
        library, names, block = self._definitions[name]
        reach = self.reach([library])
        visible.update(names)
        for other in self._needs(block, reach):
            self._define(other, visible, to)
        to += self._lines(block, visible, reach)

    def _needs(self, block: _Block, reach: set[str]) -> Iterator[str]:
        """Yield the names that a block uses, except those that inner blocks define themselves."""
        for name in block.uses:
            if (found := self._definitions.get(name)) and found.library in reach:
                yield name
        for part in block.parts:
            if isinstance(part, _Block):
                for name in self._needs(part, reach | self.reach(part.libraries)):
                    library = self._definitions[name].library
                    if library in reach and library not in part.libraries:
                        yield name


def _included(text: str) -> Iterator[str]:
    for match in _INCLUDE.finditer(text):
        yield from match[2].split(", ")


def _definitions(library: str, text: str) -> Iterator[_Definition]:
    """Yield the definitions of a library, without the comments above them."""
    found: list[list[str]] = []
    for line in text.splitlines(keepends=True):
        if line.startswith("local "):
            found.append([line])
        elif found and not line.startswith("--") and not line.isspace():
            found[-1].append(line)
    for lines in found:
        match = _DEFINITION.match(lines[0])
        if match is None:
            raise ValueError(f"library {library}: {lines[0].strip()} defines nothing")
        yield _Definition(library, tuple((match[1] or match[2]).split(", ")), block_of("".join(lines)))
