"""Routers select the server of a key: a standalone server, a master watched by Sentinels, or a node of a cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from rmq._io.backend import Runtime
from rmq._transport.cluster import ClusterRouter
from rmq._transport.cluster_map import Redirect
from rmq._transport.durability import Durability
from rmq._transport.node import Node, NodeFactory
from rmq._transport.sentinel import SentinelRouter
from rmq._transport.standalone import StandaloneRouter
from rmq._transport.urls import Address, RedisUrl, Topology


class Router(Protocol):
    """Selects the server of a key. Thread-safe.

    Only `refresh` may wait for the network; the other methods use the topology that it has read.
    """

    multi_slot_scripts: bool
    """Whether one script may use several slots of a topic; False if their keys may be on different nodes."""

    @property
    def unresponsive(self) -> Collection[Node]:
        """The servers that do not answer at the moment; always empty if there is only one server."""
        ...

    @property
    def sharded_hints(self) -> bool:
        """Whether wakeups use sharded pub/sub, which sends them only to the node of the slot."""
        ...

    @property
    def topology_version(self) -> int:
        """Number that changes whenever keys have moved to another node."""
        ...

    def refresh(self) -> None:
        """Read the topology if it is unknown, invalidated or old.

        Raises:
            WireBrokenError: It is unknown, and no server answers.
        """
        ...

    def node_for(self, key: str | bytes) -> Node:
        """Return the server of a key.

        Raises:
            WireBrokenError: No server is known.
        """
        ...

    def node_at(self, address: Address) -> Node:
        """Return the server at an address that another server named."""
        ...

    def wakeup_node(self, channel: str | bytes) -> Node:
        """Return the server of a pub/sub channel; raises as `node_for`."""
        ...

    def masters(self) -> Sequence[Node]:
        """Return all servers that hold keys."""
        ...

    def invalidate(self) -> None:
        """Read the topology again before the next call, because it or a server seems to be wrong."""
        ...

    def look_seldom(self, pause_s: float) -> None:
        """Set the minimum seconds between checks of a standalone server's role; 0 for the default.

        For clients that write regularly: a server that has become a replica refuses their writes sooner. Sentinels and
        the map of a cluster are read as often as before.
        """
        ...

    def learn(self, redirects: Iterable[Redirect]) -> None:
        """Update the topology from redirections of servers."""
        ...

    def close(self) -> None:
        """Close all idle connections."""
        ...


def make_router(url: RedisUrl, timeout_s: float, durability: Durability, runtime: Runtime) -> Router:
    """Return the router for a URL. It connects at its first use. The arguments are those of `Connections`.

    Raises:
        InvalidUrlError: redis-py can't use the URL.
    """
    nodes = NodeFactory(url, timeout_s, durability, runtime)
    if url.topology is Topology.CLUSTER:
        return ClusterRouter(url, nodes)
    return SentinelRouter(url, nodes) if url.topology is Topology.SENTINEL else StandaloneRouter(nodes)
