"""The shape of the code: no circle of files, no file too small to stand alone, tests that know little of the inside.

The lists of what is allowed can only shrink: whoever opens a circle or merges a file takes it out here.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

from tests.support.code_lines import lua_lines, packages, python_lines

ROOT = Path(__file__).parents[2]
SMALL = 80
MOST_PRIVATE = 120
"""Test files that import private modules of rmq; `tests/support/core.py` is there for that, and does not count."""


SMALL_FILES = {
    "rmq.demo.cluster",
    "rmq.testing.awaited",
}
"""Files of fewer than 80 lines with one importer. Commands have one importer, the command line, and do not count."""


def modules() -> dict[str, Path]:
    """Return the modules of rmq by name."""
    found: dict[str, Path] = {}
    for path in sorted((ROOT / "rmq").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules of rmq that a file imports, for type checking too; relative imports are refused by ruff."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(name if name in known else node.module for name in names)
    return found & known.keys()


@cache
def graph() -> dict[str, set[str]]:
    known = modules()
    return {name: imports_of(path, known) - {name} for name, path in known.items()}


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected components with more than one module (Tarjan)."""
    found: list[set[str]] = []
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(imports[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            found.append(set(stack[at:]))
            del stack[at:]

    for name in sorted(imports):
        if name not in index:
            visit(name)
    return [circle for circle in found if len(circle) > 1]


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a", "d"}}) == [{"b", "c"}]
    assert circles({"a": {"b"}, "b": set()}) == []


def test_no_circle_of_files() -> None:
    assert circles(graph()) == []


def test_no_small_file_has_one_importer() -> None:
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for name, others in graph().items():
        for other in others:
            importers[other].add(name)
    small = {
        name
        for name, path in modules().items()
        if path.name != "__init__.py" and not name.startswith("rmq.cli.commands.")
        if len(path.read_text("utf-8").splitlines()) < SMALL and len(importers[name]) == 1
    }
    assert small == SMALL_FILES


def is_private(module: str) -> bool:
    return module.startswith("rmq.") and any(part.startswith("_") for part in module.split("."))


def private_imports(path: Path) -> set[str]:
    """Return the private modules of rmq that a test file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"rmq.{alias.name}" for alias in node.names if node.module == "rmq")
    return {module for module in found if is_private(module)}


def test_few_tests_know_private_modules() -> None:
    files = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path != ROOT / "tests" / "support" / "core.py"]
    knowing = [path.relative_to(ROOT).as_posix() for path in files if private_imports(path)]
    assert len(knowing) <= MOST_PRIVATE, knowing


def test_lines_of_code_leave_out_blanks_comments_and_docstrings() -> None:
    head, body = (
        '"""A head\n\nof two."""\n\nimport os  # why\n\n# a comment\n',
        '    """Say."""\n    return """a\n\nb"""\n',
    )
    text = f"{head}def f() -> str:\n{body}"
    assert python_lines(text) == 5
    assert lua_lines("-- head\n\nlocal a = 1 -- why\n  -- more\nreturn a\n") == 2


def test_every_package_is_counted() -> None:
    there = {path.name for path in (ROOT / "rmq").iterdir() if (path / "__init__.py").exists()}
    assert there | {"*.py", "tests", "benchmarks"} < {name.removeprefix("rmq/") for name in packages()}
