"""Does all tasks in a fresh clone, each with a Python environment of its own, and writes docs/records/newcomer.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.newcomer.tasks import TASKS, Task
from tests.newcomer.workshop import Workshop

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "docs/records/newcomer.md"
LIMIT_S = 300.0

TEXT = """# Tasks of a newcomer

`make newcomer` clones the repository, and does these tasks with nothing but what the pages say: it
copies their programs, types their commands, and compares what is printed. Each task begins with an
empty folder and an empty Python environment. None may take longer than five minutes. In the
checkout, `tests/functional/test_newcomer.py` does the same without the installation.

Where a page says `rmq`, pip gets the clone. `/tmp/shop` is a folder of the task's own, and servers
listen on free ports. The seconds are for orientation: those of pip and those of everything else, on
{cores} cores, Python {python}, {day}. They do not include reading and copying.

| task | page | commands | seconds, pip | seconds, the rest |
|---|---|---|---|---|
{rows}
"""


@dataclass(frozen=True)
class Done:
    """How a task went."""

    task: Task
    commands: tuple[str, ...]
    pip_s: float
    rest_s: float

    @property
    def row(self) -> str:
        typed = "<br>".join(f"`{each}`" for each in self.commands)
        page = f"[{self.task.page}](../{self.task.page}.md)"
        return f"| {self.task.name} | {page} | {typed} | {self.pip_s:.0f} | {self.rest_s:.0f} |"


def timed(task: Task, clone: Path, folder: Path) -> Done:
    """Do a task as a newcomer."""
    folder.mkdir()
    pip_s = 0.0
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)

    def install(names: list[str]) -> None:
        nonlocal pip_s
        began_s = time.monotonic()
        wanted = [re.sub(r"^(?:rmq|\.)", str(clone), name) for name in names]
        subprocess.run([folder / "venv/bin/pip", "install", "--quiet", *wanted], check=True)
        pip_s += time.monotonic() - began_s

    (folder / "work").mkdir()
    shop = Workshop(folder / "work", folder / "venv/bin", install)
    began_s = time.monotonic()
    task.do(shop, clone)
    done = Done(task, tuple(shop.commands), pip_s, time.monotonic() - began_s - pip_s)
    print(f"{task.name}: {done.pip_s:.1f} s of pip, {done.rest_s:.1f} s of the rest", flush=True)
    if done.pip_s + done.rest_s > LIMIT_S:
        sys.exit(f"{task.name} took {done.pip_s + done.rest_s:.0f} s; {LIMIT_S:.0f} s is the limit")
    return done


def main() -> None:
    """Do all tasks, one after the other."""
    with tempfile.TemporaryDirectory(prefix="rmq-newcomer-") as name:
        clone = Path(name, "rmq")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        rows = [timed(task, clone, Path(name, f"task-{number}")).row for number, task in enumerate(TASKS)]
    python = ".".join(map(str, sys.version_info[:2]))
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    REPORT.write_text(TEXT.format(cores=os.cpu_count(), python=python, day=day, rows="\n".join(rows)), "utf-8")
    print(f"written: {REPORT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
