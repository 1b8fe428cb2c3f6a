"""The programs of the page about recurring messages run as they stand, and print what the page shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    name: ROOT / f"examples/recurring/{name}.py" for name in ("hourly_report", "nightly_job", "one_after_another")
}
PAGE = (ROOT / "docs/guide/recurring.md").read_text("utf-8")
SECTION = re.compile(
    r"```python\n(?P<program>[^`]*)```\n\n```\n(?P<output>[^`]*)```\n\n\[`\w+\.py`\]\([^)]*/(?P<name>\w+)\.py\)"
)
SHOWN = {found["name"]: found for found in SECTION.finditer(PAGE)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_page_shows_a_program_and_what_it_prints(name: str) -> None:
    text = PROGRAMS[name].read_text("utf-8")
    assert text.partition('"""\n\n')[2] == SHOWN[name]["program"]
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, encoding="utf-8", timeout=90)
    assert (done.returncode, done.stdout) == (0, SHOWN[name]["output"]), done.stderr


def test_the_first_program_of_the_page_runs() -> None:
    program = PAGE.partition("```python\n")[2].partition("```")[0]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", timeout=90)
    assert (done.returncode, ":30:00+00:00" in done.stdout) == (0, True), done.stderr
