"""Environments for other people's packages, each apart from ours and from each other, in a folder git does not keep.

One environment for all would hold some packages back. What goes into an environment is its recipe: where that has
changed, the environment is made anew.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.support.harness import ROOT

ENVIRONMENTS = ROOT / ".venv-peers"
INSTALL_LIMIT_S = 600
GO_FOLDER = "/usr/local/go/bin"
"""Where Go's own installer puts it, which is not on every PATH."""


class NotInstalledError(Exception):
    """The packages are not there; the text says why."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What a program of another package runs with: a virtual environment, node_modules, a built binary, or jars.

    Attributes:
        name: Its folder.
        program: The program: Python (.py), Node (.mjs), Go (.go) or Java (.java).
        packages: What is installed, the shown ones first; with none, a program of ours runs in our own environment.
        constraints: The versions, for Python. The others have them in package.json, go.mod or pom.xml by the program.
    """

    name: str
    program: Path
    packages: tuple[str, ...]
    constraints: Path

    @property
    def folder(self) -> Path:
        """The folder that git does not keep."""
        return ENVIRONMENTS / self.name

    def install(self) -> None:
        """Make it, unless it is there with the same recipe.

        Raises:
            NotInstalledError: It does not install here.
        """
        if not self.packages:
            return
        sources, commands = self._recipe()
        mark = self.folder / ".installed"
        recipe = [*self.packages, *(source.read_text("utf-8") for source in sources)]
        wanted = hashlib.sha256("\0".join(recipe).encode()).hexdigest()
        if mark.exists() and mark.read_text("utf-8") == wanted:
            return
        ENVIRONMENTS.mkdir(exist_ok=True)
        (ENVIRONMENTS / ".gitignore").write_text("*\n", "utf-8")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        for source in sources:
            shutil.copy(source, self.folder)
        for tool, *arguments in commands:
            run([_tool(tool), *arguments], self.folder)
        mark.write_text(wanted, "utf-8")

    def command(self) -> list[str]:
        """Return how the program is started."""
        python = self.folder / "bin" / "python" if self.packages else sys.executable
        return {
            ".py": [str(python), str(self.program)],
            ".mjs": ["node", str(self.program)],
            ".go": [str(self.folder / "program")],
            ".java": ["java", "-classpath", str(self.folder / "jars" / "*"), str(self.program)],
        }[self.program.suffix]

    def variables(self) -> dict[str, str]:
        """Return the program's environment variables."""
        paths = os.pathsep.join(map(str, [self.program.parent, *([] if self.packages else [ROOT])]))
        return {**os.environ, "PYTHONPATH": paths, "NODE_PATH": str(self.folder / "node_modules")}

    def version(self, shown: int = 1) -> str:
        """Return the pinned versions of the first packages."""
        if not self.packages:
            return "this"
        pins = self._recipe()[0][0].read_text("utf-8")
        names = [re.escape(package.partition("[")[0]) for package in self.packages[:shown]]
        found = [re.search(rf"(?<![\w-]){name}\W+v?(\d[\w.]*)", pins) for name in names]
        return ", ".join(match[1] for match in found if match)

    def _recipe(self) -> tuple[list[Path], list[list[str]]]:
        """Return the files that decide what is installed, the one with versions first, and the commands."""
        beside = self.program.parent
        pip = ["bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        npm = ["npm", "install", "--omit=optional", "--no-package-lock", "--no-audit", "--no-fund"]
        jars = ["dependency:copy-dependencies", "-DoutputDirectory=jars", "-DincludeScope=runtime"]
        return {
            ".py": (
                [self.constraints],
                [[sys.executable, "-m", "venv", "."], [*pip, "--constraint", self.constraints.name, *self.packages]],
            ),
            ".mjs": ([beside / "package.json"], [npm]),
            # the sums of all modules are written in the folder, and nowhere else
            ".go": ([beside / "go.mod", self.program], [["go", "build", "-mod=mod", "-o", "program", "."]]),
            ".java": ([beside / "pom.xml"], [["mvn", "--quiet", "--batch-mode", *jars]]),
        }[self.program.suffix]


def _tool(name: str) -> str:
    found = name if "/" in name else shutil.which(name) or shutil.which(name, path=GO_FOLDER)
    if found is None:
        raise NotInstalledError(f"{name} is not installed")
    return found


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
