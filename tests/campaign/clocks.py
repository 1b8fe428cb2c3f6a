"""Wall clocks that jump, of single processes: by libfaketime, which Debian's package of that name brings."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

NOT_HERE = "libfaketime is not installed (Debian's package libfaketime)"


def library() -> Path | None:
    """Return libfaketime for programs with threads, if it is installed."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return found[0] if found else None


class Clock:
    """The wall clock of processes that start with its `environment`; their monotonic clock goes on as it is.

    Args:
        path: A file of its own; it holds how far the clock is off.
        faketime: The library.
    """

    def __init__(self, path: Path, faketime: Path) -> None:
        self._path = path
        self.environment = {
            "LD_PRELOAD": str(faketime),
            "FAKETIME_TIMESTAMP_FILE": str(path),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # else each wait for Python's lock ends at once, and is begun again and again: on a busy machine such a
            # process stands still for seconds
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }
        self.jump(0)

    def jump(self, seconds: float) -> None:
        """Let the clock be off by so many seconds, within a second from now."""
        self._path.write_text(f"{seconds:+f}\n")


def sleep_by_select() -> None:
    """Let `time.sleep` wait by select where libfaketime runs: Python's own way ends there with EINVAL."""
    if "FAKETIME_TIMESTAMP_FILE" in os.environ:
        time.sleep = lambda seconds: select.select([], [], [], seconds)  # pyright: ignore
