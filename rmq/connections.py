"""Sends calls to Redis. The only module that knows what is behind a URL."""

from __future__ import annotations

import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError
from redis.exceptions import RedisError as RedisPyError
from redis.retry import Retry

from rmq.calls import Call
from rmq.errors import ClientClosedError, ForkedClientError, InvalidUrlError, RedisUnavailableError, UnsafeRedisError
from rmq.exchange import Exchange
from rmq.retry import draw_jitter
from rmq.scripts import ScriptLibrary, default_scripts
from rmq.urls import RedisUrl

T = TypeVar("T")

OLDEST_VERSION = (6, 2)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 1.0

_CODES: tuple[tuple[type[ResponseError] | type[RedisPyError], str], ...] = (
    (redis.exceptions.NoScriptError, "NOSCRIPT"),
    (redis.exceptions.BusyLoadingError, "LOADING"),
    (redis.exceptions.ReadOnlyError, "READONLY"),
    (redis.exceptions.OutOfMemoryError, "OOM"),
    (redis.exceptions.TryAgainError, "TRYAGAIN"),
    (redis.exceptions.MasterDownError, "MASTERDOWN"),
    (redis.exceptions.ClusterDownError, "CLUSTERDOWN"),
    (redis.exceptions.NoPermissionError, "NOPERM"),
)


def error_text(error: RedisPyError) -> str:
    """Return an error reply's text with its code in front, which redis-py takes off the ones it knows."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return f"{code} {error}"
    return str(error)


class Connections:
    """Connections to one Redis server, made as threads need them. Thread-safe; does not survive a fork.

    Args:
        url: Where the server is.
        scripts: The scripts; the shared library by default.
        timeout_s: How long to wait for a connection, and for a reply.
        deadline_s: How long to repeat what may be repeated before giving up.
    """

    publish = "PUBLISH"
    """Command for wake hints."""

    def __init__(
        self,
        url: RedisUrl,
        *,
        scripts: ScriptLibrary | None = None,
        timeout_s: float = 5.0,
        deadline_s: float = 15.0,
    ) -> None:
        self.url = url
        self._scripts = scripts or default_scripts()
        self._deadline_s = deadline_s
        self._pid = os.getpid()
        self._idle: deque[redis.Connection] = deque()
        self._checked = False
        self._closed = False
        try:
            self._factory = redis.ConnectionPool.from_url(
                url.url,
                protocol=2,
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                retry=Retry(NoBackoff(), 0),
                health_check_interval=0,
            )
        except (ValueError, TypeError) as error:
            raise InvalidUrlError(f"URL {url.shown!r} cannot be used: {error}") from None

    def run(self, call: Call[T]) -> T:
        """Carry out one call and return its parsed reply.

        Raises:
            RedisUnavailableError: No answer until the deadline; `ReplyLostError` where the call must not be repeated.
            RmqError: What the script refused.
        """
        result = self.submit([call])()[0]
        if isinstance(result, Exception):
            raise result
        return cast("T", result)

    def run_many(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Carry out calls in one round trip; return per call its parsed reply or the `RmqError` it met."""
        return self.submit(calls)()

    def submit(self, calls: Sequence[Call[Any]]) -> Callable[[], list[Any]]:
        """Send calls without waiting; the function returned waits for the results, as `run_many` returns them.

        The caller must call it once: until then a connection is taken.
        """
        exchange = Exchange(calls, self._scripts)
        connection = self._send(exchange)

        def results() -> list[Any]:
            self._finish(exchange, connection)
            return exchange.results

        return results

    def command(self, *args: str | bytes | int) -> Any:
        """Carry out one plain command that may be repeated, and return its reply.

        Raises:
            RedisUnavailableError: No answer until the deadline.
            redis.exceptions.ResponseError: The server's refusal.
        """
        deadline = time.monotonic() + self._deadline_s
        pause_s = FIRST_PAUSE_S
        while True:
            connection = None
            try:
                connection = self.checkout()
                connection.send_command(*args)
                reply = connection.read_response()
                self._idle.append(connection)
                return reply
            except (redis.ConnectionError, redis.TimeoutError) as error:
                _drop(connection)
                _refuse_if_hopeless(error, self.url)
                if time.monotonic() + pause_s > deadline:
                    raise RedisUnavailableError(
                        f"no answer from Redis at {self.url.shown} within {self._deadline_s:g} s ({error})"
                    ) from error
            except ResponseError:
                if connection is not None:
                    self._idle.append(connection)
                raise
            except BaseException:
                _drop(connection)
                raise
            pause_s = _pause(pause_s)

    def checkout(self) -> redis.Connection:
        """Return a connection of one's own, connected; `disconnect` it when done.

        Raises:
            redis.ConnectionError: The server can't be reached.
            ClientClosedError: After `close`.
            ForkedClientError: In another process than the one that made this object.
        """
        if self._closed:
            raise ClientClosedError("this client is closed; make a new one")
        if os.getpid() != self._pid:
            raise ForkedClientError("this client was made before a fork; make one in the process that uses it")
        connection = self._fresh_or_idle()
        try:
            if not self._checked:
                self._check_server(connection)
                self._checked = True
        except BaseException:
            connection.disconnect()
            raise
        return connection

    def close(self) -> None:
        """Close all idle connections; calls after it fail with `ClientClosedError`."""
        self._closed = True
        while self._idle:
            self._idle.pop().disconnect()

    def _fresh_or_idle(self) -> redis.Connection:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = cast("redis.Connection", self._factory.make_connection())
                connection.connect()
                return connection
            try:
                if not connection.can_read():  # an idle connection has nothing to say, unless it was cut
                    return connection
            except (redis.ConnectionError, redis.TimeoutError):
                pass
            connection.disconnect()

    def _send(self, exchange: Exchange) -> redis.Connection | None:
        request = exchange.take_request()
        try:
            connection = self.checkout()
        except (redis.ConnectionError, redis.TimeoutError) as error:
            _refuse_if_hopeless(error, self.url)
            exchange.not_sent(str(error))
            return None
        try:
            for script in exchange.missing_scripts():
                connection.send_command("SCRIPT", "LOAD", script.text)
                connection.read_response()
        except (redis.ConnectionError, redis.TimeoutError) as error:
            connection.disconnect()
            exchange.not_sent(str(error))
            return None
        except BaseException:
            connection.disconnect()
            raise
        try:
            connection.send_packed_command([request], check_health=False)
        except (redis.ConnectionError, redis.TimeoutError) as error:
            connection.disconnect()
            exchange.connection_lost(str(error))
            return None
        except BaseException:
            connection.disconnect()
            raise
        return connection

    def _receive(self, exchange: Exchange, connection: redis.Connection) -> None:
        try:
            while exchange.awaited:
                try:
                    reply = connection.read_response()
                except ResponseError as error:
                    exchange.take_error(error_text(error))
                except redis.exceptions.BusyLoadingError as error:
                    exchange.take_error(error_text(error))
                else:
                    exchange.take_reply(reply)
        except (redis.ConnectionError, redis.TimeoutError) as error:
            connection.disconnect()
            exchange.connection_lost(str(error))
        except BaseException:  # a reply left behind would be read by the next caller
            connection.disconnect()
            raise
        else:
            self._idle.append(connection)

    def _finish(self, exchange: Exchange, connection: redis.Connection | None) -> None:
        deadline = time.monotonic() + self._deadline_s
        pause_s = FIRST_PAUSE_S
        while True:
            if connection is not None:
                self._receive(exchange, connection)
            if exchange.done:
                return
            if time.monotonic() + pause_s > deadline:
                exchange.give_up(self._deadline_s)
                return
            if not exchange.last_trouble.startswith("NOSCRIPT"):
                pause_s = _pause(pause_s)
            connection = self._send(exchange)

    def _check_server(self, connection: redis.Connection) -> None:
        try:
            server, memory = _info(connection, "server"), _info(connection, "memory")
        except NoPermissionError:
            warnings.warn("this Redis user may not call INFO; version and eviction policy were not checked", stacklevel=2)
            return
        version = tuple(int(part) for part in server["redis_version"].split(".")[:2])
        if version < OLDEST_VERSION:
            raise UnsafeRedisError(f"Redis at {self.url.shown} is {server['redis_version']}; RMQ needs 6.2 or newer")
        policy = memory.get("maxmemory_policy", "noeviction")
        if policy.startswith("allkeys"):
            raise UnsafeRedisError(
                f"Redis at {self.url.shown} has maxmemory-policy {policy}, which drops whole slots when memory is short; "
                "set it to noeviction"
            )


def _info(connection: redis.Connection, section: str) -> dict[str, str]:
    connection.send_command("INFO", section)
    text = cast("bytes", connection.read_response()).decode()
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _drop(connection: redis.Connection | None) -> None:
    if connection is not None:
        connection.disconnect()


def _pause(pause_s: float) -> float:
    time.sleep(pause_s * (0.5 + draw_jitter() / 2))
    return min(2 * pause_s, LONGEST_PAUSE_S)


def _refuse_if_hopeless(error: Exception, url: RedisUrl) -> None:
    """A wrong password does not get right by waiting."""
    if isinstance(error, AuthenticationError) or "NOAUTH" in str(error):
        raise RedisUnavailableError(f"Redis at {url.shown} refuses these credentials: {error}") from error
