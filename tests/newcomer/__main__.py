"""Does all tasks in a fresh clone, each with a Python environment of its own, and writes docs/records/newcomer.md.

    python -m tests.newcomer [PYTHON ...]

With names of Pythons it writes nothing. It checks that the release is frozen (tests/support/releases.py), builds the
source distribution of the clone, and a wheel from that, and each Python does all tasks with the wheel, then imports
every module with every extra, and runs the demo.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rmq import __version__
from tests.newcomer.pages import Page
from tests.newcomer.tasks import TASKS, Task
from tests.newcomer.workshop import Workshop
from tests.support import releases

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "docs/records/newcomer.md"
LIMIT_S = 300.0

EVERY_MODULE = """
import importlib, pkgutil, rmq
for module in pkgutil.walk_packages(rmq.__path__, "rmq."):
    if not module.name.endswith("__main__") and not module.name.startswith(("rmq.spark", "rmq.demo.price_stream")):
        importlib.import_module(module.name)
"""

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


def timed(task: Task, clone: Path, folder: Path, python: str = sys.executable, installed: Path | None = None) -> Done:
    """Do a task as a newcomer, with the clone or what else is `installed`."""
    folder.mkdir(parents=True)
    pip_s = 0.0
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True)

    def install(names: list[str]) -> None:
        nonlocal pip_s
        began_s = time.monotonic()
        wanted = [re.sub(r"^(?:rmq|\.)", str(installed or clone), name) for name in names]
        subprocess.run([folder / "venv/bin/pip", "install", "--quiet", *wanted], check=True)
        pip_s += time.monotonic() - began_s

    (folder / "work").mkdir()
    shop = Workshop(folder / "work", folder / "venv/bin", install)
    began_s = time.monotonic()
    task.do(shop, clone)
    done = Done(task, tuple(shop.commands), pip_s, time.monotonic() - began_s - pip_s)
    print(f"{task.name}: {done.pip_s:.1f} s of pip, {done.rest_s:.1f} s of the rest", flush=True)
    if not installed and done.pip_s + done.rest_s > LIMIT_S:
        sys.exit(f"{task.name} took {done.pip_s + done.rest_s:.0f} s; {LIMIT_S:.0f} s is the limit")
    return done


def every_extra(shop: Workshop, pages: Callable[[str], Page]) -> None:
    """Install all that is no tool of developers and no Spark, import every module, and run the demo."""
    extras = tomllib.loads((pages("").root / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    left_out = re.compile(r"bench|dev|docs|spark.*|test-.*")
    shop.type(f"pip install 'rmq[{','.join(each for each in extras if not left_out.fullmatch(each))}]'")
    shop.type("python -m pip check")
    shop.save("every_module.py", EVERY_MODULE)
    shop.type("python every_module.py")
    assert shop.type("rmq --version") == f"rmq {__version__}\n"
    assert "Nothing was lost, and nothing is left." in shop.type("rmq demo")


def check_release(clone: Path, folder: Path, pythons: list[str]) -> None:
    """Build a wheel as a release has it, and do all tasks with it on each Python."""
    if releases.FROZEN.read_bytes() != releases.packed():
        sys.exit(f"{releases.FROZEN.relative_to(ROOT)} has another state; `python -m tests.support.releases` writes it")
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, clone], check=True, stdout=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    tasks = (*TASKS, Task("every extra", "../pyproject", every_extra))
    for number, python in enumerate(pythons):
        subprocess.run([python, "-VV"], check=True)
        for task in tasks:
            timed(task, clone, folder / f"{number}-{task.name}", python, wheel)


def main(pythons: list[str]) -> None:
    """Do all tasks, one after the other."""
    with tempfile.TemporaryDirectory(prefix="rmq-newcomer-") as name:
        clone = Path(name, "rmq")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        if pythons:
            return check_release(clone, Path(name, "release"), pythons)
        rows = [timed(task, clone, Path(name, f"task-{number}")).row for number, task in enumerate(TASKS)]
    python = ".".join(map(str, sys.version_info[:2]))
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    REPORT.write_text(TEXT.format(cores=os.cpu_count(), python=python, day=day, rows="\n".join(rows)), "utf-8")
    print(f"written: {REPORT.relative_to(ROOT)}")


if __name__ == "__main__":
    main(sys.argv[1:])
