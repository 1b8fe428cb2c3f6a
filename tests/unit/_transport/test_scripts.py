from __future__ import annotations

from hashlib import sha1
from pathlib import Path

import pytest

from rmq.scripts import ScriptLibrary, default_scripts


def test_includes_are_put_in_place() -> None:
    library = ScriptLibrary()
    assert library.names() == sorted(path.stem for path in Path("lua").glob("*.lua"))
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
    monkeypatch.setattr("rmq.scripts._lua_folder", lambda: tmp_path)
    (tmp_path / "includes").mkdir()
    (tmp_path / "includes" / "a.lua").write_text("")
    (tmp_path / "x.lua").write_text("-- @include nothing\n")
    with pytest.raises(FileNotFoundError, match=r"lua/x\.lua includes nothing, which is not in lua/includes"):
        ScriptLibrary()


def test_a_package_without_its_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq.scripts._lua_folder", lambda: tmp_path)
    (tmp_path / "includes").mkdir()
    with pytest.raises(FileNotFoundError, match="no Lua scripts in"):
        ScriptLibrary()
