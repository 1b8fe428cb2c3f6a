"""Runtime of the library's logic in an event loop: the counterpart of the threads of `rmq._io.backend`.

`AsyncWire` is one connection to one Redis server. Redis-py connects and logs in; replies are then read here. Only this
module uses names of redis-py's asyncio side that are private or have no types.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, ParamSpec, Self, TypeVar, cast

import hiredis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from rmq._io.backend import Condition, Event, Job, Lock, Runtime
from rmq._io.reports import reporter
from rmq._io.wire import (
    NOTHING,
    UNUSABLE,
    CredentialProvider,
    ReplyError,
    Wire,
    WireBrokenError,
    WireTimeoutError,
    checked_maker,
    unusable,
)
from rmq._model.display import counted
from rmq.aio.greenlets import GreenletTask, resolve, wait, wait_until

log = reporter("rmq.aio")

P = ParamSpec("P")
T = TypeVar("T")


CANCELLED_S, GIVEN_UP_S = 5.0, 1.0
"""Seconds that a close waits for cancelled handlers, and again after it has cancelled them a second time."""

MOST_CALLS = 64
"""Maximum number of concurrent calls of a kind that need a connection each: such as `send_many` on one topic; others
wait."""


class _Replies(asyncio.Protocol):
    """The data that has arrived over one connection, and its waiters."""

    def __init__(self) -> None:
        self._reader: Any = hiredis.Reader(replyError=ReplyError, notEnoughData=NOTHING)
        self.waiters: set[asyncio.Future[bool]] = set()
        self.writable = True
        self.ended = ""
        self.received = 0

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        self._reader.feed(data)
        self._tell()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = str(exc) if exc is not None and str(exc) else "the connection was closed"
        self._tell()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self._tell()

    def take(self) -> Any:
        """Return the next reply, or `NOTHING` if it is not complete."""
        return self._reader.gets()

    def any(self) -> bool:
        """Return whether there is data to read, or the connection has ended."""
        return bool(self.ended) or bool(self._reader.has_data())

    def _tell(self) -> None:
        for waiter in self.waiters:
            resolve(waiter)


class AsyncWire(Wire):
    """A connection of one task. After `WireBrokenError`, or any other interruption, it must be closed.

    Args:
        connection: redis-py's asyncio connection, not yet connected.
        timeout_s: Seconds to wait for a reply.
    """

    def __init__(self, connection: Any, timeout_s: float) -> None:
        super().__init__(connection)
        self._timeout_s = timeout_s
        self._replies = _Replies()
        self._streams: Any = None  # kept: a stream closes its connection when nobody has it any more
        self._transport: Any = None

    def connect(self) -> None:
        """Connect and log in; raises as `Wire.connect`."""
        self._guarded(lambda: wait(_cancellable(self._connection.connect())))
        connection = self._connection
        reader, writer = self._streams = connection._reader, connection._writer
        connection._reader = connection._writer = None
        self._transport = writer.transport
        self._transport.set_protocol(self._replies)
        if reader.at_eof() or reader.exception() is not None:  # cut between the two
            self._replies.connection_lost(reader.exception())

    def send(self, request: bytes) -> None:
        """Send a packed request; raise `WireTimeoutError` if the server accepts none of it for `timeout_s` seconds."""
        self.post(request)
        left = self._buffered()
        while self.unsent:
            try:
                self._wait("Redis did not accept the request in time")
            except WireTimeoutError:
                if self._buffered() >= left:
                    raise
            left = self._buffered()
            self.push()

    def post(self, request: bytes) -> None:
        """Queue a packed request, which is sent without waiting."""
        if not self._replies.ended:
            self._transport.write(request)
        self.push()

    @property
    def unsent(self) -> bool:
        """True if so much is queued that further requests should wait."""
        return not self._replies.writable and not self._replies.ended

    def push(self) -> None:
        """Raise `WireBrokenError` once the connection has ended; posted requests are sent by the event loop."""
        if self._replies.ended:
            raise WireBrokenError(self._replies.ended)

    def read(self, *, wait: bool = True) -> Any:
        """Read one reply; raises as `Wire.read`."""
        replies = self._replies
        self.received = replies.received
        try:
            while (reply := replies.take()) is NOTHING:
                self.push()
                if not wait:
                    return NOTHING
                self._wait("no reply in time")
        except hiredis.ProtocolError as error:
            raise WireBrokenError(str(error)) from error
        if isinstance(reply, ReplyError):
            try:
                raise reply
            finally:
                del reply  # else this frame and the error keep each other, and all that the callers hold
        return reply

    @property
    def has_data(self) -> bool:
        """True if a reply has arrived; makes no system call."""
        return self._replies.any()

    def can_read(self, timeout_s: float = 0.0) -> bool:
        """Wait up to `timeout_s` for data to read; also true once the server has closed the connection."""
        if timeout_s > 0 and not self._replies.any():
            with contextlib.suppress(WireBrokenError):
                self._wait("", timeout_s)
        return self._replies.any()

    def watch_arrivals(self, waiter: asyncio.Future[bool]) -> None:
        """Notify of data that arrives from now on, not of data that has arrived."""
        self._replies.waiters.add(waiter)

    def watch(self, waiter: asyncio.Future[bool]) -> None:
        """Notify once there is data to read."""
        self._replies.waiters.add(waiter)
        if self._replies.any():
            resolve(waiter)

    def unwatch(self, waiter: asyncio.Future[bool]) -> None:
        """Stop notifying."""
        self._replies.waiters.discard(waiter)

    def interrupt(self) -> None:
        """Make a wait for data end, as if the server had closed the connection."""
        self._replies.connection_lost(None)

    def fileno(self) -> int:
        """Return -1, since an event loop is notified through `watch` instead."""
        return -1

    def close(self) -> None:
        """Close the connection; data in transit is lost."""
        if self._transport is not None:
            _abort(self._transport)
        elif self._connection._writer is not None:  # interrupted while it logged in
            _abort(self._connection._writer.transport)
            self._connection._reader = self._connection._writer = None

    def _buffered(self) -> int:
        return self._transport.get_write_buffer_size()

    def _wait(self, trouble: str, timeout_s: float | None = None) -> None:
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._replies.waiters.add(waiter)
        try:
            if not wait_until(waiter, self._timeout_s if timeout_s is None else timeout_s):
                raise WireTimeoutError(trouble)
        finally:
            self._replies.waiters.discard(waiter)


def async_wire_factory(
    url: str, timeout_s: float, connect_s: float | None = None, credentials: CredentialProvider | None = None
) -> Callable[[], Wire]:
    """Return a factory of unconnected wires to a standalone server; see `rmq._io.wire.wire_factory`."""
    try:
        pool: Any = redis.asyncio.ConnectionPool.from_url(  # pyright: ignore[reportUnknownMemberType]
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s if connect_s is None else connect_s,
        )
        make = checked_maker(pool, Retry(NoBackoff(), 0), credentials)
    except UNUSABLE as error:
        raise unusable(error) from None
    return lambda: AsyncWire(make(), timeout_s)


def _abort(transport: Any) -> None:
    """Close a connection at once, even if its event loop is closed and can no longer do this."""
    try:
        transport.abort()
    except RuntimeError:  # "Event loop is closed"
        under = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None) or transport
        under_socket, under._sock = getattr(under, "_sock", None), None
        if under_socket is not None:
            under_socket.close()
        with contextlib.suppress(AttributeError):  # another kind of loop
            transport._closed = True


async def _cancellable(connecting: Coroutine[Any, Any, object]) -> None:
    """Connect; raise a cancellation even if `asyncio.wait_for`, which redis-py calls, drops it.

    In Python 3.11 it drops a cancellation that arrives in the iteration of the loop in which the inner task has ended.
    A job that is cancelled only once, as `asyncio.run` does at its end, would then never end.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    failed: Exception | None = None
    try:
        await connecting
    except Exception as error:
        failed = error
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError
    if failed is not None:
        try:
            raise failed
        finally:
            del failed  # as in `read`


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
