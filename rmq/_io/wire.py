"""One connection to one Redis server: a typed layer over redis-py, which does TCP, TLS, AUTH and the protocol.

Only this module uses names of redis-py that have no types, or that differ between its versions.
"""

from __future__ import annotations

import re
import select
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast
from weakref import finalize

import hiredis
import redis
from redis import CredentialProvider, exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from rmq.errors import InvalidUrlError, RmqError

_CODES: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.AuthenticationError, "WRONGPASS"),
)
"""Errors that redis-py may raise while it connects, which runs no script and names no key; later replies bypass it."""

NOTHING = object()
"""Result of `Wire.read` if no reply has arrived."""

_READ_BYTES = 65_536
_PIECE_BYTES = 131_072
"""Bytes sent at a time: the timeout applies to each piece, so that a large request can use a slow connection."""

packed = cast("Callable[[tuple[Argument, ...]], bytes]", hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]
"""Encodes a command in the Redis protocol."""


class _Select:
    """The part of `select.poll` that RMQ needs, for systems without it: eventlet removes it from the module."""

    def __init__(self) -> None:
        self._events: dict[Any, int] = {}

    def register(self, file: Any, events: int) -> None:
        self._events[file] = events

    def poll(self, timeout_ms: float) -> list[Any]:
        readers = [file for file, events in self._events.items() if events & select.POLLIN]
        writers = [file for file, events in self._events.items() if events & select.POLLOUT]
        readable, writable, _ = select.select(readers, writers, [], timeout_ms / 1000)
        return readable + writable


def poller() -> Any:
    """Return a new `select.poll`, or its replacement."""
    return select.poll() if hasattr(select, "poll") else _Select()


class WireBrokenError(RmqError):
    """The connection cannot be made, was closed, or did not answer in time. Used inside the library only."""


class WireTimeoutError(WireBrokenError):
    """The server did not answer in time. Used inside the library only."""


class ReplyError(RmqError):
    """The server answered with an error. Used inside the library only; its text begins with the error's code."""


class Wire:
    """A connection of one thread. After `WireBrokenError`, or any other interruption, it must be closed.

    redis-py connects and logs in; commands and replies then bypass it, which halves the cost of a single call.

    Args:
        connection: redis-py's connection, not yet connected.

    Attributes:
        received: Number of bytes that have arrived.
    """

    def __init__(self, connection: redis.Connection) -> None:
        self.received = 0
        self._connection: Any = connection
        self._socket: Any = None
        self._reader: Any = None
        self._poller: Any = None
        self._unsent = memoryview(b"")

    def connect(self) -> None:
        """Connect and log in.

        Raises:
            WireBrokenError: The server can't be reached.
            ReplyError: The server refuses the credentials, or another part of the handshake.
        """
        self._guarded(self._connection.connect)
        # a dropped consumer keeps its wires in a cycle, whose collection could find the socket first and warn
        finalize(self, self._connection.disconnect).atexit = False
        self._socket = self._connection._sock
        self._reader = hiredis.Reader(replyError=ReplyError, notEnoughData=NOTHING)
        self._poller = poller()
        self._poller.register(self._socket, select.POLLIN)

    def send(self, request: bytes) -> None:
        """Send a packed request; each piece must be sent within the timeout."""
        try:
            if (size := len(request)) <= _PIECE_BYTES:
                sent = self._socket.send(request)
                if sent == size:
                    return
            else:
                sent = 0
            rest = memoryview(request)[sent:]
            while rest:
                rest = rest[self._socket.send(rest[:_PIECE_BYTES]) :]
        except OSError as error:  # a timeout is one, too
            raise _broken(error) from error

    def post(self, request: bytes) -> None:
        """Send as much of a packed request as possible without waiting; `push` sends the rest."""
        self._unsent = memoryview(request)
        self.push()

    @property
    def unsent(self) -> bool:
        """True while part of a posted request is not sent."""
        return bool(self._unsent)

    def push(self) -> None:
        """Send as much of the posted request as possible without waiting; raises as `send`."""
        try:
            while self._unsent and self._ready(select.POLLOUT):
                self._unsent = self._unsent[self._at_once(self._socket.send, self._unsent[:_PIECE_BYTES]) or 0 :]
        except OSError as error:
            raise _broken(error) from error

    def send_command(self, *args: Argument) -> None:
        """Send one command."""
        self.send(pack(*args))

    def read(self, *, wait: bool = True) -> Any:
        """Read one reply; without `wait`, return `NOTHING` if it has not arrived.

        Raises:
            ReplyError: The reply is an error; the connection is still usable.
            WireBrokenError: There was no reply in time, or the connection was closed.
        """
        reader = self._reader
        try:
            while (reply := reader.gets()) is NOTHING:
                if wait:
                    data = self._socket.recv(_READ_BYTES)
                elif not self._ready(select.POLLIN) or (data := self._at_once(self._socket.recv, _READ_BYTES)) is None:
                    return NOTHING
                if not data:
                    raise WireBrokenError("the connection was closed")
                self.received += len(data)
                reader.feed(data)
        except OSError as error:
            raise _broken(error) from error
        except hiredis.ProtocolError as error:
            raise WireBrokenError(str(error)) from error
        if type(reply) is ReplyError:
            try:
                raise reply
            finally:
                del reply  # else this frame and the error keep each other, and all that the callers hold
        return reply

    def call(self, *args: Argument) -> Any:
        """Send one command and read its reply; raises as `read`."""
        self.send_command(*args)
        return self.read()

    @property
    def has_data(self) -> bool:
        """True if at least part of a reply has been read from the socket; makes no system call."""
        return self._reader.has_data()

    def can_read(self, timeout_s: float = 0.0) -> bool:
        """Wait up to `timeout_s` for data to read; also true once the server has closed the connection."""
        if self._reader.has_data() or (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
            return True
        return bool(self._poller.poll(timeout_s * 1000))

    def interrupt(self) -> None:
        """Make a wait for data in another thread end, as if the server had closed the connection."""
        with suppress(OSError, AttributeError):  # closed, or not yet connected
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # of TLS, too: its own would touch what is read

    def fileno(self) -> int:
        """Return the file descriptor for `select`; -1 if closed. Call `can_read` first: data may be read already."""
        return cast("int", self._socket.fileno())

    def close(self) -> None:
        """Close the connection; data in transit is lost."""
        self._connection.disconnect()

    def _ready(self, event: int) -> bool:
        """Return whether the socket can be read from, or written to, without waiting."""
        if isinstance(self._socket, ssl.SSLSocket):
            return True
        if event == select.POLLIN:
            return bool(self._poller.poll(0))
        one = poller()
        one.register(self._socket, event)
        return bool(one.poll(0))

    def _at_once(self, action: Callable[[Any], Any], argument: Any) -> Any:
        """Call a method of a socket that is ready; `None` if TLS still has to wait for data."""
        if not isinstance(self._socket, ssl.SSLSocket):
            return action(argument)
        timeout_s = self._socket.gettimeout()
        self._socket.settimeout(0)
        try:
            return action(argument)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        finally:
            self._socket.settimeout(timeout_s)

    @staticmethod
    def _guarded(action: Callable[[], Any]) -> Any:
        try:
            return action()
        except (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.InvalidResponse) as error:
            # these two are errors of the server that redis-py files under lost connections
            if isinstance(error, exceptions.BusyLoadingError | exceptions.AuthenticationError):
                raise ReplyError(_text(error)) from None
            silent = isinstance(error, exceptions.TimeoutError)
            raise (WireTimeoutError if silent else WireBrokenError)(str(error)) from error
        except exceptions.ResponseError as error:
            raise ReplyError(_text(error)) from None


def wire_factory(
    url: str, timeout_s: float, connect_s: float | None = None, credentials: CredentialProvider | None = None
) -> Callable[[], Wire]:
    """Return a factory of unconnected wires to a standalone server.

    Args:
        url: `redis://`, `rediss://` or `unix://`, with the options that redis-py takes.
        timeout_s: How long to wait for a reply.
        connect_s: How long to wait for a connection; by default `timeout_s`.
        credentials: Username and password, instead of those of the URL.

    Raises:
        InvalidUrlError: redis-py can't use the URL.
    """
    try:
        pool = redis.ConnectionPool.from_url(  # pyright: ignore[reportUnknownMemberType]
            url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s if connect_s is None else connect_s
        )
        # not pool.make_connection: it counts all that were ever made, and refuses the 101st
        make = checked_maker(pool, Retry(NoBackoff(), 0), credentials)
    except UNUSABLE as error:
        raise unusable(error) from None
    return lambda: Wire(make())


UNUSABLE = (ValueError, TypeError, AttributeError, exceptions.RedisError)
"""Errors that redis-py raises for an invalid URL, or an invalid option in it."""

_UNKNOWN_OPTION = re.compile(r"unexpected keyword argument '(\w+)'")


def unusable(error: Exception) -> InvalidUrlError:
    """Return the error for a URL that redis-py does not accept."""
    unknown = _UNKNOWN_OPTION.search(str(error))
    why = f"redis-py has no option {unknown[1]}" if unknown else str(error)
    return InvalidUrlError(f"this Redis URL cannot be used: {why}")


def checked_maker(pool: Any, retry: Any, credentials: CredentialProvider | None) -> Callable[[], Any]:
    """Return a factory of a pool's connections; create one at once, since redis-py checks a URL's options only then.

    Options of the URL override those of the pool, except those that RMQ relies on.
    """
    make, options = pool.connection_class, dict(pool.connection_kwargs)
    if objects := sorted(_OBJECTS & options.keys()):
        raise ValueError(f"option {objects[0]} takes a Python object, which a URL cannot contain; remove it")
    # redis-py must repeat nothing by itself
    options |= {"protocol": 2, "retry": retry, "health_check_interval": 0, "credential_provider": credentials}
    make(**options)
    return lambda: make(**options)


_OBJECTS = frozenset(
    "credential_provider command_packer encoder_class event_dispatcher parser_class redis_connect_func"
    " retry_on_error".split()
)


def pack(*args: Argument) -> bytes:
    """Return a command encoded in the Redis protocol."""
    return packed(args)


def _broken(error: OSError) -> WireBrokenError:
    return WireTimeoutError("no reply in time") if isinstance(error, TimeoutError) else WireBrokenError(str(error))


def _text(error: Exception) -> str:
    """Return the text of an error reply with its code in front, which redis-py strips from errors that it knows."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return f"{code} {error}"
    return str(error)


Argument = bytes | str | int
