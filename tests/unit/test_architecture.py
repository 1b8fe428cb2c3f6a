"""The map of the code shows what is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_every_module_stands_once_in_the_map() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rows = re.findall(r"^\|[^|]*\| `([a-z_ ]+)` \|", text, re.MULTILINE)
    named = [name for row in rows for name in row.split()]
    found = {path.stem for path in (ROOT / "rmq").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert sorted(named) == sorted(found - {"__init__", "__main__"})
