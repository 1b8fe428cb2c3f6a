"""A standalone server, behind one host name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence

from rmq._io.reports import reporter
from rmq._io.wire import NOTHING, ReplyError
from rmq._model.times import monotonic_s
from rmq._transport.cluster_map import Redirect
from rmq._transport.node import Node, NodeFactory
from rmq._transport.urls import Address

log = reporter("rmq.connections")

LOOK_S = 2.0
"""Interval at which a server is asked for its role, in seconds, since a replica does not refuse reads."""

DOUBT_S = 0.1
"""Minimum time between two such questions after a failure, in seconds."""

ANSWER_S = 0.5
"""Seconds to wait for the answer."""


class OneMaster(ABC):
    """A `Router` to one server at a time, which holds all keys and sends no redirections."""

    multi_slot_scripts = True
    sharded_hints = False
    unresponsive: Collection[Node] = ()
    topology_version = 0

    @abstractmethod
    def node_for(self, key: str | bytes) -> Node: ...

    def node_at(self, address: Address) -> Node:
        return self.node_for(str(address))

    def wakeup_node(self, channel: str | bytes) -> Node:
        return self.node_for(channel)

    def learn(self, redirects: Iterable[Redirect]) -> None:
        del redirects

    def look_seldom(self, pause_s: float) -> None:
        del pause_s


class StandaloneRouter(OneMaster):
    """A `Router` to the server behind a host name.

    The name may be moved to another server while the old one continues as a replica, with open connections to it. So
    the server is asked for its role regularly, and the connections to a replica are replaced by new ones. If the name
    still resolves to a replica, that is used: it answers reads and refuses writes.

    Args:
        nodes: Factory of nodes.
    """

    def __init__(self, nodes: NodeFactory) -> None:
        self._nodes = nodes
        self._node = nodes.only()
        self._lock = nodes.runtime.lock()
        self._invalidated = self._replica = self._closed = False
        self._looked_s, self._pause_s = monotonic_s(), 0.0

    def refresh(self) -> None:
        if not self._look_now() or not self._lock.acquire(blocking=False):
            return
        try:
            if self._look_now():
                self._look()
        finally:
            self._lock.release()

    def node_for(self, key: str | bytes) -> Node:
        del key
        return self._node

    def masters(self) -> Sequence[Node]:
        return (self._node,)

    def invalidate(self) -> None:
        self._invalidated = True

    def look_seldom(self, pause_s: float) -> None:
        self._pause_s = pause_s

    def close(self) -> None:
        self._closed = True
        self._node.close()

    def _look_now(self) -> bool:
        return monotonic_s() - self._looked_s > (DOUBT_S if self._invalidated else max(LOOK_S, self._pause_s))

    def _look(self) -> None:
        invalidated, self._invalidated = self._invalidated, False
        replica = self._is_replica()
        self._looked_s = monotonic_s()
        if replica and not self._replica:
            log.warning("Redis at %s has become a replica; reconnecting", self._nodes.shown)
        if replica or (replica is None and invalidated):
            old, self._node = self._node, self._nodes.only()
            self.topology_version += 1
            old.close()
            if self._closed:
                self.close()
        if replica is not None:
            self._replica = replica

    def _is_replica(self) -> bool | None:
        """Ask for the role over an idle connection; return `None` without a connection or a quick answer.

        If the server does not answer, the next call reports that.
        """
        try:
            info = self._node.ask_soon(ANSWER_S, "INFO", "replication")
        except ReplyError:  # no permission for INFO
            return None
        return None if info is NOTHING else b"\nrole:slave" in info
