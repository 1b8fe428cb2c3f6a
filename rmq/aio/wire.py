"""One connection to one Redis server in an event loop. Redis-py connects and logs in; replies are then read here.

Only this module uses names of redis-py's asyncio side that are private or have no types.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import hiredis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

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
from rmq.aio.greenlets import resolve, wait, wait_until


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
