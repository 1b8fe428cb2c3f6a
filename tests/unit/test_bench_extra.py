"""`make bench` installs the extra `bench` and no test packages: what benchmarks import has to be in it."""

from __future__ import annotations

import ast
import importlib.metadata as metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from benchmarks import report, suite

ROOT = Path(__file__).parents[2]
OURS = ("benchmarks", "tests")
MODULES = sorted({*(f"benchmarks.{name}" for name in suite.NAMES), *report.MODULES.values()})


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needs(name: str, extras: set[str]) -> list[str]:
    """Return what a package needs; RMQ by `pyproject.toml`, since an installation may be older."""
    if name != "rmq":
        return metadata.requires(name) or []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return [*project["dependencies"], *(text for extra in extras for text in project["optional-dependencies"][extra])]


@cache
def installed() -> frozenset[str]:
    """Return the packages that `pip install '.[bench,cli,embedded]'` brings."""
    found: dict[str, set[str]] = {}

    def add(name: str, extras: set[str]) -> None:
        if normal(name) in found and extras <= found[normal(name)]:
            return
        known = found.setdefault(normal(name), set())
        known |= extras
        for text in needs(name, known):
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *known)):
                try:
                    add(needed.name, set(needed.extras))
                except metadata.PackageNotFoundError:
                    continue  # for another platform

    add("rmq", {"bench", "cli", "embedded"})
    return frozenset(found)


def imports(module: str) -> Iterator[str]:
    """Yield the modules that a module imports when it is imported itself."""
    path = ROOT / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    waiting: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, ast.Import):
                yield from (name.name for name in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                package = ROOT / node.module.replace(".", "/")
                parts = [name.name for name in node.names if (package / f"{name.name}.py").exists()]
                yield from [f"{node.module}.{part}" for part in parts] or [node.module]
            elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_for_types(node):
                waiting.append(node)


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def foreign(module: str) -> set[str]:
    """Return the packages of others that a module needs, and the modules of the repository that it imports."""
    found, seen, waiting = set[str](), set[str](), [module]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for imported in imports(name):
            top = imported.partition(".")[0]
            if top in OURS:
                waiting.append(imported)
            elif top not in sys.stdlib_module_names and top != "rmq":
                found.add(top)
    return found


@pytest.mark.parametrize("module", MODULES)
def test_the_extra_has_what_a_benchmark_imports(module: str) -> None:
    brought = metadata.packages_distributions()
    missing = [top for top in foreign(module) if not installed() & set(map(normal, brought.get(top, ())))]
    assert missing == []


def test_imports_are_followed_into_what_tests_share() -> None:
    assert "redis" in foreign("benchmarks.streams")
    assert "pyspark" in foreign("benchmarks.spark")
    assert "hypothesis" not in installed()
