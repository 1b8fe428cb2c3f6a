"""Files and lists of parameters stay small enough to be read, and a package that outgrows its ceiling is named."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.code_lines import CEILINGS, ROOM, over

ROOT = Path(__file__).parents[2]
MOST_LINES = 600
MOST_PARAMETERS = 8

_SETTINGS = "public, by keyword: each parameter is a setting of its own with a default"

MANY_PARAMETERS = {
    "rmq._ownership.coordinator.Coordinator.__init__": _SETTINGS,
}
"""Functions that have more parameters -> why: take out one that has shrunk, add none."""


EXAMPLES = re.compile(r"\n\n +Examples:\n(?:.+\n)+? +\"\"\"")
"""Examples at the end of a docstring: the API reference shows them, and they do not count."""


def sources(suffix: str) -> list[Path]:
    folder = ROOT / {".py": "rmq", ".lua": "lua"}[suffix]
    return sorted(folder.rglob(f"*{suffix}"))


def functions(path: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)

    def below(node: ast.AST, name: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{name}.{child.name}", child
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from below(child, f"{name}.{child.name}")
            else:
                yield from below(child, name)

    return below(ast.parse(path.read_text("utf-8")), module)


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    each = function.args
    found = [*each.posonlyargs, *each.args, *each.kwonlyargs]
    return found[1:] if found and found[0].arg in ("self", "cls") else found


def is_command(path: Path, taken: list[ast.arg]) -> bool:
    """Return whether it is a command of `rmq`: its parameters are the options that people type."""
    first = taken[0].annotation
    return "cli" in path.parts and isinstance(first, ast.Name) and first.id == "Session"


def test_no_file_is_too_large() -> None:
    large = {
        path.relative_to(ROOT).as_posix()
        for suffix in (".py", ".lua")
        for path in sources(suffix)
        if len(EXAMPLES.sub("", path.read_text("utf-8")).splitlines()) > MOST_LINES
    }
    assert not large


def test_no_function_has_too_many_parameters() -> None:
    many = {
        name
        for path in sources(".py")
        for name, function in functions(path)
        if len(taken := parameters(function)) > MOST_PARAMETERS and not is_command(path, taken)
    }
    assert many == MANY_PARAMETERS.keys()


def test_a_package_beyond_its_ceiling_is_named() -> None:
    ceiling = CEILINGS["rmq/_model"]
    most = ceiling + ROOM
    assert over({"rmq/_model": most, "lua: scripts": 1}) == []
    assert over({"rmq/_model": most + 1, "rmq/_other": 1}) == [
        f"rmq/_model has {most + 1:,} lines of code; its ceiling is {ceiling:,}",
        "rmq/_other has 1 lines of code; its ceiling is 0",
    ]
