"""Loads the Lua scripts, puts their includes in place, and knows their SHA-1.

The files stand in `lua/` at the top of the repository and in the wheel as `rmq/lua/`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

_INCLUDE = re.compile(r"^-- @include (\w+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """A script as Redis gets it.

    Attributes:
        name: Its file's name without `.lua`.
        text: Its text, includes in place.
        sha: SHA-1 of the text in hexadecimal digits, as EVALSHA takes it.
    """

    name: str
    text: str
    sha: str


class ScriptLibrary:
    """All scripts, read once.

    Args:
        overrides: Include name -> text that stands in for the file's; tests put a clock of their own here.

    Raises:
        FileNotFoundError: A script names an include that does not exist, or the package lacks its scripts.
    """

    def __init__(self, overrides: Mapping[str, str] | None = None) -> None:
        root = _lua_folder()
        self._includes = _texts(root / "includes") | dict(overrides or {})
        self._scripts = {name: self._build(name, text) for name, text in _texts(root).items()}

    def names(self) -> list[str]:
        """Return the names of all scripts, sorted."""
        return sorted(self._scripts)

    def text(self, name: str) -> str:
        """Return a script's text with its includes in place."""
        return self._scripts[name].text

    def __getitem__(self, name: str) -> Script:
        return self._scripts[name]

    def _build(self, name: str, text: str) -> Script:
        def include(match: re.Match[str]) -> str:
            try:
                return self._includes[match[1]].rstrip()
            except KeyError:
                raise FileNotFoundError(f"lua/{name}.lua includes {match[1]}, which is not in lua/includes") from None

        full = _INCLUDE.sub(include, text)
        return Script(name, full, sha1(full.encode(), usedforsecurity=False).hexdigest())


@cache
def default_scripts() -> ScriptLibrary:
    """Return the library that all clients share."""
    return ScriptLibrary()


def _lua_folder() -> Traversable:
    packaged = files("rmq") / "lua"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parent.parent / "lua"


def _texts(folder: Traversable) -> dict[str, str]:
    found = {item.name[:-4]: item.read_text("utf-8") for item in folder.iterdir() if item.name.endswith(".lua")}
    if not found:
        raise FileNotFoundError(f"no Lua scripts in {folder}")
    return found
