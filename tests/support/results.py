"""Last results of runs that take long: JSON in docs/records, and the page of the same name that shows them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "records"

Results = dict[str, Any]
"""What a JSON file holds: a result for each name."""

Table = Callable[[Results], str]
"""Renders results as Markdown."""

_MARKED = re.compile(r"(<!-- results -->\n).*?(<!-- end -->)", re.DOTALL)


def read(name: str, folder: Path = FOLDER) -> Results:
    """Return the results in NAME.json; none where the file is missing."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def keep(name: str, results: Results, table: Table, folder: Path = FOLDER) -> None:
    """Write NAME.json, and the table of it into NAME.md."""
    (folder / f"{name}.json").write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", "utf-8")
    page = folder / f"{name}.md"
    page.write_text(render(page.read_text("utf-8"), table(results)), "utf-8")


def render(page: str, table: str) -> str:
    """Return a page with a table between its markers.

    Raises:
        ValueError: The page has no markers, or several.
    """
    page, found = _MARKED.subn(lambda match: f"{match[1]}{table}\n{match[2]}", page)
    if found != 1:
        raise ValueError(f"the page has {found} places for results; it must have one")
    return page


def cell(text: str, longest: int = 160) -> str:
    """Return a text as it may stand in a cell of a table."""
    plain = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())
    short = plain if len(plain) <= longest else plain[: longest - 1] + "…"
    return short.replace("|", "\\|").replace("<", "&lt;")


def duration(seconds: float) -> str:
    """Return a duration in words: seconds below two minutes, minutes below two hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"


def provenance() -> Results:
    """Return when and of which commit a result is; `+` where files that matter have changed since that commit."""
    return {"finished": datetime.now(UTC).isoformat(timespec="minutes"), "commit": _commit()}


def _commit() -> str:
    try:
        changed = _git("status", "--porcelain", "rmq", "lua", "tests", "benchmarks")
        return _git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*args: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True, check=True).stdout.strip()
