"""Routers select the server of a key: a standalone server, a master watched by Sentinels, or a node of a cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from math import inf

from rmq._io.reports import reporter
from rmq._io.wire import NOTHING, ReplyError, WireBrokenError
from rmq._model.times import monotonic_s
from rmq._servers.cluster_map import Redirect
from rmq._servers.node import Node, NodeFactory
from rmq._servers.urls import Address

log = reporter("rmq.connections")

LOOK_S = 2.0
"""Interval at which a server is asked for its role, in seconds, since a replica does not refuse reads."""

ANSWER_S = 0.5
"""Seconds to wait for the answer."""

DOUBT_S = 0.1
"""Minimum time between two readings of the topology after a redirection or a failure, in seconds."""


class Router(ABC):
    """Selects the server of a key; here one server at a time, which holds all keys. Thread-safe.

    Only `refresh` and `route` may wait for the network; the other methods use the topology that these have read.

    Args:
        factory: Factory of nodes.
        every_s: Interval at which the topology is read if nothing is wrong, in seconds.
    """

    multi_slot_scripts = True
    """Whether one script may use several slots of a topic; False if their keys may be on different nodes."""
    sharded_hints = False
    """Whether wakeups use sharded pub/sub, which sends them only to the node of the slot."""

    def __init__(self, factory: NodeFactory, every_s: float) -> None:
        self._factory, self._every_s = factory, every_s
        self._lock = factory.runtime.lock()
        self._invalidated = self._closed = False
        self._node: Node | None = None
        self._read_s = self._next_s = -inf
        """Times of the last and the next reading, on the clock of `monotonic_s`."""
        self.topology_version = 0
        """Number that changes whenever keys have moved to another node."""

    @property
    def unresponsive(self) -> Collection[Node]:
        """The servers that do not answer at the moment; always empty if there is only one server."""
        return self._factory.unresponsive

    @abstractmethod
    def _read(self, invalidated: bool) -> None:
        """Read the topology; `invalidated` tells that it seemed to be wrong. Raises the same errors as `refresh`."""

    def masters(self) -> Sequence[Node]:
        """Return all servers that hold keys."""
        return () if self._node is None else (self._node,)

    def route(self, key: str | bytes) -> Node:
        """Return the server of a key by a topology that is not old; raises as `refresh` and `node_for`."""
        if monotonic_s() >= self._next_s:
            self.refresh()
        return self._node or self.node_for(key)

    def node_for(self, key: str | bytes) -> Node:
        """Return the server of a key.

        Raises:
            WireBrokenError: No server is known.
        """
        if self._node is None:
            raise WireBrokenError(f"no master is known for key {key!r:.80}")
        return self._node

    def node_at(self, address: Address) -> Node:
        """Return the server at an address that another server named."""
        return self.node_for(str(address))

    def wakeup_node(self, channel: str | bytes) -> Node:
        """Return the server of a pub/sub channel; raises as `node_for`."""
        return self.node_for(channel)

    def refresh(self) -> None:
        """Read the topology if it is unknown, invalidated or old.

        Raises:
            WireBrokenError: It is unknown, and no server answers.
        """
        if monotonic_s() < self._next_s or not self._lock.acquire(blocking=not self.masters()):
            return
        try:
            self._read_if_due()
        finally:
            self._lock.release()

    def _read_if_due(self) -> None:
        """Read the topology, unless another thread has just done so; `_lock` is held."""
        if monotonic_s() < self._next_s:
            return
        invalidated, self._invalidated = self._invalidated, False
        try:
            self._read(invalidated)
        finally:
            self._read_s = monotonic_s()
            self._schedule()

    def _schedule(self) -> None:
        """Set the time of the next reading."""
        self._next_s = self._read_s + self._every_s if self.masters() else -inf
        if self._invalidated:  # possibly by another thread just now
            self._next_s = min(self._next_s, self._read_s + DOUBT_S)

    def invalidate(self) -> None:
        """Read the topology again before the next call, because it or a server seems to be wrong."""
        self._invalidated = True
        self._next_s = min(self._next_s, self._read_s + DOUBT_S)

    def _replace(self, node: Node) -> None:
        """Use this server as the master from now on."""
        old, self._node = self._node, node
        self.topology_version += 1
        if old is not None:
            old.close()
        if self._closed:
            self.close()

    def look_seldom(self, pause_s: float) -> None:
        """Set the minimum seconds between checks of a standalone server's role; 0 for the default.

        For clients that write regularly: a server that has become a replica refuses their writes sooner. Sentinels and
        the map of a cluster are read as often as before.
        """
        del pause_s

    def learn(self, redirects: Iterable[Redirect]) -> None:
        """Update the topology from redirections of servers."""
        del redirects

    def close(self) -> None:
        """Close all idle connections."""
        self._closed = True
        for node in self.masters():
            node.close()


class StandaloneRouter(Router):
    """A `Router` to the server behind a host name.

    The name may be moved to another server while the old one continues as a replica, with open connections to it. So
    the server is asked for its role regularly, and the connections to a replica are replaced by new ones. If the name
    still resolves to a replica, that is used: it answers reads and refuses writes.

    Args:
        nodes: Factory of nodes.
    """

    def __init__(self, nodes: NodeFactory) -> None:
        super().__init__(nodes, LOOK_S)
        self._node = nodes.only()
        self._replica = False
        self._read_s = monotonic_s()
        self._next_s = self._read_s + LOOK_S

    def look_seldom(self, pause_s: float) -> None:
        self._every_s = max(LOOK_S, pause_s)
        self._schedule()

    def _read(self, invalidated: bool) -> None:
        replica = self._is_replica()
        if replica and not self._replica:
            log.warning("Redis at %s has become a replica; reconnecting", self._factory.shown)
        if replica or (replica is None and invalidated):
            self._replace(self._factory.only())
        if replica is not None:
            self._replica = replica

    def _is_replica(self) -> bool | None:
        """Ask for the role over an idle connection; return `None` without a connection or a quick answer.

        If the server does not answer, the next call reports that.
        """
        try:
            info = self.node_for("").ask_soon(ANSWER_S, "INFO", "replication")
        except ReplyError:  # no permission for INFO
            return None
        return None if info is NOTHING else b"\nrole:slave" in info
