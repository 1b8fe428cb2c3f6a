"""What is behind a URL: one server, a master that Sentinels watch, or a Redis Cluster."""

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
    """Knows which server holds which keys. Thread-safe.

    Only `refresh` may wait for the network; the others answer from what it has learnt.
    """

    multi_slot_scripts: bool
    """Whether one script may touch several slots of a topic: not where their keys may lie on different nodes."""

    @property
    def unresponsive(self) -> Collection[Node]:
        """The servers that do not answer at the moment; none where there is only one."""
        ...

    @property
    def sharded_hints(self) -> bool:
        """Whether hints go by sharded pub/sub: to the node that holds the slot, and not to all."""
        ...

    @property
    def topology_version(self) -> int:
        """Changes whenever keys have moved to another node."""
        ...

    def refresh(self) -> None:
        """Learn the layout where it is unknown, in doubt, or old.

        Raises:
            WireBrokenError: It is unknown, and nobody answers.
        """
        ...

    def node_for(self, key: str | bytes) -> Node:
        """Return the server that holds a key.

        Raises:
            WireBrokenError: None is known.
        """
        ...

    def node_at(self, address: Address) -> Node:
        """Return the server at an address that another one named."""
        ...

    def wakeup_node(self, channel: str | bytes) -> Node:
        """Return the server to hear a channel from; raises as `node_for`."""
        ...

    def masters(self) -> Sequence[Node]:
        """Return all servers that hold keys."""
        ...

    def invalidate(self) -> None:
        """Note that something is wrong with the layout or with a server: look before the next call."""
        ...

    def look_seldom(self, pause_s: float) -> None:
        """Ask a server that is in no doubt for its role no more often than this, in seconds; 0 for the usual pause.

        For clients whose own writes are refused sooner than that where it has become a replica. Sentinels, and the map
        of a cluster, are read as often as before.
        """
        ...

    def learn(self, redirects: Iterable[Redirect]) -> None:
        """Take what servers said about where keys are now."""
        ...

    def close(self) -> None:
        """Close all idle connections."""
        ...


def make_router(url: RedisUrl, timeout_s: float, durability: Durability, runtime: Runtime) -> Router:
    """Return the router for a URL; it connects at its first use. Takes what `Connections` takes.

    Raises:
        InvalidUrlError: redis-py can't use the URL.
    """
    nodes = NodeFactory(url, timeout_s, durability, runtime)
    if url.topology is Topology.CLUSTER:
        return ClusterRouter(url, nodes)
    return SentinelRouter(url, nodes) if url.topology is Topology.SENTINEL else StandaloneRouter(nodes)
