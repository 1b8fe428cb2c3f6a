from __future__ import annotations

from hashlib import sha1
from pathlib import Path

import pytest

from rmq._transport.script_library import Linker, ScriptLibrary, default_scripts


def test_scripts_are_linked() -> None:
    library = ScriptLibrary()
    assert library.names() == sorted(path.stem for path in Path("lua").rglob("*.lua") if "libraries" not in path.parts)
    for name in library.names():
        script = library[name]
        assert "@include" not in script.text
        assert library.text(name) == script.text
        assert script.sha == sha1(script.text.encode(), usedforsecurity=False).hexdigest()
        assert not script.text.startswith("#!")  # pitfall 10
    assert "local function read_clock" in library.text("claim")


def test_an_override_stands_in_for_a_definition() -> None:
    library = ScriptLibrary("local function read_clock() return 5, 0 end")
    assert "return 5, 0" in library.text("claim")
    assert "'TIME'" not in library.text("claim")
    assert library["list_dead"] == default_scripts()["list_dead"]


def test_the_shared_library_is_read_once() -> None:
    assert default_scripts() is default_scripts()


def test_an_include_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq._transport.script_library._lua_folder", lambda: tmp_path)
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / "a.lua").write_text("")
    (tmp_path / "dead").mkdir()
    (tmp_path / "dead" / "x.lua").write_text("-- @include nothing\n")
    with pytest.raises(FileNotFoundError, match=r"script x includes nothing, which is not in lua/libraries"):
        ScriptLibrary()["x"]


def test_a_package_without_its_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq._transport.script_library._lua_folder", lambda: tmp_path)
    (tmp_path / "libraries").mkdir()
    with pytest.raises(FileNotFoundError, match="no Lua scripts in"):
        ScriptLibrary()


A = "-- A.\nlocal most = 5\n\n-- What a does.\nlocal function a() return most end\n\nlocal function unused() end\n"
B = "-- @include a\nlocal function b() a() end\nlocal function c() return b, x.unused, { unused = 1 } end\n"
MOST, AN_A, A_B = "local most = 5\n", "local function a() return most end\n", "local function b() a() end\n"


def linked(text: str) -> str:
    return Linker({"a": A, "b": B}).linked(text)


def test_a_script_gets_what_it_reaches_before_what_needs_it() -> None:
    assert linked("-- X.\n-- @include b, a\nb()\n") == f"-- X.\n{MOST}{AN_A}{A_B}b()\n"
    assert linked("-- X.\n-- @include b\nlocal b = 'b()' -- b()\n") == "-- X.\nlocal b = 'b()' -- b()\n"


def test_an_indented_include_is_local_to_its_block() -> None:
    block = "if rare then\n  -- @include b\n  b()\nend\n"
    assert linked(block) == f"if rare then\n{MOST}{AN_A}{A_B}  b()\nend\n"
    assert linked("-- @include a\n" + block + "a()\n") == f"{MOST}{AN_A}if rare then\n{A_B}  b()\nend\na()\n"


def test_what_a_block_and_those_around_it_need_stands_once() -> None:
    block = "if rare then\n  -- @include b\n  b()\nend\n"
    assert linked("-- @include b\n" + block + "b()\n") == f"{MOST}{AN_A}{A_B}if rare then\n  b()\nend\nb()\n"
    assert (
        linked("-- @include b\n" + block.replace("  -- @include b\n", ""))
        == f"{MOST}{AN_A}{A_B}if rare then\n  b()\nend\n"
    )


def test_a_definition_has_blocks_of_its_own() -> None:
    text = "local function d()\n  if rare then\n    -- @include b\n    b()\n  end\nend\n"
    inside = text.replace("    -- @include b\n", MOST + AN_A + A_B)
    assert Linker({"a": A, "b": B, "d": text}).linked("-- @include d\nd()\n") == inside + "d()\n"


def test_two_libraries_that_define_the_same_name() -> None:
    with pytest.raises(ValueError, match="libraries a and e both define a"):
        Linker({"a": A, "e": "local function a() end\n"})


def test_a_line_that_defines_nothing() -> None:
    with pytest.raises(ValueError, match="library a: local function must define a function or assign a value"):
        Linker({"a": "local function\n"})
