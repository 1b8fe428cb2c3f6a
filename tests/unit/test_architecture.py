"""The map of the code shows what is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_every_package_stands_once_in_the_map() -> None:
    text = (ROOT / "docs" / "internals" / "architecture.md").read_text("utf-8")
    named = re.findall(r"^\| `([a-z_]+)` \|", text, re.MULTILINE)
    found = {path.stem for path in (ROOT / "rmq").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert sorted(named) == sorted(found - {"__init__"})


def test_only_public_modules_stand_at_the_top_of_the_package() -> None:
    assert {path.stem for path in (ROOT / "rmq").glob("*.py")} == {
        "__init__", "client", "delayed", "errors", "logs",
    }  # fmt: skip
