"""A run of programs, from its start to its kill: what is killed, and what the kill has interrupted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.spark_kills.words import words
from tests.support.spark_classes import jvm_options

REPOSITORY = Path(__file__).parents[2]
READY_S = 400.0
LEFT_S = 60.0
"""How long processes of a killed run may go on: they notice that their driver is gone."""

ENVIRONMENT = {
    "JAVA_TOOL_OPTIONS": jvm_options(),
    "PYSPARK_SUBMIT_ARGS": "--conf spark.sql.codegen.wholeStage=false --conf spark.log.level=ERROR pyspark-shell",
}

VICTIMS = ("driver and JVM", "driver", "JVM")
LOOK_S = 0.2


@dataclass(frozen=True)
class Part:
    """A program of a run.

    Attributes:
        program: Of `tests.spark_kills.programs`.
        folder: For its files, checkpoints and log.
        told: What it needs to know.
    """

    program: str
    folder: Path
    told: Mapping[str, Any]

    def has_said(self, life: int, word: str) -> bool:
        """Return whether a run of it has said a word."""
        return any(each.word == word for each in words(self.folder / "log", life))

    def phase(self, life: int) -> str:
        """Return what it is at: `start`, `batch` or `between` two, by its checkpoint, as Spark goes by it."""
        if not self.has_said(life, "ready"):
            return "start"
        if any(newest(each / "offsets") > newest(each / "commits") for each in self._checkpoints()):
            return "batch"
        said = [each.word for each in words(self.folder / "log", life)]
        return "batch" if said[-1:] == ["job"] else "between"

    def progress(self) -> int:
        """Return how many batches and jobs all runs of it have ended."""
        jobs = len(list((self.folder / "done").glob("*")))
        return jobs + sum(1 + newest(each / "commits") for each in self._checkpoints())

    def _checkpoints(self) -> list[Path]:
        return [*self.folder.glob("checkpoints/*"), self.folder / "archive/checkpoint"]


@dataclass(frozen=True)
class Kill:
    """A kill.

    Attributes:
        life: Which run it ended.
        at_s: When, epoch seconds.
        victims: What was killed, of `VICTIMS`.
        phase: What it interrupted: `start`, `batch` or `between`.
    """

    life: int
    at_s: float
    victims: str
    phase: str


class Life:
    """A run of programs in one driver, in a session of processes of its own.

    Args:
        parts: The programs.
        life: Number of the run, from 0.
        url: Where Redis is.
        said: File for what it prints.
        last: Whether it ends by itself.
    """

    def __init__(self, parts: Sequence[Part], life: int, url: str, said: Path, *, last: bool = False) -> None:
        self.life, self._parts, self._said = life, parts, said
        told = [{"program": part.program, "folder": str(part.folder), "told": dict(part.told)} for part in parts]
        options = json.dumps({"life": life, "url": url, "last": last, "parts": told})
        command = [sys.executable, "-m", "tests.spark_kills.programs", options]
        with said.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=os.environ | ENVIRONMENT,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Wait until all programs have started their queries, or have begun their job.

        Raises:
            RuntimeError: It has ended instead, or takes too long.
        """
        until_s = time.monotonic() + READY_S
        while not all(part.has_said(self.life, "ready") for part in self._parts):
            self.check()
            if time.monotonic() > until_s:
                raise RuntimeError(f"run {self.life} is not ready within {READY_S:g} s:\n{self.said()}")
            time.sleep(LOOK_S)

    def wait_progress(self, part: Part, batches: int, limit_s: float) -> float:
        """Wait until a program has ended so many batches more, or the time is over.

        Returns:
            How long the last one took, seconds; 0 where none has ended.

        Raises:
            RuntimeError: It has ended instead.
        """
        began_s, took_s = time.monotonic(), 0.0
        goal, seen, at_s = part.progress() + batches, part.progress(), began_s
        while seen < goal and time.monotonic() < began_s + limit_s:
            self.check()
            time.sleep(LOOK_S)
            if (now := part.progress()) > seen:
                seen, took_s, at_s = now, time.monotonic() - at_s, time.monotonic()
        return took_s

    def check(self) -> None:
        """Make sure that it runs.

        Raises:
            RuntimeError: It has ended by itself.
        """
        if (code := self._process.poll()) is not None:
            raise RuntimeError(f"run {self.life} ended with code {code}:\n{self.said()}")

    def wait_end(self, limit_s: float) -> None:
        """Wait until it ends by itself.

        Raises:
            RuntimeError: It failed, or takes too long.
        """
        try:
            code = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = f"none after {limit_s:g} s"
            self._process.kill()
        self.end()
        if code:
            raise RuntimeError(f"run {self.life} ended with code {code}:\n{self.said()}")

    def kill(self, victims: str) -> tuple[float, str, list[str]]:
        """Kill driver, JVM or both; return when, what was killed, and what each program was at."""
        java = [each for each, name in self._members() if name == "java"]
        victims = victims if java else "driver"
        phases = [part.phase(self.life) for part in self._parts]
        if victims != "driver":
            for each in java:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
        if victims != "JVM":
            self._process.kill()
            self._process.wait()
        return time.time(), victims, phases

    def said(self) -> str:
        """Return what the programs have printed."""
        return self._said.read_text("utf-8", "replace")

    def end(self) -> list[str]:
        """Wait until all processes are gone; kill those that are left, and return their names."""
        limit_s = time.monotonic() + LEFT_S
        while (left := self._members()) and time.monotonic() < limit_s:
            time.sleep(LOOK_S)
        for each, _ in left:
            with suppress(psutil.Error):
                each.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(LEFT_S)
        return [name for _, name in left]

    def _members(self) -> list[tuple[psutil.Process, str]]:
        """Return the processes of this run that live, and their names.

        Python's workers have groups of their own, in one session. A process may end at any time: its name, too, is read
        while that is allowed for.
        """
        found: list[tuple[psutil.Process, str]] = []
        for pid in psutil.pids():
            with suppress(psutil.Error, ProcessLookupError):
                if os.getsid(pid) == self._process.pid:
                    each = psutil.Process(pid)
                    if each.status() != psutil.STATUS_ZOMBIE:
                        found.append((each, each.name()))
        return found


def newest(folder: Path) -> int:
    """Return the newest batch in a folder of a checkpoint, -1 for none."""
    return max((int(each.name) for each in folder.glob("*") if each.name.isdigit()), default=-1)
