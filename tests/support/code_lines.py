"""Counts lines of code by package: without blank lines, comments and docstrings. `make check` prints the table.

Usage: python -m tests.support.code_lines
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[2]
_LUA_COMMENT = re.compile(r"\s*--")
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def python_lines(text: str) -> int:
    """Return the lines of a Python file that hold code."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        for statement in getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            value = getattr(statement, "value", None)
            if isinstance(statement, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                code.difference_update(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return len(code)


def lua_lines(text: str) -> int:
    """Return the lines of a script that hold code."""
    return sum(1 for line in text.splitlines() if line.strip() and not _LUA_COMMENT.match(line))


def packages() -> dict[str, list[Path]]:
    """Return the files of each package, of the scripts, the tests and the benchmarks."""
    rmq = ROOT / "rmq"
    found = [
        *((f"rmq/{path.name}", sorted(path.rglob("*.py"))) for path in sorted(rmq.iterdir()) if path.is_dir()),
        ("rmq/*.py", sorted(rmq.glob("*.py"))),
        ("lua: scripts", sorted(path for path in (ROOT / "lua").glob("*/*.lua") if path.parent.name != "libraries")),
        ("lua: libraries", sorted((ROOT / "lua" / "libraries").glob("*.lua"))),
        *((name, sorted((ROOT / name).rglob("*.py"))) for name in ("tests", "benchmarks")),
    ]
    return {name: files for name, files in found if files}


def _lines(path: Path) -> int:
    text = path.read_text("utf-8")
    return lua_lines(text) if path.suffix == ".lua" else python_lines(text)


def main() -> None:
    """Print the table."""
    rows = [(name, len(files), sum(map(_lines, files))) for name, files in packages().items()]
    python = [row for row in rows if row[0].startswith("rmq/")]
    rows.insert(len(python), ("rmq/ in all", sum(row[1] for row in python), sum(row[2] for row in python)))
    print(f"{'lines of code':20} {'files':>6} {'lines':>8}")
    for name, files, lines in rows:
        print(f"{name:20} {files:6,} {lines:8,}")


if __name__ == "__main__":
    main()
