"""Loads the Lua scripts, puts their includes in place, and knows their SHA-1.

An include may include others; each stands once in a script, before the first that needs it. An indented include is
local to its block, which alone pays for the definition: what is rare stands in the block that needs it. The includes of
a block stand one below the other, and share what they include.

The files stand in folders of `lua/` at the top of the repository, and in the wheel as `rmq/lua/`.
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
from typing import Any

from rmq._io.wire import packed
from rmq._transport.call import PUBLISH, SHARDED_PUBLISH, Call
from rmq._transport.cluster_map import absent_key
from rmq._transport.contract import Names, contract_of

_INCLUDES = re.compile(r"^( *)-- @include \w+\n(?:\1-- @include \w+\n)*", re.MULTILINE)
_INCLUDE = re.compile(r"@include (\w+)")
_READS_ONLY = re.compile(r"^-- Notes: reads only", re.MULTILINE)
_SHARED = "shared"
"""Folder of the scripts on keys that are no slot's. None of these touches a key that it may have emptied."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script as Redis gets it.

    Attributes:
        name: Its file's name without `.lua`.
        text: Its text, includes in place.
        sha: SHA-1 of the text in hexadecimal digits, as EVALSHA takes it.
        keys: What its header calls its keys.
        args: What its header calls its arguments.
        may_break_off: Whether a hash slot that moves could end it half-way: it writes to several keys of a slot of a
            topic, and each of them may exist. In a cluster it gets one more that never does: see `absent_key`.
    """

    name: str
    text: str
    sha: str
    keys: Names
    args: Names
    may_break_off: bool


class ScriptLibrary:
    """All scripts, read once.

    Args:
        overrides: Include name -> text that stands in for the file's; tests put a clock of their own here.

    Raises:
        FileNotFoundError: A script names an include that does not exist, or the package lacks its scripts.
        ValueError: The header of a script does not say in order what it takes.
    """

    def __init__(self, overrides: Mapping[str, str] | None = None) -> None:
        root = _lua_folder()
        self._includes = _texts(root / "includes") | dict(overrides or {})
        folders = [folder for folder in root.iterdir() if folder.is_dir() and folder.name != "includes"]
        texts = {folder.name: _texts(folder) for folder in folders}
        self._shared = texts.get(_SHARED, {}).keys()
        self._scripts = {name: self._build(name, text) for folder in texts.values() for name, text in folder.items()}
        if not self._scripts:
            raise FileNotFoundError(f"no Lua scripts in {root}")

    def names(self) -> list[str]:
        """Return the names of all scripts, sorted."""
        return sorted(self._scripts)

    def text(self, name: str) -> str:
        """Return a script's text with its includes in place."""
        return self._scripts[name].text

    def __getitem__(self, name: str) -> Script:
        return self._scripts[name]

    def request(self, call: Call[Any], *, sharded: bool, cluster: bool) -> bytes:
        """Return a call in the protocol's form.

        Args:
            call: The call.
            sharded: Whether wake hints go by sharded pub/sub.
            cluster: Whether the keys of a slot may move to another server.
        """
        if not call.script:
            return packed(tuple(call.args))
        script = self._scripts[call.script]
        keys = (*call.keys, absent_key(call.keys[0])) if cluster and script.may_break_off else call.keys
        parts = ["EVALSHA", script.sha, len(keys), *keys, *call.args]
        if sharded and "publish" in script.args.required:
            at = 3 + len(keys) + script.args.required.index("publish")
            if parts[at] == PUBLISH:
                parts[at] = SHARDED_PUBLISH
        return packed(tuple(parts))

    def _build(self, name: str, text: str) -> Script:
        try:
            full = with_includes(text, self._includes)
        except KeyError as error:
            raise FileNotFoundError(f"script {name} includes {error.args[0]}, which is not in lua/includes") from None
        keys, args = contract_of(name, text)
        several = len(keys.required) + len(keys.optional) > 1 and "wake" not in keys.required
        may_break_off = several and name not in self._shared and not _READS_ONLY.search(text)
        sha = sha1(full.encode(), usedforsecurity=False).hexdigest()
        return Script(name, full, sha, keys, args, may_break_off)


def with_includes(text: str, includes: Mapping[str, str]) -> str:
    """Return a script's text with its includes in place.

    Raises:
        KeyError: An include that does not exist, by its name.
    """

    def placed_in(text: str, placed: set[str]) -> str:
        def include(match: re.Match[str]) -> str:
            known = {*placed} if match[1] else placed  # what a block defines ends with it
            parts: list[str] = []
            for name in _INCLUDE.findall(match[0]):
                if name not in known:
                    known.add(name)
                    parts.append(placed_in(includes[name], known))
            return "".join(parts)

        return _INCLUDES.sub(include, text)

    return placed_in(text, set())


@cache
def default_scripts() -> ScriptLibrary:
    """Return the library that all clients share."""
    return ScriptLibrary()


def _lua_folder() -> Traversable:
    packaged = files("rmq") / "lua"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[2] / "lua"


def _texts(folder: Traversable) -> dict[str, str]:
    """Return what a folder has, below it too: name -> text. Names are unique in the whole tree."""
    texts: dict[str, str] = {}
    for item in folder.iterdir():
        if item.is_dir():
            texts |= _texts(item)
        elif item.name.endswith(".lua"):
            texts[item.name[:-4]] = item.read_text("utf-8")
    return texts
