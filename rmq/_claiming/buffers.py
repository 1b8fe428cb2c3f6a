"""Buffers of deliveries that are claimed and not taken: what nobody takes goes back in the background.

A buffer has a job, a thread or a task, which runs while the buffer has something to settle, and for a bounded time when
the program ends. `ReturnBuffer` keeps what a poll has claimed beyond its limit; `Prefetch` is a buffer as well.
"""

from __future__ import annotations

import atexit
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from rmq._io.backend import Lock, Runtime
from rmq._io.reports import reporter
from rmq._model.claims import Selection
from rmq._model.outcomes import RELEASED, Outcome
from rmq._model.times import monotonic_s
from rmq._model.topics import Topic

log = reporter("rmq.leftovers")

LOOK_EVERY_S = 1.0
"""Interval at which the job of a `ReturnBuffer` checks for deliveries to release, in seconds."""

EXIT_S = 2.0
"""Seconds that a program that ends waits for its last acks and releases."""

CLOSE_S = 3.0
"""Seconds that `close` waits for a thread that is waiting for Redis, and for acks under way."""


class Buffer(ABC):
    """Claimed deliveries, and a background job that runs while some are left to settle. Thread-safe.

    Args:
        runtime: The runtime: threads, or an event loop.
        name: Name of the job.
        every_s: Pause between two calls of `_flush`, in seconds.

    Attributes:
        lock: Guards the deliveries that are left. It is never held during a wait.
        ending: Set when the job has to end, even if something is left.
    """

    def __init__(self, runtime: Runtime, name: str, every_s: float) -> None:
        self.lock = runtime.lock()
        self.ending, self._idle = runtime.event(), runtime.event()
        self._runtime = runtime
        self._name = name
        self._every_s = every_s
        self._is_running = False
        self._pid = os.getpid()

    @abstractmethod
    def _has_pending(self) -> bool:
        """Return whether deliveries are left to settle; called while `lock` is held."""

    @abstractmethod
    def _flush(self, everything: bool) -> None:
        """Settle the deliveries that are due, or all of them, since no call follows."""

    @property
    def forked(self) -> bool:
        """True in a forked process: the job's thread does not exist there, and a lock may be held for ever."""
        return os.getpid() != self._pid

    def begin(self) -> None:
        """Start a job that calls `_flush` until nothing is left. If no job can be started, settle everything now."""
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


class ReturnBuffer(Buffer):
    """Keeps deliveries that a poll has claimed but not returned, for the next poll.

    They are released without using up a retry when the buffer is closed, when the program ends, and when no poll has
    taken them within half a lease.

    Args:
        runtime: The runtime: threads, or an event loop.
        topic: The registered definition.
        release: Function that settles rows with an outcome.
    """

    def __init__(
        self, runtime: Runtime, topic: Topic, release: Callable[[Sequence[Selection], Outcome], object]
    ) -> None:
        super().__init__(runtime, f"rmq-leftovers-{topic.name}", LOOK_EVERY_S)
        self._topic = topic
        self._release = release
        self.kept: list[Selection] = []
        """The kept messages; the lease of some may have expired."""
        self._kept_s = 0.0

    def take(self) -> list[Selection]:
        """Remove and return the kept messages whose lease has not expired."""
        with self.lock:
            kept, self.kept = self.kept, []
        now_s = monotonic_s()
        return [part for part in kept if now_s < part.claim.lease_until_s]

    def keep(self, selections: Sequence[Selection]) -> None:
        """Keep messages for the next `take`; release them if the buffer is closed."""
        if not selections:
            return
        with self.lock:
            self.kept += selections
            self._kept_s = monotonic_s()
        if self.ending.is_set():
            self._flush(True)
        else:
            self.begin()

    def close(self) -> None:
        """Release all deliveries, and keep none from now on. Does nothing after a fork."""
        if not self.forked:
            self.ending.set()
            self._flush(True)

    def _has_pending(self) -> bool:
        return bool(self.kept)

    def _flush(self, everything: bool) -> None:
        """Release all deliveries, or those kept too long. If that fails, their leases expire."""
        if not everything and monotonic_s() - self._kept_s <= self._topic.lease_s / 2:
            return
        try:
            if kept := self.take():
                self._release(kept, RELEASED)
        except Exception as error:
            text = "topic %s: leftovers of a poll were not released; they are redelivered when their leases expire: %s"
            log.warning(text, self._topic.name, error)


_RUNNING: set[Buffer] = set()


def _finish_all() -> None:
    until_s = monotonic_s() + EXIT_S
    for buffer in list(_RUNNING):
        buffer.finish(until_s)


@contextmanager
def held(lock: Lock, timeout_s: float) -> Generator[bool]:
    """Acquire a lock if it becomes free in time; yield whether it was acquired."""
    is_held = lock.acquire(timeout=timeout_s)
    try:
        yield is_held
    finally:
        if is_held:
            lock.release()
