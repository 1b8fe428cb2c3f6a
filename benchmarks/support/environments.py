"""Environments for other people's packages, each apart from ours and from each other, in a folder git does not keep.

One environment for all would hold some packages back. What goes into an environment is its recipe: where that has
changed, the environment is made anew.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.support.harness import ROOT

ENVIRONMENTS = ROOT / ".venv-peers"
INSTALL_LIMIT_S = 600


class NotInstalledError(Exception):
    """The packages are not there; the text says why."""


def set_up(name: str, recipe: Iterable[str], make: Callable[[Path], None]) -> Path:
    """Return an environment's folder; make it first unless it is there with the same recipe.

    Raises:
        NotInstalledError: It does not install here.
    """
    folder = ENVIRONMENTS / name
    mark = folder / ".installed"
    wanted = hashlib.sha256("\0".join(recipe).encode()).hexdigest()
    if mark.exists() and mark.read_text("utf-8") == wanted:
        return folder
    ENVIRONMENTS.mkdir(exist_ok=True)
    (ENVIRONMENTS / ".gitignore").write_text("*\n", "utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    make(folder)
    mark.write_text(wanted, "utf-8")
    return folder


def python_environment(name: str, packages: Sequence[str], constraints: Path) -> Path:
    """Return the folder of a virtual environment with these packages, in the versions of a file of constraints."""

    def make(folder: Path) -> None:
        run([sys.executable, "-m", "venv", str(folder)], ROOT)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, "--constraint", str(constraints), *packages], ROOT)

    return set_up(name, [*packages, constraints.read_text("utf-8")], make)


def node_environment(name: str, package: Path) -> Path:
    """Return the folder with a package.json and its `node_modules`."""

    def make(folder: Path) -> None:
        if not (shutil.which("node") and shutil.which("npm")):
            raise NotInstalledError("node and npm are not installed")
        shutil.copy(package, folder / "package.json")
        run(["npm", "install", "--omit=optional", "--no-package-lock", "--no-audit", "--no-fund"], folder)

    return set_up(name, [package.read_text("utf-8")], make)


def run(command: Sequence[str], folder: Path) -> None:
    """Run a step of an installation.

    Raises:
        NotInstalledError: It failed; its last line says why.
    """
    try:
        ended = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalledError(str(error)) from None
    if ended.returncode:
        raise NotInstalledError(last_line(ended.stderr))


def last_line(text: str) -> str:
    """Return the last line that says something, without folders of this machine."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    return lines[-1].replace(str(ROOT), ".")[:200]


def end_group(process: subprocess.Popen[str]) -> None:
    """End a process that leads a group, and all of its group: politely first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.communicate(timeout=3)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
