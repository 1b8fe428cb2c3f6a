"""The page on typed payloads is one program: its blocks run as they stand, and print what it shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs/guide/payloads.md").read_text("utf-8")
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
PROGRAM = "\n".join(text for kind, text in BLOCKS if kind == "python")
SHOWN = "".join(text for kind, text in BLOCKS if not kind)


def test_the_blocks_print_what_the_page_shows() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM], capture_output=True, encoding="utf-8", timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == SHOWN
    assert SHOWN.count("\n") == 7
