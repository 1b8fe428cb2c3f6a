"""One Redis server: its idle connections, the check that it is fit for RMQ, and whether it answers at all."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from rmq._io.backend import Blocking
from rmq._io.wire import Argument, ReplyError, Wire, WireBrokenError, WireSilentError
from rmq._model.reports import reporter
from rmq._model.times import monotonic_s
from rmq._transport.durability import Durability
from rmq._transport.exchange import not_executed
from rmq._transport.server_check import Version, check_server
from rmq._transport.urls import Address, RedisUrl
from rmq.errors import RedisUnavailableError, RmqError

log = reporter("rmq.connections")

CONNECT_S = 2.0
"""Where there are other servers to turn to, nobody waits longer than this for a connection."""

FIRST_TRY_S, LONGEST_TRY_S = 0.05, 1.0
"""Pauses between two tries to reach a silent server: they double."""

T = TypeVar("T")
Check = Callable[[Wire], None]


class Node:
    """A server, with connections made as threads need them. Thread-safe.

    Args:
        address: Where it is; for a unix socket anything.
        shown: Its name in messages.
        new_wire: Makes an unconnected wire to it.
        check: Looks at the server once, over the first connection.
        greet: Looks at every new connection.
        beside: What the server has beside it; `None` where there are no others, so that all have to wait for it.

    Attributes:
        failed_s: When it last could not be reached, on the monotonic clock; 0 for never.
        silent: Whether it has left a call without an answer, and none has come since.
        version: Its version, once checked.
    """

    def __init__(
        self,
        address: Address,
        shown: str,
        new_wire: Callable[[], Wire],
        check: Callable[[Wire], Version],
        greet: Check,
        beside: Beside | None = None,
    ) -> None:
        self.address = address
        self.failed_s = 0.0
        self.silent = False
        self.version: Version | None = None
        self._beside = beside
        self._shown = shown
        self._new_wire = new_wire
        self._check = check
        self._greet = greet
        self._idle: deque[Wire] = deque()
        self._checked = False
        self._closed = False

    def checkout(self, patience_s: float | None = None) -> Wire:
        """Return a connection of one's own, connected; `give_back` or `close` it when done.

        Args:
            patience_s: How long to wait for a new connection, where there are other servers: one that takes longer is
                there for the next one. By default until the timeouts.

        Raises:
            WireBrokenError: The server can't be reached.
            RedisUnavailableError: It refuses us: wrong password, no such database.
            UnsafeRedisError: It would lose messages.
        """
        while True:
            try:
                wire = self._idle.pop()
            except IndexError:
                break
            try:
                if not wire.can_read():  # an idle connection has nothing to say, unless it was cut
                    return wire
            except WireBrokenError:
                pass
            wire.close()
        if patience_s is None or self._beside is None:
            return self._fit_wire()
        return self._wire_soon(patience_s, self._beside.blocking)

    def ask(self, *args: Argument) -> Any:
        """Carry out one command and return its reply.

        Raises:
            ReplyError: The server's refusal; else as `checkout`.
        """
        wire = self.checkout()
        try:
            reply = wire.call(*args)
        except ReplyError:
            self.give_back(wire)
            raise
        except BaseException:
            wire.close()
            raise
        self.give_back(wire)
        return reply

    def note_silence(self) -> None:
        """Note that a call waits in vain: others go elsewhere until a try of its own finds that the server answers."""
        if self.silent or self._beside is None or self._closed:
            return
        self.silent, self.failed_s = True, monotonic_s()
        self._beside.silent.add(self)
        try:
            self._beside.blocking.job(self._try_until_it_answers, f"rmq-try-{self._shown}").start()
        except RuntimeError as error:  # no more threads: nobody would end the silence, so each call waits for itself
            self._beside.silent.discard(self)
            self.silent = False
            log.warning("Redis at %s does not answer, and no thread can wait until it does: %s", self._shown, error)

    def give_back(self, wire: Wire) -> None:
        """Keep a connection for the next one; all its replies must have been read."""
        self._idle.append(wire)
        if self._closed:  # while this one was out
            self.close()

    def close(self) -> None:
        """Close all idle connections, and those under way when they are given back."""
        self._closed = True
        with suppress(IndexError):  # no more, or another thread was faster
            while True:
                self._idle.pop().close()

    def _fit_wire(self) -> Wire:
        """Return a new connection, to a server that was checked."""
        try:
            wire = self._connected()
            try:
                if not self._checked:
                    self.version = self._guarded(self._check, wire)
                    self._checked = True
            except BaseException:
                wire.close()
                raise
        except WireBrokenError as error:
            self.failed_s = monotonic_s()
            if isinstance(error, WireSilentError):
                self.note_silence()
            raise
        return wire

    def _wire_soon(self, patience_s: float, blocking: Blocking) -> Wire:
        """Have a connection made by somebody who can wait for it, and return one if that is done soon."""
        made, troubles = blocking.event(), list[RmqError]()

        def make() -> None:
            try:
                self.give_back(self._fit_wire())
            except RmqError as error:
                troubles.append(error)
            finally:
                made.set()

        try:
            blocking.job(make, f"rmq-connect-{self._shown}").start()
        except RuntimeError:  # no more threads
            return self._fit_wire()
        if not made.wait(patience_s):
            self.note_silence()
        if self._idle:
            return self.checkout(patience_s)
        raise troubles[0] if troubles else WireSilentError(f"no connection within {patience_s:g} s")

    def _try_until_it_answers(self) -> None:
        """End the silence once the server answers on a new connection, or is no longer wanted."""
        beside, pause_s, warned = self._beside, FIRST_TRY_S, False
        try:
            while not self._closed:
                try:
                    wire = self._fit_wire()
                    try:
                        wire.call("PING")
                    except BaseException:
                        wire.close()
                        raise
                except WireBrokenError as error:
                    if not warned:
                        log.warning("Redis at %s does not answer; the other servers go on: %s", self._shown, error)
                    warned = True
                except (RmqError, ReplyError):  # a refusal is an answer: who calls next is told
                    break
                else:
                    self.give_back(wire)
                    if warned:
                        log.warning("Redis at %s answers again", self._shown)
                    break
                if beside is not None:
                    beside.blocking.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_TRY_S)
        finally:
            if beside is not None:
                beside.silent.discard(self)
            self.silent = False

    def _connected(self) -> Wire:
        wire = self._new_wire()
        try:
            self._guarded(lambda made: made.connect(), wire)
            self._guarded(self._greet, wire)
        except BaseException:
            wire.close()
            raise
        return wire

    def _guarded(self, action: Callable[[Wire], T], wire: Wire) -> T:
        try:
            return action(wire)
        except ReplyError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: ReplyError) -> RmqError:
        """Tell what a refused greeting means: a busy server is waited for, a wrong password never gets right."""
        if not_executed(str(error)):
            return WireBrokenError(str(error))
        return RedisUnavailableError(f"Redis at {self._shown} refuses this client: {error}")


class Beside:
    """What the servers of a cluster share.

    Args:
        blocking: How to wait.

    Attributes:
        silent: Those that do not answer at the moment.
    """

    def __init__(self, blocking: Blocking) -> None:
        self.blocking = blocking
        self.silent: set[Node] = set()


class NodeFactory:
    """Makes the nodes behind one URL.

    Args:
        url: The URL.
        timeout_s: How long to wait for a connection, and for a reply.
        durability: What servers must be able to do.
        blocking: How to wait.
    """

    def __init__(self, url: RedisUrl, timeout_s: float, durability: Durability, blocking: Blocking) -> None:
        self.blocking = blocking
        self.beside = Beside(blocking)
        self._url = url
        self._timeout_s = timeout_s
        self._durability = durability

    def only(self) -> Node:
        """Return the only server of a standalone URL."""
        return self._node(Address("", 0), self._url.url, self._url.shown, self._timeout_s, _welcome)

    def server(self, address: Address, greet: Check) -> Node:
        """Return a data server of a Sentinel URL."""
        url, connect_s = self._url.server_url(address), min(self._timeout_s, CONNECT_S)
        return self._node(address, url, str(address), connect_s, greet)

    def member(self, address: Address) -> Node:
        """Return a data server of a cluster URL."""
        url, connect_s = self._url.server_url(address), min(self._timeout_s, CONNECT_S)
        return self._node(address, url, str(address), connect_s, _welcome, self.beside)

    def sentinel(self, address: Address, patience_s: float) -> Node:
        """Return a Sentinel, to be waited for so long; it is no data server and not checked."""
        return self._informant(address, self._url.sentinel_url(address), f"Sentinel {address}", patience_s, _welcome)

    def informant(self, address: Address, patience_s: float, greet: Check | None = None) -> Node:
        """Return a data server that is only asked about itself or others, and waited for so long; it is not checked."""
        return self._informant(address, self._url.server_url(address), str(address), patience_s, greet or _welcome)

    def _informant(self, address: Address, url: str, shown: str, patience_s: float, greet: Check) -> Node:
        patience_s = min(self._timeout_s, patience_s)
        new_wire = self.blocking.wire_factory(url, patience_s, patience_s)
        return Node(address, shown, new_wire, lambda wire: (0, 0), greet)

    def _node(
        self, address: Address, url: str, shown: str, connect_s: float, greet: Check, beside: Beside | None = None
    ) -> Node:
        new_wire = self.blocking.wire_factory(url, self._timeout_s, connect_s)
        return Node(address, shown, new_wire, lambda wire: check_server(wire, shown, self._durability), greet, beside)


def _welcome(wire: Wire) -> None:
    """Any connection will do."""
    del wire
