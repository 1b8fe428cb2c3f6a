"""One Redis server: its idle connections, and the check that it is fit for RMQ."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar

from rmq.blocking import Blocking
from rmq.clock import monotonic_s
from rmq.durability import Durability
from rmq.errors import RedisUnavailableError, RmqError
from rmq.exchange import not_executed
from rmq.topologies.server_check import Version, check_server
from rmq.urls import Address, RedisUrl
from rmq.wire import ReplyError, Wire, WireBrokenError

CONNECT_S = 2.0
"""Where there are other servers to turn to, nobody waits longer than this for a connection."""

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

    Attributes:
        failed_s: When it last could not be reached, on the monotonic clock; 0 for never.
        version: Its version, once checked.
    """

    def __init__(
        self, address: Address, shown: str, new_wire: Callable[[], Wire], check: Callable[[Wire], Version], greet: Check
    ) -> None:
        self.address = address
        self.failed_s = 0.0
        self.version: Version | None = None
        self._shown = shown
        self._new_wire = new_wire
        self._check = check
        self._greet = greet
        self._idle: deque[Wire] = deque()
        self._checked = False
        self._closed = False

    def checkout(self) -> Wire:
        """Return a connection of one's own, connected; `give_back` or `close` it when done.

        Raises:
            WireBrokenError: The server can't be reached.
            RedisUnavailableError: It refuses us: wrong password, no such database.
            UnsafeRedisError: It would lose messages.
        """
        try:
            wire = self._idle_or_new()
            try:
                if not self._checked:
                    self.version = self._guarded(self._check, wire)
                    self._checked = True
            except BaseException:
                wire.close()
                raise
        except WireBrokenError:
            self.failed_s = monotonic_s()
            raise
        return wire

    def give_back(self, wire: Wire) -> None:
        """Keep a connection for the next one; all its replies must have been read."""
        self._idle.append(wire)
        if self._closed:  # while this one was out
            self.close()

    def close(self) -> None:
        """Close all idle connections, and those under way when they are given back."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _idle_or_new(self) -> Wire:
        while True:
            try:
                wire = self._idle.pop()
            except IndexError:
                return self._connected()
            try:
                if not wire.can_read():  # an idle connection has nothing to say, unless it was cut
                    return wire
            except WireBrokenError:
                pass
            wire.close()

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
        self._url = url
        self._timeout_s = timeout_s
        self._durability = durability

    def only(self) -> Node:
        """Return the only server of a standalone URL."""
        return self._node(Address("", 0), self._url.url, self._url.shown, self._timeout_s, _welcome)

    def server(self, address: Address, greet: Check | None = None) -> Node:
        """Return a data server of a Sentinel or cluster URL."""
        url, connect_s = self._url.server_url(address), min(self._timeout_s, CONNECT_S)
        return self._node(address, url, str(address), connect_s, greet or _welcome)

    def sentinel(self, address: Address) -> Node:
        """Return a Sentinel; it is no data server and not checked."""
        timeout_s = min(self._timeout_s, CONNECT_S)
        new_wire = self.blocking.wire_factory(self._url.sentinel_url(address), timeout_s, timeout_s)
        return Node(address, f"Sentinel {address}", new_wire, lambda wire: (0, 0), _welcome)

    def _node(self, address: Address, url: str, shown: str, connect_s: float, greet: Check) -> Node:
        new_wire = self.blocking.wire_factory(url, self._timeout_s, connect_s)
        return Node(address, shown, new_wire, lambda wire: check_server(wire, shown, self._durability), greet)


def _welcome(wire: Wire) -> None:
    """Any connection will do."""
    del wire
