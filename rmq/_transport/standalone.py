"""One server: nothing to find out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence

from rmq._transport.cluster_map import Redirect
from rmq._transport.node import Node
from rmq._transport.urls import Address


class OneMaster(ABC):
    """A `Router` to one server at a time, which holds all keys and redirects nobody."""

    multi_slot_scripts = True
    sharded_hints = False
    silent: Collection[Node] = ()
    layout = 0

    @abstractmethod
    def node_for(self, key: str | bytes) -> Node: ...

    def node_at(self, address: Address) -> Node:
        return self.node_for(str(address))

    def hint_node(self, channel: str | bytes) -> Node:
        return self.node_for(channel)

    def learn(self, redirects: Iterable[Redirect]) -> None:
        del redirects


class StandaloneRouter(OneMaster):
    """A `Router` to one server, always the same."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def refresh(self) -> None: ...

    def node_for(self, key: str | bytes) -> Node:
        del key
        return self._node

    def masters(self) -> Sequence[Node]:
        return (self._node,)

    def doubt(self) -> None: ...

    def close(self) -> None:
        self._node.close()
