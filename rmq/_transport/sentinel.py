"""A master that Sentinels watch: they say who it is now.

Source: Redis documentation, "Guidelines for Redis clients with support for Redis Sentinel".
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from rmq.clock import monotonic_s
from rmq.slot_map import Redirect
from rmq.topologies.node import Node, NodeFactory
from rmq.urls import Address, RedisUrl
from rmq.wire import ReplyError, Wire, WireBrokenError

log = logging.getLogger("rmq.connections")

REFRESH_S = 5.0
"""So often the Sentinels are asked even if all is well: an old master that they have given up may go on answering."""

DOUBT_S = 0.1
"""Shortest time between two questions when something is wrong."""


class SentinelRouter:
    """A `Router` to the master of one service.

    Args:
        url: The Sentinels and the service.
        nodes: Makes nodes.
    """

    multi_slot_scripts = True
    sharded_hints = False

    def __init__(self, url: RedisUrl, nodes: NodeFactory) -> None:
        self._url = url
        self._nodes = nodes
        self._sentinels = [nodes.sentinel(address) for address in url.hosts]
        self._master: Node | None = None
        self._lock = nodes.blocking.lock()
        self._doubted = False
        self._asked_s = float("-inf")
        self._closed = False
        self.layout = 0

    def refresh(self) -> None:
        """Ask the Sentinels who the master is, where it is unknown, in doubt, or was asked long ago."""
        if not self._ask_now() or not self._lock.acquire(blocking=self._master is None):
            return
        try:
            if self._ask_now():
                self._ask()
        finally:
            self._lock.release()

    def node_for(self, key: str | bytes) -> Node:
        """Return the master."""
        del key
        if self._master is None:
            raise WireBrokenError(f"no Sentinel knows a master of {self._url.service}")
        return self._master

    def node_at(self, address: Address) -> Node:
        """Return the master."""
        return self.node_for(str(address))

    def hint_node(self, channel: str | bytes) -> Node:
        """Return the master."""
        return self.node_for(channel)

    def masters(self) -> Sequence[Node]:
        """Return the master."""
        return () if self._master is None else (self._master,)

    def doubt(self) -> None:
        """Ask the Sentinels before the next call."""
        self._doubted = True

    def learn(self, redirects: Iterable[Redirect]) -> None:
        """Do nothing: a master does not redirect."""
        del redirects

    def close(self) -> None:
        """Close all idle connections."""
        self._closed = True
        for node in (*self._sentinels, *self.masters()):
            node.close()

    def _ask_now(self) -> bool:
        if self._master is None:
            return True
        return monotonic_s() - self._asked_s > (DOUBT_S if self._doubted else REFRESH_S)

    def _ask(self) -> None:
        """Ask one Sentinel after the other, those that failed last at the end."""
        troubles: list[str] = []
        self._doubted = False
        for sentinel in sorted(self._sentinels, key=lambda node: node.failed_s):
            try:
                address = self._answer_of(sentinel)
            except (WireBrokenError, ReplyError) as error:
                sentinel.failed_s = monotonic_s()
                troubles.append(f"{sentinel.address}: {error}")
                continue
            self._asked_s = monotonic_s()
            self._set_master(address)
            return
        self._asked_s = monotonic_s()
        if self._master is None:
            raise WireBrokenError(f"no Sentinel names a master of {self._url.service} ({'; '.join(troubles)})")
        log.warning("no Sentinel answers; going on with the master at %s: %s", self._master.address, troubles)

    def _answer_of(self, sentinel: Node) -> Address:
        wire = sentinel.checkout()
        try:
            reply: Any = wire.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._url.service)
        except BaseException:
            wire.close()
            raise
        sentinel.give_back(wire)
        if reply is None:
            raise WireBrokenError(f"it watches no master named {self._url.service}")
        return Address(reply[0].decode(), int(reply[1]))

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
