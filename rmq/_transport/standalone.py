"""One server: nothing to find out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rmq._transport.cluster_map import Redirect
from rmq._transport.node import Node, NodeFactory
from rmq._transport.urls import Address


class StandaloneRouter:
    """A `Router` to one server.

    Args:
        nodes: Makes it.
    """

    multi_slot_scripts = True
    sharded_hints = False
    silent: Collection[Node] = ()
    layout = 0

    def __init__(self, nodes: NodeFactory) -> None:
        self._node = nodes.only()

    def refresh(self) -> None:
        """Do nothing."""

    def node_for(self, key: str | bytes) -> Node:
        """Return the server."""
        del key
        return self._node

    def node_at(self, address: Address) -> Node:
        """Return the server."""
        del address
        return self._node

    def hint_node(self, channel: str | bytes) -> Node:
        """Return the server."""
        del channel
        return self._node

    def masters(self) -> Sequence[Node]:
        """Return the server."""
        return (self._node,)

    def doubt(self) -> None:
        """Do nothing: there is no other one."""

    def learn(self, redirects: Iterable[Redirect]) -> None:
        """Do nothing: there is no other one."""
        del redirects

    def close(self) -> None:
        """Close all idle connections."""
        self._node.close()
