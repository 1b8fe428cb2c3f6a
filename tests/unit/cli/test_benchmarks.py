"""What `rmq bench` lists can be run."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3] / "benchmarks"
PAGES = sorted(path for path in ROOT.glob("*.py") if path.stem != "__init__")


def names_of(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    return [node.name] if isinstance(node, ast.FunctionDef) else []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_benchmark_has_a_main(path: Path) -> None:
    assert "main" in [name for node in ast.parse(path.read_text("utf-8")).body for name in names_of(node)]
