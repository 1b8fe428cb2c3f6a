"""One connection to one Redis server, in an event loop: redis-py connects and logs in, then the replies come here.

Everything that redis-py's asyncio side leaves untyped or private stays in this module.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import hiredis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from rmq.aio.greenlets import wait
from rmq.errors import InvalidUrlError
from rmq.wire import ReplyError, Wire, WireBrokenError

_NOTHING = object()


class _Replies(asyncio.Protocol):
    """What has arrived over one connection, and who waits for it."""

    def __init__(self) -> None:
        self._reader: Any = hiredis.Reader(replyError=ReplyError, notEnoughData=_NOTHING)
        self._told: set[asyncio.Future[bool]] = set()
        self.writable = True
        self.ended = ""

    def data_received(self, data: bytes) -> None:
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
        """Return the next reply, `_NOTHING` if it is not complete."""
        return self._reader.gets()

    def any(self) -> bool:
        """Return whether there is something to read, or nothing will ever come."""
        return bool(self.ended) or bool(self._reader.has_data())

    def watch(self, told: asyncio.Future[bool]) -> None:
        """Tell when something has happened."""
        self._told.add(told)

    def unwatch(self, told: asyncio.Future[bool]) -> None:
        """Tell no more."""
        self._told.discard(told)

    def _tell(self) -> None:
        for told in self._told:
            if not told.done():
                told.set_result(True)


class AsyncWire(Wire):
    """A connection of one task. After `WireBrokenError`, or any other interruption, it must be closed.

    Args:
        connection: redis-py's asyncio connection, not yet connected.
        timeout_s: How long to wait for a reply.
    """

    def __init__(self, connection: Any, timeout_s: float) -> None:
        super().__init__(connection)
        self._timeout_s = timeout_s
        self._replies = _Replies()
        self._streams: Any = None  # kept: a stream closes its connection when nobody has it any more
        self._transport: Any = None

    def connect(self) -> None:
        """Connect and log in; raises as `Wire.connect`."""
        self._guarded(lambda: wait(self._connection.connect()))
        connection = self._connection
        reader, writer = self._streams = connection._reader, connection._writer
        connection._reader = connection._writer = None
        self._transport = writer.transport
        self._transport.set_protocol(self._replies)
        if reader.at_eof() or reader.exception() is not None:  # cut between the two
            self._replies.connection_lost(reader.exception())

    def send(self, request: bytes) -> None:
        """Send a packed request."""
        replies = self._replies
        if not replies.ended:
            self._transport.write(request)
        while not replies.writable and not replies.ended:
            self._wait("Redis does not take what is sent")
        if replies.ended:
            raise WireBrokenError(replies.ended)

    def read(self) -> Any:
        """Read one reply; raises as `Wire.read`."""
        replies = self._replies
        try:
            while (reply := replies.take()) is _NOTHING:
                if replies.ended:
                    raise WireBrokenError(replies.ended)
                self._wait("no reply in time")
        except hiredis.ProtocolError as error:
            raise WireBrokenError(str(error)) from error
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def can_read(self, timeout_s: float = 0.0) -> bool:
        """Wait up to `timeout_s` for something to read; also true once the server has hung up."""
        if timeout_s > 0 and not self._replies.any():
            with contextlib.suppress(WireBrokenError):
                self._wait("", timeout_s)
        return self._replies.any()

    def watch(self, told: asyncio.Future[bool]) -> None:
        """Tell when there is something to read."""
        self._replies.watch(told)
        if self._replies.any() and not told.done():
            told.set_result(True)

    def unwatch(self, told: asyncio.Future[bool]) -> None:
        """Tell no more."""
        self._replies.unwatch(told)

    def fileno(self) -> int:
        """Return -1: in an event loop, `watch` it."""
        return -1

    def close(self) -> None:
        """Close it; what is still on its way is dropped."""
        if self._transport is not None:
            self._transport.abort()
        elif self._connection._writer is not None:  # interrupted while it logged in
            self._connection._writer.transport.abort()
            self._connection._reader = self._connection._writer = None

    def _wait(self, trouble: str, timeout_s: float | None = None) -> None:
        told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        timer = told.get_loop().call_later(self._timeout_s if timeout_s is None else timeout_s, _give_up, told)
        self._replies.watch(told)
        try:
            if not wait(told):
                raise WireBrokenError(trouble)
        finally:
            timer.cancel()
            self._replies.unwatch(told)


def async_wire_factory(url: str, timeout_s: float, connect_s: float | None = None) -> Callable[[], Wire]:
    """Return what makes unconnected wires to a standalone server; see `rmq.wire.wire_factory`."""
    try:
        pool: Any = redis.asyncio.ConnectionPool.from_url(  # pyright: ignore[reportUnknownMemberType]
            url,
            protocol=2,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s if connect_s is None else connect_s,
            retry=Retry(NoBackoff(), 0),  # redis-py must repeat nothing by itself
            health_check_interval=0,
        )
    except (ValueError, TypeError) as error:
        raise InvalidUrlError(f"this Redis URL cannot be used: {error}") from None
    make, options = pool.connection_class, pool.connection_kwargs
    return lambda: AsyncWire(make(**options), timeout_s)


def _give_up(told: asyncio.Future[bool]) -> None:
    if not told.done():
        told.set_result(False)
