"""One connection to one Redis server: the typed edge around redis-py, which does TCP, TLS, AUTH and the protocol.

Everything that redis-py leaves untyped or renames stays in this module.
"""

from __future__ import annotations

import select
import ssl
from collections.abc import Callable
from typing import Any, cast

import hiredis
import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from rmq.calls import Argument
from rmq.errors import InvalidUrlError, RmqError

_CODES: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.NoScriptError, "NOSCRIPT"),
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.TryAgainError, "TRYAGAIN"),
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.MovedError, "MOVED"),
    (exceptions.AskError, "ASK"),
    (exceptions.AuthenticationError, "WRONGPASS"),
)

_NOTHING = object()
_READ_BYTES = 65_536

_pack_command = cast("Callable[[tuple[Argument, ...]], bytes]", hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]


class WireBrokenError(RmqError):
    """The connection can't be made, was cut, or did not answer in time. Inside the library only."""


class ReplyError(RmqError):
    """The server answered with an error. Inside the library only; its text begins with the error's code."""


class Wire:
    """A connection of one thread. After `WireBrokenError`, or any other interruption, it must be closed.

    redis-py connects and logs in; then commands and replies pass it by, which halves what a single call costs.

    Args:
        connection: redis-py's connection, not yet connected.
    """

    def __init__(self, connection: redis.Connection) -> None:
        self._connection: Any = connection
        self._socket: Any = None
        self._reader: Any = None
        self._poller: Any = None

    def connect(self) -> None:
        """Connect and log in.

        Raises:
            WireBrokenError: The server can't be reached.
            ReplyError: It refuses the credentials, or another part of the handshake.
        """
        self._guarded(self._connection.connect)
        self._socket = self._connection._sock
        self._reader = hiredis.Reader(replyError=ReplyError, notEnoughData=_NOTHING)
        self._poller = select.poll()
        self._poller.register(self._socket, select.POLLIN)

    def send(self, request: bytes) -> None:
        """Send a packed request."""
        try:
            self._socket.sendall(request)
        except OSError as error:  # a timeout is one, too
            raise WireBrokenError(_trouble(error)) from error

    def send_command(self, *args: Argument) -> None:
        """Send one command."""
        self.send(pack(*args))

    def read(self) -> Any:
        """Read one reply.

        Raises:
            ReplyError: The reply is an error; the connection is still good.
            WireBrokenError: No reply in time, or the connection was cut.
        """
        reader = self._reader
        try:
            while (reply := reader.gets()) is _NOTHING:
                data = self._socket.recv(_READ_BYTES)
                if not data:
                    raise WireBrokenError("the connection was closed")
                reader.feed(data)
        except OSError as error:
            raise WireBrokenError(_trouble(error)) from error
        except hiredis.ProtocolError as error:
            raise WireBrokenError(str(error)) from error
        if type(reply) is ReplyError:
            raise reply
        return reply

    def call(self, *args: Argument) -> Any:
        """Send one command and read its reply; raises as `read`."""
        self.send_command(*args)
        return self.read()

    def can_read(self, timeout_s: float = 0.0) -> bool:
        """Wait up to `timeout_s` for something to read; also true once the server has hung up."""
        if self._reader.has_data() or (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
            return True
        return bool(self._poller.poll(timeout_s * 1000))

    def fileno(self) -> int:
        """Return the socket's number, for `select`; -1 when closed. Ask `can_read` first: some may be read already."""
        return cast("int", self._socket.fileno())

    def close(self) -> None:
        """Close it; what is still on its way is dropped."""
        self._connection.disconnect()

    @staticmethod
    def _guarded(action: Callable[[], Any]) -> Any:
        try:
            return action()
        except (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.InvalidResponse) as error:
            # these two are errors of the server that redis-py files under lost connections
            if isinstance(error, exceptions.BusyLoadingError | exceptions.AuthenticationError):
                raise ReplyError(_text(error)) from None
            raise WireBrokenError(str(error)) from error
        except exceptions.ResponseError as error:
            raise ReplyError(_text(error)) from None


def wire_factory(url: str, timeout_s: float, connect_s: float | None = None) -> Callable[[], Wire]:
    """Return what makes unconnected wires to a standalone server.

    Args:
        url: `redis://`, `rediss://` or `unix://`, with the options that redis-py takes.
        timeout_s: How long to wait for a reply.
        connect_s: How long to wait for a connection; as long by default.

    Raises:
        InvalidUrlError: redis-py can't use the URL.
    """
    try:
        pool = redis.ConnectionPool.from_url(  # pyright: ignore[reportUnknownMemberType]
            url,
            protocol=2,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s if connect_s is None else connect_s,
            retry=Retry(NoBackoff(), 0),  # redis-py must repeat nothing by itself
            health_check_interval=0,
        )
    except (ValueError, TypeError) as error:
        raise InvalidUrlError(f"this Redis URL cannot be used: {error}") from None
    # not pool.make_connection: it counts all that were ever made, and refuses the 101st
    make, options = pool.connection_class, pool.connection_kwargs
    return lambda: Wire(make(**options))


def pack(*args: Argument) -> bytes:
    """Return a command in the protocol's form."""
    return _pack_command(args)


def _trouble(error: OSError) -> str:
    return "no reply in time" if isinstance(error, TimeoutError) else str(error)


def _text(error: Exception) -> str:
    """Return an error reply's text with its code in front, which redis-py takes off the ones it knows."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return f"{code} {error}"
    return str(error)
