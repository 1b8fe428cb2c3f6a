"""A child process that ends with its parent, however the parent ends."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_GUARD = 'cat >/dev/null; kill -9 "$0"'
"""Waits until the pipe to the parent breaks."""


class GuardedProcess:
    """A process with a guard, which holds a pipe to us and kills the process when the pipe breaks.

    Args:
        command: What to start, in the log's folder.
        log: Where its output is appended.
        environment: What it gets beside our own.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        with log.open("ab") as output:
            self.process = subprocess.Popen(  # noqa: S603 - commands of this package
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=log.parent,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # Ctrl-C is for the parent, which stops us in its own order
            )
        self._guard = subprocess.Popen(  # noqa: S603
            ["/bin/sh", "-c", _GUARD, str(self.process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int | None:
        """Its process id while it runs, else None."""
        return self.process.pid if self.process.poll() is None else None

    def end_guard(self) -> None:
        """End the guard: it must not outlive the id that it would kill."""
        self._guard.kill()
        self._guard.communicate()

    def wait(self, timeout_s: float) -> None:
        """Wait for the end; kill it after the timeout. May be called again."""
        try:
            self.process.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
