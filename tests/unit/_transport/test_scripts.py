from __future__ import annotations

from hashlib import sha1
from pathlib import Path

import pytest

from rmq._transport.script_library import ScriptLibrary, default_scripts, with_includes


def test_includes_are_put_in_place() -> None:
    library = ScriptLibrary()
    assert library.names() == sorted(path.stem for path in Path("lua").rglob("*.lua") if "includes" not in path.parts)
    for name in library.names():
        script = library[name]
        assert "@include" not in script.text
        assert library.text(name) == script.text
        assert script.sha == sha1(script.text.encode(), usedforsecurity=False).hexdigest()
        assert not script.text.startswith("#!")  # pitfall 10
    assert "local function read_clock" in library.text("claim")


def test_an_override_stands_in_for_an_include() -> None:
    library = ScriptLibrary({"read_clock": "local function read_clock() return 5, 0 end"})
    assert "return 5, 0" in library.text("claim")
    assert "'TIME'" not in library.text("claim")
    assert library["ack"] == default_scripts()["ack"]


def test_the_shared_library_is_read_once() -> None:
    assert default_scripts() is default_scripts()


def test_an_include_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq._transport.script_library._lua_folder", lambda: tmp_path)
    (tmp_path / "includes").mkdir()
    (tmp_path / "includes" / "a.lua").write_text("")
    (tmp_path / "dead").mkdir()
    (tmp_path / "dead" / "x.lua").write_text("-- @include nothing\n")
    with pytest.raises(FileNotFoundError, match=r"script x includes nothing, which is not in lua/includes"):
        ScriptLibrary()


def test_a_package_without_its_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq._transport.script_library._lua_folder", lambda: tmp_path)
    (tmp_path / "includes").mkdir()
    with pytest.raises(FileNotFoundError, match="no Lua scripts in"):
        ScriptLibrary()


def test_an_include_of_includes_stands_once_and_before_what_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq._transport.script_library._lua_folder", lambda: tmp_path)
    for name, text in {
        "includes/common/a.lua": "local function a() end\n",
        "includes/claim/b.lua": "-- B.\n-- @include a\nlocal function b() a() end\n",
        "dead/x.lua": "-- X.\n-- @include b\n-- @include a\nb()\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert ScriptLibrary().text("x") == "-- X.\n-- B.\nlocal function a() end\nlocal function b() a() end\nb()\n"


def test_an_indented_include_is_local_to_its_block() -> None:
    includes = {"a": "local function a() end\n", "b": "-- @include a\nlocal function b() a() end\n"}
    block = "if rare then\n  -- @include b\n  b()\nend\n"
    inside = "if rare then\nlocal function a() end\nlocal function b() a() end\n  b()\nend\n"
    assert with_includes(block + "-- @include a\na()\n", includes) == inside + "local function a() end\na()\n"
    known = "if rare then\nlocal function b() a() end\n  b()\nend\n"
    assert with_includes("-- @include a\n" + block, includes) == "local function a() end\n" + known


def test_a_block_defines_once_what_several_of_its_includes_need() -> None:
    includes = {"a": "local function a() end\n"}
    includes |= {name: f"-- @include a\nlocal function {name}() a() end\n" for name in "bc"}
    block = "if rare then\n  -- @include b\n  -- @include a\n  -- @include c\n  c()\nend\n"
    placed = "local function a() end\nlocal function b() a() end\nlocal function c() a() end\n"
    assert with_includes(block, includes) == f"if rare then\n{placed}  c()\nend\n"
