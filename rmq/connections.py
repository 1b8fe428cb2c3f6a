"""Sends calls to Redis. The only module that knows what is behind a URL."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from rmq.calls import Call
from rmq.errors import ClientClosedError, ForkedClientError, RedisUnavailableError, RmqError, UnsafeRedisError
from rmq.exchange import NOT_EXECUTED, Exchange
from rmq.retry import draw_jitter
from rmq.scripts import ScriptLibrary, default_scripts
from rmq.urls import RedisUrl
from rmq.wire import ReplyError, Wire, WireBrokenError, wire_factory

T = TypeVar("T")
log = logging.getLogger("rmq.connections")

OLDEST_VERSION = (6, 2)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 1.0


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
        self._idle: deque[Wire] = deque()
        self._checked = False
        self._closed = False
        self._new_wire = wire_factory(url.url, timeout_s)

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
        wire = self._send(exchange)

        def results() -> list[Any]:
            self._finish(exchange, wire)
            return exchange.results

        return results

    def command(self, *args: str | bytes | int) -> Any:
        """Carry out one plain command that may be repeated, and return its reply.

        Raises:
            RedisUnavailableError: No answer until the deadline.
            ReplyError: The server's refusal.
        """
        deadline = time.monotonic() + self._deadline_s
        pause_s = FIRST_PAUSE_S
        while True:
            wire = None
            try:
                wire = self.checkout()
                reply = wire.call(*args)
            except WireBrokenError as error:
                _close(wire)
                trouble = error
            except ReplyError as error:
                if wire is not None:
                    self._give_back(wire)
                if not str(error).startswith(NOT_EXECUTED):
                    raise
                trouble = error
            except BaseException:
                _close(wire)
                raise
            else:
                self._give_back(wire)
                return reply
            if time.monotonic() + pause_s > deadline:
                raise RedisUnavailableError(
                    f"no answer from Redis at {self.url.shown} within {self._deadline_s:g} s ({trouble})"
                ) from trouble
            pause_s = _pause(pause_s)

    def checkout(self) -> Wire:
        """Return a connection of one's own, connected; `close` it when done.

        Raises:
            WireBrokenError: The server can't be reached.
            RedisUnavailableError: It refuses us: wrong password, no such database.
            UnsafeRedisError: It would lose messages.
            ClientClosedError: After `close`.
            ForkedClientError: In another process than the one that made this object.
        """
        if self._closed:
            raise ClientClosedError("this client is closed; make a new one")
        if os.getpid() != self._pid:
            raise ForkedClientError("this client was made before a fork; make one in the process that uses it")
        wire = self._idle_or_new()
        try:
            if not self._checked:
                self._check_server(wire)
                self._checked = True
        except BaseException:
            wire.close()
            raise
        return wire

    def close(self) -> None:
        """Close all idle connections; calls after it fail with `ClientClosedError`."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _give_back(self, wire: Wire) -> None:
        self._idle.append(wire)
        if self._closed:  # while this one was out
            self.close()

    def _idle_or_new(self) -> Wire:
        while True:
            try:
                wire = self._idle.pop()
            except IndexError:
                wire = self._new_wire()
                self._connect(wire)
                return wire
            try:
                if not wire.can_read():  # an idle connection has nothing to say, unless it was cut
                    return wire
            except WireBrokenError:
                pass
            wire.close()

    def _connect(self, wire: Wire) -> None:
        try:
            wire.connect()
        except ReplyError as error:
            wire.close()
            raise self._refusal(error) from error

    def _refusal(self, error: ReplyError) -> RmqError:
        """Tell what a refused greeting means: a busy server is waited for, a wrong password never gets right."""
        if str(error).startswith(NOT_EXECUTED):
            return WireBrokenError(str(error))
        return RedisUnavailableError(f"Redis at {self.url.shown} refuses this client: {error}")

    def _send(self, exchange: Exchange) -> Wire | None:
        request = exchange.take_request()
        try:
            wire = self.checkout()
        except WireBrokenError as error:
            exchange.not_sent(str(error))
            return None
        try:
            for script in exchange.missing_scripts():
                wire.call("SCRIPT", "LOAD", script.text)
        except (WireBrokenError, ReplyError) as error:
            wire.close()
            exchange.not_sent(str(error))
            return None
        except BaseException:
            wire.close()
            raise
        try:
            wire.send(request)
        except WireBrokenError as error:
            wire.close()
            exchange.connection_lost(str(error))
            return None
        except BaseException:
            wire.close()
            raise
        return wire

    def _receive(self, exchange: Exchange, wire: Wire) -> None:
        try:
            while exchange.awaited:
                try:
                    reply = wire.read()
                except ReplyError as error:
                    exchange.take_error(str(error))
                else:
                    exchange.take_reply(reply)
        except WireBrokenError as error:
            wire.close()
            exchange.connection_lost(str(error))
        except BaseException:  # a reply left behind would be read by the next caller
            wire.close()
            raise
        else:
            self._give_back(wire)

    def _finish(self, exchange: Exchange, wire: Wire | None) -> None:
        deadline = time.monotonic() + self._deadline_s
        pause_s = FIRST_PAUSE_S
        while True:
            if wire is not None:
                self._receive(exchange, wire)
            if exchange.done:
                return
            if time.monotonic() + pause_s > deadline:
                exchange.give_up(self._deadline_s)
                return
            if not exchange.last_trouble.startswith("NOSCRIPT"):
                pause_s = _pause(pause_s)
            wire = self._send(exchange)

    def _check_server(self, wire: Wire) -> None:
        try:
            server, memory = _info(wire, "server"), _info(wire, "memory")
        except ReplyError as error:
            if not str(error).startswith("NOPERM"):
                raise self._refusal(error) from error
            log.warning("this Redis user may not call INFO: version and eviction policy were not checked")
            return
        version = tuple(int(part) for part in server["redis_version"].split(".")[:2])
        if version < OLDEST_VERSION:
            raise UnsafeRedisError(f"Redis at {self.url.shown} is {server['redis_version']}; RMQ needs 6.2 or newer")
        policy = memory.get("maxmemory_policy", "noeviction")
        if policy.startswith("allkeys"):
            raise UnsafeRedisError(
                f"Redis at {self.url.shown} has maxmemory-policy {policy}, which drops whole slots "
                "when memory is short; set it to noeviction"
            )


def _info(wire: Wire, section: str) -> dict[str, str]:
    text = cast("bytes", wire.call("INFO", section)).decode()
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _close(wire: Wire | None) -> None:
    if wire is not None:
        wire.close()


def _pause(pause_s: float) -> float:
    time.sleep(pause_s * (0.5 + draw_jitter() / 2))
    return min(2 * pause_s, LONGEST_PAUSE_S)
