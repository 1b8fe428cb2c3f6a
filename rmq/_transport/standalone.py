"""A standalone server, behind one host name."""

from __future__ import annotations

from rmq._io.reports import reporter
from rmq._io.wire import NOTHING, ReplyError
from rmq._model.times import monotonic_s
from rmq._transport.node import NodeFactory
from rmq._transport.router import Router

log = reporter("rmq.connections")

LOOK_S = 2.0
"""Interval at which a server is asked for its role, in seconds, since a replica does not refuse reads."""

ANSWER_S = 0.5
"""Seconds to wait for the answer."""


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
        self._next_s = self._read_s + self._every_s

    def _read(self, invalidated: bool) -> None:
        replica = self._is_replica()
        if replica and not self._replica:
            log.warning("Redis at %s has become a replica; reconnecting", self._factory.shown)
        if replica or (replica is None and invalidated):
            old, self._node = self.node_for(""), self._factory.only()
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
            info = self.node_for("").ask_soon(ANSWER_S, "INFO", "replication")
        except ReplyError:  # no permission for INFO
            return None
        return None if info is NOTHING else b"\nrole:slave" in info
