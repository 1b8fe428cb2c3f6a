"""The first tasks of a newcomer, with nothing but what the pages say: programs, commands and links, as they stand."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.newcomer.pages import Page
from tests.newcomer.tasks import TASKS, Task
from tests.newcomer.workshop import Workshop

ROOT = Path(__file__).parents[2]


def not_installed(names: list[str]) -> None:
    """Take an installation for done if its extras are there: `python -m tests.newcomer` really installs."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for name in names:
        found = re.fullmatch(r"(?:rmq|\.)(?:\[([\w,-]+)\])?", name)
        assert found is None or set((found[1] or "embedded").split(",")) <= extras.keys(), name


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_task_works_as_its_page_says(task: Task, tmp_path: Path) -> None:
    shop = Workshop(tmp_path, Path(sys.executable).parent, not_installed)
    task.do(shop, ROOT)
    assert shop.commands[0].startswith("pip install '")


def test_a_page_is_read_as_its_reader_sees_it(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_text(
        "# A\n\nFirst `pip install 'x'`.\n\n```python\nprint(1)\n```\n\nSo:\n\n```\n$ run it   # now\n\nmore\n```\n"
    )
    page = Page(tmp_path, "a")
    assert page.program("print") == "print(1)\n"
    assert page.commands() == ["pip install 'x'", "run it", "more"]
    assert page.printed("So:") == "$ run it   # now\n\nmore\n"
    with pytest.raises(AssertionError, match="no command 'rum'"):
        page.command("rum")
    with pytest.raises(AssertionError, match=r"no link to b\.py"):
        page.linked("b.py")
    with pytest.raises(AssertionError, match="does not say 'Then:'"):
        page.printed("Then:")


def test_a_command_that_fails_is_told_with_what_it_said(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, Path(sys.executable).parent, not_installed)
    shop.type("export RMQ_URL=embedded:///tmp/shop")
    assert shop.type("echo $RMQ_URL") == f"embedded://{tmp_path}/queue\n"
    with pytest.raises(AssertionError, match="it is broken"):
        shop.type("echo it is broken && exit 3")
    with pytest.raises(AssertionError, match="ended early"), shop.running("true"):
        shop.type("sleep 0.5")


def test_the_table_has_every_task_as_it_is_done_now() -> None:
    """`make newcomer` writes the table."""
    rows = re.findall(
        r"^\| ([^|]+) \| \[([^]]+)\]", (ROOT / "docs/records/newcomer.md").read_text("utf-8"), re.MULTILINE
    )
    assert rows == [(task.name, task.page) for task in TASKS]
