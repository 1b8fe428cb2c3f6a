"""Measures the total time of calls to Redis."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from rmq._model.times import monotonic_s


class RedisTime:
    """Adds up the time that a task, or a driver with its threads, waits for calls to Redis.

    Attributes:
        seconds: Total time so far, seconds.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._lock = threading.Lock()

    @contextmanager
    def counted(self) -> Generator[None]:
        """Context manager that adds the time of its block."""
        began_s = monotonic_s()
        try:
            yield
        finally:
            self._add(monotonic_s() - began_s)

    @contextmanager
    def left_out(self) -> Generator[None]:
        """Context manager that excludes the time of its block from a surrounding `counted`."""
        began_s = monotonic_s()
        try:
            yield
        finally:
            self._add(began_s - monotonic_s())

    def _add(self, seconds: float) -> None:
        with self._lock:
            self.seconds += seconds
