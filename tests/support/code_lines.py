"""Counts lines of code by package, without blank lines, comments and docstrings, and holds each to a ceiling.

    python -m tests.support.code_lines

It prints the table, and exits with 1 if a package has more lines than its ceiling and the room above it; `make check`
runs it. A ceiling is lowered with the code. Whoever raises one says in the commit what could not go instead.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]

CEILINGS = {
    "rmq/_admin": 2_379,
    "rmq/_broker": 1_019,
    "rmq/_claiming": 2_171,
    "rmq/_io": 538,
    "rmq/_listening": 2_196,
    "rmq/_model": 3_494,
    "rmq/_ownership": 2_435,
    "rmq/_processes": 1_760,
    "rmq/_registry": 645,
    "rmq/_schedules": 501,
    "rmq/_sending": 610,
    "rmq/_servers": 1_191,
    "rmq/_transport": 1_435,
    "rmq/adapters": 340,
    "rmq/aio": 1_597,
    "rmq/cli": 3_337,
    "rmq/dashboard": 1_477,
    "rmq/demo": 1_167,
    "rmq/metrics": 367,
    "rmq/otel": 82,
    "rmq/spark": 6_369,
    "rmq/spi": 126,
    "rmq/testing": 413,
    "rmq/views": 893,
    "rmq/*.py": 780,
    "lua: scripts": 2_030,
    "lua: libraries": 4_050,
    "tests": 79_490,
    "benchmarks": 6_000,
}
"""Lines of code of a package; one that is not listed may have none."""
ROOM = 50
"""Lines by which a package may grow before its ceiling is raised: a verb or a fix needs no word on its size."""

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


def over(lines: Mapping[str, int]) -> list[str]:
    """Return a sentence for each package whose lines exceed its ceiling."""
    return [
        f"{name} has {number:,} lines of code; its ceiling is {CEILINGS.get(name, 0):,}"
        for name, number in lines.items()
        if number > (CEILINGS[name] + ROOM if name in CEILINGS else 0)
    ]


def main() -> int:
    """Print the table; return 1 if a package exceeds its ceiling."""
    rows = [(name, len(files), sum(map(_lines, files))) for name, files in packages().items()]
    python = [row for row in rows if row[0].startswith("rmq/")]
    print(f"{'lines of code':20} {'files':>6} {'lines':>8} {'ceiling':>8}")
    for name, files, lines in rows:
        print(f"{name:20} {files:6,} {lines:8,} {CEILINGS.get(name, 0):8,}")
    print(f"{'rmq/ in all':20} {sum(row[1] for row in python):6,} {sum(row[2] for row in python):8,}")
    sentences = over({name: lines for name, _, lines in rows})
    for sentence in sentences:
        print(sentence, file=sys.stderr)
    return 1 if sentences else 0


if __name__ == "__main__":
    sys.exit(main())
