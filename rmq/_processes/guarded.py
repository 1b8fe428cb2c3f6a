"""A child process that ends with its parent, even if the parent is killed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_GUARD = 'cat >/dev/null; kill -9 "$0"'
"""Waits until the pipe to the parent breaks, then kills the process."""


class GuardedProcess:
    """A process with a guard, which holds a pipe to this process and kills the guarded one when the pipe breaks.

    The process runs in the folder of its log, to which its output is appended. `environment` is added to that of this
    process.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.command = command
        self.log = log
        self.starts = 0
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process unless it is running."""
        if self.pid:
            return
        self.wait(0)
        self.starts += 1
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - commands of this package
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.log.parent,
                env={**os.environ, **self._environment},
                start_new_session=True,  # Ctrl-C must reach the parent only, which stops its children in order
            )
        self._guard = subprocess.Popen(  # noqa: S603
            ["/bin/sh", "-c", _GUARD, str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int | None:
        """The process id while it runs, else None."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self._process:
            self._process.send_signal(number)

    def wait(self, timeout_s: float) -> None:
        """Wait for the process to end, and kill it after the timeout. May be called again."""
        if self._process is None:
            return
        try:
            self._process.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._guard.kill()  # the process id may be reused from now on
        self._guard.communicate()
        self._process = None

    def stop(self) -> None:
        """Send SIGTERM, and kill the process after 5 s."""
        self.signal(signal.SIGTERM)
        self.wait(5.0)
