"""All operations that wait: locks, sleeps, threads, sockets.

The logic of the library is written once, as plain calls. Here it waits in threads; `rmq.aio` has a `Runtime` of its
own, with which the same logic waits in an event loop. So no other code in the library may block, and the event loop's
runtime overrides every operation, which a test checks: one that it inherited would block the loop.
"""

from __future__ import annotations

import select
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar

from rmq._io.wire import CredentialProvider, Wire, poller, wire_factory

P = ParamSpec("P")
T = TypeVar("T")


class Lock(Protocol):
    """A lock with the interface of `threading.Lock`."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock; return False if it did not become free in time."""
        ...

    def release(self) -> None:
        """Release the lock."""
        ...

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> object: ...


class Condition(Protocol):
    """A condition with the interface of `threading.Condition`. Only its own `wait` may block while it is held."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a notification; return False after the timeout."""
        ...

    def notify_all(self) -> None:
        """Wake all waiting threads."""
        ...

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> object: ...


class Event(Protocol):
    """An event with the interface of `threading.Event`; it may be set from any thread."""

    def is_set(self) -> bool:
        """Return whether the event is set."""
        ...

    def set(self) -> None:
        """Set the event, and wake all waiting threads."""
        ...

    def clear(self) -> None:
        """Reset the event."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set; return False after the timeout."""
        ...


class Job(Protocol):
    """A running function, with the interface of `threading.Thread`."""

    def start(self) -> None:
        """Start the function."""
        ...

    def join(self, timeout: float | None = None) -> None:
        """Wait until the function has ended."""
        ...

    def is_alive(self) -> bool:
        """Return whether the job is running."""
        ...


class Runtime:
    """The operations that wait; here in threads. `rmq.aio` overrides each of them for an event loop.

    Attributes:
        cancellations: Exceptions that a wait of a job raises at the end of the program. The job may still call Redis.
        outlives_main: Whether jobs still run while functions registered with `atexit` are called.
        calls_at_once: How many calls of a server are under way, each on a connection of its own, before others wait to
            share a round trip: a thread is quicker alone than woken by another one, a task is not.
    """

    cancellations: tuple[type[BaseException], ...] = ()
    outlives_main: bool = True
    calls_at_once: int = 8

    def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""
        time.sleep(seconds)

    def lock(self, *, long: bool = False) -> Lock:
        """Return a new lock.

        Args:
            long: Whether it may be held while its holder waits for messages. A waiter for such a lock may be
                interrupted; a waiter for another one, held during calls to Redis, is not.
        """
        return _LongLock() if long else threading.Lock()

    def condition(self) -> Condition:
        """Return a new condition."""
        return threading.Condition()

    def event(self) -> Event:
        """Return a new event."""
        return threading.Event()

    def job(self, run: Callable[[], object], name: str) -> Job:
        """Return a new job; the end of the program does not wait for it."""
        return threading.Thread(target=run, name=name, daemon=True)

    def finish_within(self, action: Callable[[], object], longest_s: float) -> None:
        """Run an action in a job that was interrupted, for a limited time."""
        del longest_s
        action()

    def cancelled(self) -> bool:
        """Return whether the job that calls this was cancelled, also if the exception did not end it."""
        return False

    def to_its_end(self, action: Callable[[], object], at_end: Callable[[], object]) -> None:
        """Call a function that others wait for: a caller that is cancelled ends, and the function goes on.

        Args:
            action: The function.
            at_end: Called after it in any case, even if the function is not begun.
        """
        try:
            action()
        finally:
            at_end()

    caller: Callable[[], int] = staticmethod(threading.get_ident)
    """Return a number that the caller's nested calls have, too: of its thread; 0 where calls cannot be nested."""

    def interrupted(self) -> int:
        """Return the number of the caller in which signal handlers run, and which they may interrupt; 0 for none."""
        return threading.main_thread().ident or 0

    def limited(self, kind: tuple[str, str], action: Callable[[], T]) -> T:
        """Call a function that needs a connection; an event loop runs some of a kind at a time, the others wait."""
        del kind
        return action()

    def call(self, action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that does not wait through this runtime, such as one of the ZooKeeper client."""
        return action(*args, **kwargs)

    def wait_readable(self, wires: Iterable[Wire], timeout_s: float) -> None:
        """Wait until one of several wires has data to read, or was closed."""
        waiting = poller()
        for wire in wires:
            waiting.register(wire.fileno(), select.POLLIN)
        waiting.poll(timeout_s * 1000)

    def wait_progress(self, wires: Iterable[Wire], timeout_s: float) -> None:
        """Wait until one of several wires has more data, or can send more of what was posted.

        Call each wire's `read` without `wait` first: a partial reply that has arrived does not count.
        """
        waiting = poller()
        for wire in wires:
            waiting.register(wire.fileno(), select.POLLIN | select.POLLOUT if wire.unsent else select.POLLIN)
        waiting.poll(timeout_s * 1000)

    def wire_factory(
        self, url: str, timeout_s: float, connect_s: float | None = None, credentials: CredentialProvider | None = None
    ) -> Callable[[], Wire]:
        """Return a factory of unconnected wires to a server; see `rmq._io.wire.wire_factory`."""
        return wire_factory(url, timeout_s, connect_s, credentials)


class _LongLock:
    """A lock that is released if its acquisition is interrupted: a signal may arrive right after it was acquired."""

    def __init__(self) -> None:
        self._lock: Any = threading.RLock()  # knows whose it is; nobody takes it twice

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        try:
            return self._lock.acquire(blocking, timeout)
        except BaseException:
            if self._lock._is_owned():
                self._lock.release()
            raise

    def release(self) -> None:
        self._lock.release()

    __enter__ = acquire

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.release()


THREADS = Runtime()


class Background(ABC):
    """A job that runs its method `run`.

    Args:
        runtime: The runtime, which determines whether the job is a thread or a task.
        name: Name of the job.
    """

    def __init__(self, runtime: Runtime, name: str) -> None:
        self._job = runtime.job(self.run, name)
        self._stopping = runtime.event()

    @abstractmethod
    def run(self) -> None:
        """Run until the job is asked to end."""

    def start(self) -> None:
        """Start the job."""
        self._job.start()

    def request_stop(self) -> None:
        """Ask the job to end; does not wait for what it is doing."""
        self._stopping.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the job's end, unless it never started or is the caller itself: a handler may stop its client."""
        if self._job.is_alive() and self._job is not threading.current_thread():
            self._job.join(timeout)

    def is_alive(self) -> bool:
        """Return whether the job is running."""
        return self._job.is_alive()
