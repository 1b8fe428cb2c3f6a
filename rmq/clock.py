"""The local clock for durations: it never jumps, and where the system has one, it goes on while a laptop sleeps."""

from __future__ import annotations

import time

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def monotonic_s() -> float:
    """Return seconds since some fixed moment. Only differences mean something; only Redis' clock decides on dates."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)
