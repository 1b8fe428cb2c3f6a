"""Settles deliveries in the background, and for a bounded time when the program ends."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rmq._io.backend import Lock, Runtime
from rmq._model.times import monotonic_s

EXIT_S = 2.0
"""Seconds that a program that ends waits for its last acks and releases."""

CLOSE_S = 3.0
"""Seconds that `close` waits for a thread that is waiting for Redis, and for acks under way."""


class BackgroundFlush:
    """Runs a background job while something is left to settle. Thread-safe.

    Args:
        runtime: The runtime: threads, or an event loop.
        name: Name of the job.
        has_pending: Returns whether deliveries are left to settle; called while `lock` is held.
        flush: Settles the deliveries that are due, or all of them if its argument is True, since no call follows.
        every_s: Pause between two calls of `flush`, in seconds.

    Attributes:
        lock: Guards the deliveries that are left. It is never held during a wait.
        ending: Set when the job has to end, even if something is left.
    """

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        has_pending: Callable[[], object],
        flush: Callable[[bool], object],
        every_s: float,
    ) -> None:
        self.lock = runtime.lock()
        self.ending, self._idle = runtime.event(), runtime.event()
        self._runtime = runtime
        self._name = name
        self._has_pending, self._flush = has_pending, flush
        self._every_s = every_s
        self._is_running = False
        self._pid = os.getpid()

    @property
    def forked(self) -> bool:
        """True in a forked process: the job's thread does not exist there, and a lock may be held for ever."""
        return os.getpid() != self._pid

    def begin(self) -> None:
        """Start a job that calls `flush` until nothing is left. If no job can be started, settle everything now."""
        with self.lock:
            if self._is_running:
                return
            self._is_running = True
            self._idle.clear()
        try:
            if self._runtime.outlives_main:
                _RUNNING.add(self)
                atexit.unregister(_finish_all)
                atexit.register(_finish_all)  # the last one runs first: before an embedded server of the program ends
            self._runtime.job(self._run, self._name).start()
        except BaseException as error:
            if not isinstance(error, RuntimeError):
                self._ended()
                raise
            self._flush(True)  # no more threads: the program ends, or has too many
            self._ended()

    def finish(self, until_s: float) -> None:
        """Make the job settle everything, and wait for it up to a time of `monotonic_s`; do nothing after a fork."""
        if not self.forked:
            self.ending.set()
            self._idle.wait(max(0.0, until_s - monotonic_s()))

    def _run(self) -> None:
        try:
            while True:
                ending = self.ending.wait(self._every_s)  # asked once: it may be set right after the tidying
                self._flush(ending)
                if self._ended(unless_pending=not ending):
                    return
        except BaseException as error:
            if isinstance(error, self._runtime.cancellations):
                self.ending.set()
                self._runtime.finish_within(lambda: self._flush(True), EXIT_S)
            self._ended()
            raise

    def _ended(self, *, unless_pending: bool = False) -> bool:
        with self.lock:
            if unless_pending and self._has_pending():
                return False
            self._is_running = False
            self._idle.set()
        _RUNNING.discard(self)
        return True


_RUNNING: set[BackgroundFlush] = set()


def _finish_all() -> None:
    until_s = monotonic_s() + EXIT_S
    for flush in list(_RUNNING):
        flush.finish(until_s)


@contextmanager
def held(lock: Lock, timeout_s: float) -> Generator[bool]:
    """Acquire a lock if it becomes free in time; yield whether it was acquired."""
    is_held = lock.acquire(timeout=timeout_s)
    try:
        yield is_held
    finally:
        if is_held:
            lock.release()
