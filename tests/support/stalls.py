"""Runs a command and lets it stand still now and then, with all of its processes, as a busy machine does.

    python -m tests.support.stalls python -m pytest -n 3 tests/integration

A test that fails in it, and never without, has leases, timeouts or limits that a pause of the machine outlasts.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

PAUSE_S = (0.8, 2.5)
"""How long all stands still."""

BETWEEN_S = (1.5, 5.0)
"""How long all runs in between."""


def stop_all(root: psutil.Process) -> list[psutil.Process]:
    """Stop a process and all below it; return those that ran, since a test may have stopped others itself."""
    stopped: list[psutil.Process] = []
    for _ in range(2):  # some start others meanwhile
        for each in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                if each.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
                    each.send_signal(signal.SIGSTOP)
                    stopped.append(each)
    return stopped


def main(command: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            time.sleep(random.uniform(*BETWEEN_S))
            with suppress(psutil.NoSuchProcess):
                stopped = stop_all(psutil.Process(process.pid))
                time.sleep(random.uniform(*PAUSE_S))
                for each in reversed(stopped):
                    with suppress(psutil.NoSuchProcess):
                        each.send_signal(signal.SIGCONT)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
