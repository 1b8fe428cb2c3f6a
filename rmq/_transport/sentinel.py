"""A master that Sentinels watch: they say who it is now.

Source: Redis documentation, "Guidelines for Redis clients with support for Redis Sentinel".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rmq._io.wire import ReplyError, Wire, WireBrokenError
from rmq._model.reports import reporter
from rmq._model.times import monotonic_s
from rmq._transport.node import CONNECT_S, Node, NodeFactory
from rmq._transport.panel import DOUBT_REST_S, QUICK_S, REST_S, Panel
from rmq._transport.standalone import OneMaster
from rmq._transport.urls import Address, RedisUrl, told_address
from rmq.errors import RedisUnavailableError

log = reporter("rmq.connections")

REFRESH_S = 5.0
"""So often the Sentinels are asked even if all is well: an old master that they have given up may go on answering."""

DOUBT_S = 0.1
"""Shortest time between two questions when something is wrong."""


class SentinelRouter(OneMaster):
    """A `Router` to the master of one service.

    Args:
        url: The Sentinels and the service.
        nodes: Makes nodes.
    """

    def __init__(self, url: RedisUrl, nodes: NodeFactory) -> None:
        self._url = url
        self._nodes = nodes
        self._sentinels = Panel(nodes.sentinel)
        nodes.sentinel(url.hosts[0], CONNECT_S)  # refuses a URL with an unknown option now, not with the first call
        self._master: Node | None = None
        self._lock = nodes.blocking.lock()
        self._doubted = False
        self._asked_s = float("-inf")
        self._closed = False

    def refresh(self) -> None:
        if not self._ask_now() or not self._lock.acquire(blocking=self._master is None):
            return
        try:
            if self._ask_now():
                self._ask()
        finally:
            self._lock.release()

    def node_for(self, key: str | bytes) -> Node:
        del key
        if self._master is None:
            raise WireBrokenError(f"no Sentinel knows a master of {self._url.service}")
        return self._master

    def masters(self) -> Sequence[Node]:
        return () if self._master is None else (self._master,)

    def doubt(self) -> None:
        self._doubted = True

    def close(self) -> None:
        self._closed = True
        self._sentinels.close()
        for node in self.masters():
            node.close()

    def _ask_now(self) -> bool:
        if self._master is None:
            return True
        return monotonic_s() - self._asked_s > (DOUBT_S if self._doubted else REFRESH_S)

    def _ask(self) -> None:
        """Ask one Sentinel after the other until one names a master that is one.

        A Sentinel may have been cut off from the others, and name a master of long ago.
        """
        doubted, self._doubted = self._doubted, False
        named: list[Address] = []
        troubles: list[str] = []
        rest_s = 0.0 if self._master is None else DOUBT_REST_S if doubted else REST_S
        try:
            for sentinel, address in self._sentinels.ask(self._url.hosts, self._answer_of, rest_s=rest_s):
                trouble = "" if self._trusted(address, doubted) else self._trouble_with(address, named)
                if not trouble:
                    self._set_master(address)
                    return
                named.append(address)
                self._sentinels.distrust(sentinel)
                troubles.append(f"{sentinel} names {address}: {trouble}")
        finally:
            self._asked_s = monotonic_s()
        troubles += self._sentinels.troubles
        if named:  # what most of them say
            self._set_master(max(named, key=named.count))
        elif self._master is None:
            raise WireBrokenError(f"no Sentinel names a master of {self._url.service} ({'; '.join(troubles)})")
        elif troubles:
            log.warning("no Sentinel answers; going on with the master at %s: %s", self._master.address, troubles)

    def _trusted(self, address: Address, doubted: bool) -> bool:
        """Return whether a server is the one that we work with, and nothing is wrong with it."""
        return not doubted and self._master is not None and self._master.address == address

    def _trouble_with(self, address: Address, named: Sequence[Address]) -> str:
        """Look whether a server can be reached and is a master; return why not."""
        if address in named:
            return "looked at already"
        server = self._nodes.informant(address, QUICK_S, _require_master)
        try:
            server.give_back(server.checkout())
        except (WireBrokenError, RedisUnavailableError) as error:
            return str(error)
        finally:
            server.close()
        return ""

    def _answer_of(self, sentinel: Node) -> Address:
        reply = sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._url.service)
        if reply is None:
            raise WireBrokenError(f"it watches no master named {self._url.service}")
        try:
            host, port = reply
            return told_address(host, port)
        except (TypeError, ValueError) as error:
            raise WireBrokenError(f"it names a master with an invalid address: {error!s:.200}") from None

    def _set_master(self, address: Address) -> None:
        old = self._master
        if old is not None and old.address == address:
            return
        self._master = self._nodes.server(address, _require_master)
        self.layout += 1
        if old is not None:
            log.warning("the master of %s is now at %s, no longer at %s", self._url.service, address, old.address)
            old.close()
        if self._closed:
            self.close()


def _require_master(wire: Wire) -> None:
    """Refuse a connection to a server that has become a replica: it would answer reads with old data."""
    try:
        role: list[Any] = wire.call("ROLE")
    except ReplyError as error:
        if str(error).startswith("NOPERM"):
            return
        raise
    if role[0] != b"master":
        raise WireBrokenError("this server is a replica now")
