"""Where a newcomer works: a folder and a shell."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

LIMIT_S = 60.0
_FOLDER = "/tmp/shop"
"""The folder that the pages name for the embedded Redis."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class Workshop:
    """A folder to work in. Commands go to a shell as they stand on the page.

    Only this differs: `/tmp/shop` is a folder in here, and `install` says what pip does.

    Args:
        folder: Where the newcomer's files are.
        bin: The folder of the newcomer's Python, first on the PATH.
        install: Called with what a page has pip install.

    Attributes:
        commands: What was typed so far.
    """

    folder: Path
    bin: Path
    install: Callable[[list[str]], None]
    commands: list[str] = field(default_factory=list[str])
    _variables: dict[str, str] = field(default_factory=dict[str, str])

    def save(self, name: str, text: str) -> None:
        """Write a file, as an editor would."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

    def type(self, command: str) -> str:
        """Type a command; returns what it prints. It has to end with 0."""
        self.commands.append(command)
        if command.startswith("pip install "):
            self.install(re.findall(r"[^\s']+", command.removeprefix("pip install ")))
            return ""
        if found := re.fullmatch(r"export (\w+)=(\S+)", command):
            self._variables[found[1]] = self._mine(found[2])
            return ""
        done = subprocess.run(
            ["bash", "-c", self._mine(command)],
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            encoding="utf-8",
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @contextmanager
    def running(self, command: str, more: str = "") -> Iterator[Path]:
        """Let a command run while the newcomer goes on in another terminal, and yield the file of what it prints.

        Args:
            command: The command, as its page has it.
            more: What to add to it: a free port.
        """
        self.commands.append(command)
        log = self.folder / f"terminal-{len(self.commands)}.log"
        with log.open("w", encoding="utf-8") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {self._mine(command + more)}"],
                cwd=self.folder,
                env=self._environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                yield log
                assert process.poll() is None, f"{command} ended early:\n{log.read_text('utf-8')}"
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGINT)
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def get(self, url: str, has: str = "", method: str = "GET") -> str:
        """Ask for an address until the answer has these words; returns the answer."""
        end_s = time.monotonic() + LIMIT_S
        said = "nothing"
        while time.monotonic() < end_s:
            try:
                with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as answer:
                    said = answer.read().decode()
                if has in said:
                    return said
            except (urllib.error.URLError, ConnectionError) as error:
                said = str(error)
            time.sleep(0.1)
        raise AssertionError(f"{url} has no {has!r}, but {said}")

    def _mine(self, text: str) -> str:
        return text.replace(_FOLDER, str(self.folder / "queue"))

    def _environment(self) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("RMQ_", "PYTEST_", "COVERAGE_"))
        }
        kept["PYTHONUNBUFFERED"] = "1"  # what a terminal shows at once, a file would get at the end
        return {**kept, "PATH": f"{self.bin}{os.pathsep}{kept['PATH']}", **self._variables}
