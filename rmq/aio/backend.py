"""Runtime of the library's logic in an event loop: the counterpart of the threads of `rmq._io.backend`."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, Self, TypeVar, cast

from rmq._io.backend import Condition, Event, Job, Lock, Runtime
from rmq._io.reports import reporter
from rmq._io.wire import CredentialProvider, Wire
from rmq._model.display import counted
from rmq.aio.greenlets import GreenletTask, resolve, wait, wait_until
from rmq.aio.wire import AsyncWire, async_wire_factory

log = reporter("rmq.aio")

P = ParamSpec("P")
T = TypeVar("T")


CANCELLED_S, GIVEN_UP_S = 5.0, 1.0
"""Seconds that a close waits for cancelled handlers, and again after it has cancelled them a second time."""

MOST_CALLS = 64
"""Maximum number of concurrent calls of a kind that need a connection each: such as `send_many` on one topic; others
wait."""


class EventLoop(Runtime):
    """Runtime that waits in the running event loop. Only the loop's thread may use it, except for events."""

    cancellations: tuple[type[BaseException], ...] = (asyncio.CancelledError,)
    outlives_main = False
    calls_at_once = 1

    def __init__(self) -> None:
        self._jobs: set[asyncio.Task[Any]] = set()
        self._permits = defaultdict[tuple[str, str], Lock](call_semaphore)

    async def cancel_jobs(self, give_up: Callable[[], object]) -> None:
        """Cancel the jobs that still run, twice if necessary.

        Args:
            give_up: Called after each of the two waits, the first before jobs are cancelled again.
        """
        jobs = set(self._jobs)
        for patience_s in (CANCELLED_S, GIVEN_UP_S):
            for job in jobs:
                job.cancel()
            if jobs:
                _, jobs = await asyncio.wait(jobs, timeout=patience_s)
            give_up()
        if jobs:
            log.warning(
                "%s running after being cancelled twice", counted(len(jobs), "task is still", "tasks are still")
            )

    def sleep(self, seconds: float) -> None:
        """Suspend the caller for a number of seconds."""
        wait(asyncio.sleep(seconds))

    def lock(self, *, long: bool = False) -> Lock:
        """Return a new lock."""
        return _Lock(long)

    def condition(self) -> Condition:
        """Return a new condition."""
        return _Condition()

    def event(self) -> Event:
        """Return a new event."""
        return _Event()

    def job(self, run: Callable[[], object], name: str) -> Job:
        """Return a new job, which runs as an asyncio task."""
        return _Job(run, name, self._jobs)

    def finish_within(self, action: Callable[[], object], longest_s: float) -> None:
        """Call a function in a task that was cancelled; cancel the task again after `longest_s` seconds."""
        task = asyncio.current_task()
        timer = None if task is None else task.get_loop().call_later(longest_s, task.cancel)
        try:
            action()
        finally:
            if timer is not None:
                timer.cancel()

    def cancelled(self) -> bool:
        """Return whether the calling task was cancelled."""
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    def to_its_end(self, action: Callable[[], object], at_end: Callable[[], object]) -> None:
        """Call a function in a task of its own, and wait for it; call another one when the task is done."""
        task = GreenletTask(action).start("rmq-shared-calls")
        task.add_done_callback(lambda _: at_end())
        wait(asyncio.wait({task}))

    def caller(self) -> int:
        """Return 0: a task makes one call at a time."""
        return 0

    def interrupted(self) -> int:
        """Return 0: a signal handler cannot await a call."""
        return 0

    def limited(self, kind: tuple[str, str], action: Callable[[], T]) -> T:
        """Call a function that needs a connection; the event loop runs `MOST_CALLS` of a kind at a time."""
        with self._permits[kind]:
            return action()

    def call(self, action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in a separate thread, and return its result."""
        return wait(asyncio.to_thread(action, *args, **kwargs))

    def wait_readable(self, wires: Iterable[Wire], timeout_s: float) -> None:
        """Wait up to `timeout_s` until one of several wires has data to read, or has ended."""
        _wait_for_wires(wires, timeout_s, AsyncWire.watch, breakable=True)

    def wait_progress(self, wires: Iterable[Wire], timeout_s: float) -> None:
        """Wait up to `timeout_s` until one of several wires has more data, or can send more of its posted requests."""
        _wait_for_wires(wires, timeout_s, AsyncWire.watch_arrivals)

    def wire_factory(
        self, url: str, timeout_s: float, connect_s: float | None = None, credentials: CredentialProvider | None = None
    ) -> Callable[[], Wire]:
        """Return a function that creates unconnected wires to a server."""
        return async_wire_factory(url, timeout_s, connect_s, credentials)


def call_semaphore() -> Lock:
    """Return a semaphore for `MOST_CALLS` concurrent calls, since each call occupies a connection."""
    return _Lock(False, MOST_CALLS)


class Permit:
    """A permit of a semaphore, which its holder may release for a while.

    Args:
        call_semaphore: The semaphore.
    """

    def __init__(self, call_semaphore: Lock) -> None:
        self._call_semaphore = call_semaphore
        self._held = False

    def take(self) -> None:
        """Wait for the permit, and acquire it."""
        self._held = self._call_semaphore.acquire()

    def leave(self) -> None:
        """Release the permit, so that a waiting call can acquire it."""
        self._held = False
        self._call_semaphore.release()

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(self, *error: object) -> None:
        if self._held:
            self.leave()


def _wait_for_wires(
    wires: Iterable[Wire],
    timeout_s: float,
    watch: Callable[[AsyncWire, asyncio.Future[bool]], None],
    *,
    breakable: bool = False,
) -> None:
    news = asyncio.get_running_loop().create_future()
    watched = [cast("AsyncWire", wire) for wire in wires]
    for wire in watched:
        watch(wire, news)
    try:
        wait_until(news, timeout_s, breakable=breakable)
    finally:
        for wire in watched:
            wire.unwatch(news)


class _Lock:
    """A lock that up to `places` callers may hold; waiting callers get it in the order of their requests."""

    def __init__(self, long: bool, places: int = 1) -> None:
        self._long = long
        self._free = places
        self._asking: deque[asyncio.Future[bool]] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._free:
            self._free -= 1
            return True
        if not blocking:
            return False
        turn = asyncio.get_running_loop().create_future()
        self._asking.append(turn)
        try:
            return wait_until(turn, None if timeout < 0 else timeout, breakable=self._long)
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.result():  # it came with the interruption
                self.release()
            raise
        finally:
            if turn in self._asking:
                self._asking.remove(turn)

    def release(self) -> None:
        while self._asking:
            turn = self._asking.popleft()
            if not turn.done():
                turn.set_result(True)
                return
        self._free += 1

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class _Condition:
    """A condition without a lock, since all its users run in one thread."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[bool]] = set()

    def wait(self, timeout: float | None = None) -> bool:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            return wait_until(waiter, timeout, breakable=True)
        finally:
            self._waiting.discard(waiter)

    def notify_all(self) -> None:
        for waiter in self._waiting:
            resolve(waiter)

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


class _Event(_Condition):
    """An event that may be set from any thread, since ZooKeeper's client has its own threads."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        if threading.get_ident() == self._thread:
            self.notify_all()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.notify_all)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._set or super().wait(timeout)


class _Job:
    """A task that runs plain logic."""

    def __init__(self, run: Callable[[], object], name: str, jobs: set[asyncio.Task[Any]]) -> None:
        self._run = run
        self._name = name
        self._jobs = jobs
        self._task: asyncio.Task[Any] | None = None

    def start(self) -> None:
        self._task = GreenletTask(self._run).start(self._name)
        self._jobs.add(self._task)
        self._task.add_done_callback(self._jobs.discard)

    def join(self, timeout: float | None = None) -> None:
        if self._task is not None and not self._task.done() and self._task is not asyncio.current_task():
            wait(asyncio.wait({self._task}, timeout=timeout))

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done()
