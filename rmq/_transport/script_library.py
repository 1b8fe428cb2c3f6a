"""Loads the Lua scripts: links them, computes their SHA-1, and reads keys and arguments from their headers.

The files are in folders of `lua/` at the top of the repository, and in the wheel in `rmq/lua/`.

A library in `lua/libraries` is a file of top-level `local` definitions. `-- @include NAME` stands where a script, or a
library, uses one. A script gets only the definitions that it reaches, each before the first that uses it: Redis carries
out a script's definitions at each call, at about 0.1 us each. An indented include is local to its block, so that only
this block pays for what it alone reaches: code that is rarely needed is included there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from hashlib import sha1
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

from rmq._io.wire import packed
from rmq._servers.cluster_map import absent_key
from rmq._servers.server_check import PUBLISH, SHARDED_PUBLISH
from rmq._transport.call import Call

_READS_ONLY = re.compile(r"^-- Notes: reads only", re.MULTILINE)
_SHARED = "shared"
"""Folder of the scripts whose keys do not belong to a slot. None of these uses a key again that it may have emptied."""

_ENTRY = re.compile(r"^--\s+(KEYS|ARGV)\[\d+(\.\.)?\]\s+(\w+)(\?)?(?:\s|$)")


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


def contract_of(text: str) -> tuple[Names, Names]:
    """Return the names of a script's keys and of its arguments, as its header has them, which is its first comment.

    A test checks the headers: entries are numbered from 1, names are distinct identifiers, what is optional comes after
    what is required, and a tail last.
    """
    entries: dict[str, list[tuple[str, str, str]]] = {"KEYS": [], "ARGV": []}
    for line in text.splitlines():
        if not line.startswith("--") or line.startswith("-- @include"):
            break
        if match := _ENTRY.match(line):
            table, tail, name, optional = match.groups(default="")
            entries[table].append((name, optional, tail))
    return _names(entries["KEYS"]), _names(entries["ARGV"])


def _names(entries: Iterable[tuple[str, str, str]]) -> Names:
    required = tuple(name for name, optional, tail in entries if not (optional or tail))
    optional = tuple(name for name, optional, _ in entries if optional)
    return Names(required, optional, next((name for name, _, tail in entries if tail), None))


@dataclass(frozen=True, slots=True)
class Script:
    """A script as Redis gets it.

    Attributes:
        name: Its file's name without `.lua`.
        text: Its text with the definitions of libraries that it reaches.
        sha: SHA-1 of the text in hexadecimal digits, for EVALSHA.
        keys: Names of its keys, from its header.
        args: Names of its arguments, from its header.
        may_break_off: Whether the script could fail half-way in a hash slot that is migrating: it writes to several
            keys, all of which may exist. In a cluster it gets another key that never exists: see `absent_key`.
    """

    name: str
    text: str
    sha: str
    keys: Names
    args: Names
    may_break_off: bool


class ScriptLibrary:
    """All scripts, read once. Each is linked when it is first needed.

    Args:
        overrides: A text of definitions that replace those of libraries; tests use it for a fake clock.

    Raises:
        FileNotFoundError: The package lacks its scripts; or, when it is linked, a script includes a library that does
            not exist.
        ValueError: Two libraries define the same name.
    """

    def __init__(self, overrides: str = "") -> None:
        root = _lua_folder()
        self._linker = Linker(_texts(root / "libraries"), overrides)
        folders = [folder for folder in root.iterdir() if folder.is_dir() and folder.name != "libraries"]
        texts = {folder.name: _texts(folder) for folder in folders}
        self._shared = texts.get(_SHARED, {}).keys()
        self._texts = {name: text for folder in texts.values() for name, text in folder.items()}
        self._scripts: dict[str, Script] = {}
        if not self._texts:
            raise FileNotFoundError(f"no Lua scripts in {root}")

    def names(self) -> list[str]:
        """Return the names of all scripts, sorted."""
        return sorted(self._texts)

    def text(self, name: str) -> str:
        """Return a script's text as Redis gets it."""
        return self[name].text

    def __getitem__(self, name: str) -> Script:
        script = self._scripts.get(name)
        if script is None:
            script = self._scripts[name] = self._build(name, self._texts[name])
        return script

    def request(self, call: Call[Any], *, sharded: bool, cluster: bool) -> bytes:
        """Return a call as a packed command.

        Args:
            call: The call.
            sharded: Whether wakeups use sharded pub/sub.
            cluster: Whether the keys of a slot may move to another server.
        """
        if not call.script:
            return packed(tuple(call.args))
        script = self._scripts.get(call.script) or self[call.script]
        keys = (*call.keys, absent_key(call.keys[0])) if cluster and script.may_break_off else call.keys
        parts = ["EVALSHA", script.sha, len(keys), *keys, *call.args]
        if sharded and "publish" in script.args.required:
            at = 3 + len(keys) + script.args.required.index("publish")
            if parts[at] == PUBLISH:
                parts[at] = SHARDED_PUBLISH
        return packed(tuple(parts))

    def _build(self, name: str, text: str) -> Script:
        try:
            full = self._linker.linked(text)
        except KeyError as error:
            raise FileNotFoundError(f"script {name} includes {error.args[0]}, which is not in lua/libraries") from None
        keys, args = contract_of(text)
        several = len(keys.required) + len(keys.optional) > 1 and "wake" not in keys.required
        may_break_off = several and name not in self._shared and not _READS_ONLY.search(text)
        sha = sha1(full.encode(), usedforsecurity=False).hexdigest()
        return Script(name, full, sha, keys, args, may_break_off)


@cache
def default_scripts() -> ScriptLibrary:
    """Return the library that all clients share."""
    return ScriptLibrary()


def _lua_folder() -> Traversable:
    packaged = files("rmq") / "lua"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[2] / "lua"


def _texts(folder: Traversable) -> dict[str, str]:
    """Return the Lua texts of a folder and its subfolders, by name. Names are unique in the whole tree."""
    texts: dict[str, str] = {}
    for item in folder.iterdir():
        if item.is_dir():
            texts |= _texts(item)
        elif item.name.endswith(".lua"):
            texts[item.name[:-4]] = item.read_text("utf-8")
    return texts


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
                    other = self._definitions[name := twice.pop()]
                    raise ValueError(f"libraries {other.library} and {library} both define {name}")
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
            raise ValueError(f"library {library}: {lines[0].strip()} must define a function or assign a value")
        yield _Definition(library, tuple((match[1] or match[2]).split(", ")), block_of("".join(lines)))
