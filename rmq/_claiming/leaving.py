"""Looks after deliveries that are still to be settled, also for a bounded time when the program ends."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rmq._io.backend import Lock, Runtime
from rmq._model.times import monotonic_s

EXIT_S = 2.0
"""How long a program that ends waits for its last acks and releases, in seconds."""

CLOSE_S = 3.0
"""How long a `close` waits for the thread that waits at Redis, and for acks that are on their way, in seconds."""


class Caretaker:
    """Runs a job as long as something is left to settle. Thread-safe.

    Args:
        runtime: How to wait.
        name: Name of the job.
        is_left: Tells whether something is left; called while `lock` is held.
        tidy: Settles what is due; takes whether nobody looks later, so that everything has to be settled.
        every_s: Pause between two calls of `tidy`.

    Attributes:
        lock: Guards what is left; nothing waits while it is held.
        ending: Set when the job has to end, whatever is left.
    """

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        is_left: Callable[[], object],
        tidy: Callable[[bool], object],
        every_s: float,
    ) -> None:
        self.lock = runtime.lock()
        self.ending, self._idle = runtime.event(), runtime.event()
        self._runtime = runtime
        self._name = name
        self._is_left, self._tidy = is_left, tidy
        self._every_s = every_s
        self._at_work = False
        self._pid = os.getpid()

    @property
    def forked(self) -> bool:
        """Whether this process is a fork: it has no job, and a lock may be held for ever."""
        return os.getpid() != self._pid

    def begin(self) -> None:
        """Have a job call `tidy` until nothing is left; settle everything now where no job can be had."""
        with self.lock:
            if self._at_work:
                return
            self._at_work = True
            self._idle.clear()
        try:
            if self._runtime.outlives_main:
                _AT_WORK.add(self)
                atexit.unregister(_leave_all)
                atexit.register(_leave_all)  # the last one runs first: before an embedded server of the program ends
            self._runtime.job(self._run, self._name).start()
        except BaseException as error:
            if not isinstance(error, RuntimeError):
                self._ended()
                raise
            self._tidy(True)  # no more threads: the program ends, or has too many
            self._ended()

    def leave(self, until_s: float) -> None:
        """Have the job settle everything, and wait for that until a moment of `monotonic_s`; not after a fork."""
        if not self.forked:
            self.ending.set()
            self._idle.wait(max(0.0, until_s - monotonic_s()))

    def _run(self) -> None:
        try:
            while True:
                ending = self.ending.wait(self._every_s)  # asked once: it may be set right after the tidying
                self._tidy(ending)
                if self._ended(unless_left=not ending):
                    return
        except BaseException as error:
            if isinstance(error, self._runtime.cancellations):
                self.ending.set()
                self._runtime.finish_within(lambda: self._tidy(True), EXIT_S)
            self._ended()
            raise

    def _ended(self, *, unless_left: bool = False) -> bool:
        with self.lock:
            if unless_left and self._is_left():
                return False
            self._at_work = False
            self._idle.set()
        _AT_WORK.discard(self)
        return True


_AT_WORK: set[Caretaker] = set()


def _leave_all() -> None:
    until_s = monotonic_s() + EXIT_S
    for caretaker in list(_AT_WORK):
        caretaker.leave(until_s)


@contextmanager
def held(lock: Lock, timeout_s: float) -> Generator[bool]:
    """Hold a lock, if it is free in time; yield whether it is held."""
    is_held = lock.acquire(timeout=timeout_s)
    try:
        yield is_held
    finally:
        if is_held:
            lock.release()
