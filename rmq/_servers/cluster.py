"""A Redis Cluster: each hash slot is on one of several masters, and may move to another one.

The router keeps a slot map, which it reads every `REFRESH_S`, and soon after a redirection or a failure. Calls continue
with the old map while a new one is read; only the first reading blocks them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from rmq._io.backend import Event
from rmq._io.reports import reporter
from rmq._io.wire import ReplyError, WireBrokenError, WireTimeoutError
from rmq._model.retry import draw_jitter
from rmq._model.times import monotonic_s
from rmq._servers.cluster_map import Redirect, SlotMap, hash_slot, parse_slot_map
from rmq._servers.nodes import Node, NodeFactory, Router
from rmq._servers.server_check import SHARDED_PUBLISH, not_executed
from rmq._servers.urls import Address, RedisUrl
from rmq.errors import InvalidUrlError, RedisUnavailableError, RmqError

log = reporter("rmq.connections")

REFRESH_S = 30.0
"""Interval at which the slot map is read if nothing is wrong, in seconds."""

READ_PATIENCE_S = 0.25
"""Seconds that a call with an old map waits for a new one; short, since the node asked for it may be unresponsive."""

FIRST_PATIENCE_S = 0.5
"""Seconds to wait for one node before asking another for the first map or its commands."""


class ClusterRouter(Router):
    """A `Router` to all masters of a cluster.

    Args:
        url: Some nodes of the cluster, from which the others are discovered.
        nodes: Factory of nodes.
    """

    multi_slot_scripts = False

    def __init__(self, url: RedisUrl, nodes: NodeFactory) -> None:
        super().__init__(nodes, REFRESH_S)
        self._url = url
        self._nodes: dict[Address, Node] = {}
        self._map = SlotMap()
        self._nodes_lock = threading.Lock()
        self._hint_address: Address | None = None
        self._hint_chosen_s = 0.0
        self.node_at(url.hosts[0])  # raises for an unknown option of the URL now, not at the first call

    def refresh(self) -> None:
        if not self._map.masters:
            super().refresh()
        elif monotonic_s() >= self._next_s and self._lock.acquire(blocking=False):
            read = self._factory.runtime.event()
            try:
                self._factory.runtime.job(lambda: self._read_beside(read), "rmq-slot-map").start()
            except RuntimeError:  # no thread can be started; the lock must still be released
                self._read_beside(read)
            read.wait(READ_PATIENCE_S)

    def node_for(self, key: str | bytes) -> Node:
        number = hash_slot(key)
        address = self._map.owners[number]
        if address is None:
            raise WireBrokenError(f"no node of the cluster serves hash slot {number}")
        return self.node_at(address)

    def node_at(self, address: Address) -> Node:
        node = self._nodes.get(address)
        if node is None:
            with self._nodes_lock:
                node = self._nodes.setdefault(address, self._factory.member(address))
        return node

    def wakeup_node(self, channel: str | bytes) -> Node:
        """Return the node of the channel; without sharded pub/sub any master, and the same one while it works."""
        if self.sharded_hints:
            return self.node_for(channel)
        masters = self._map.masters
        if not masters:
            raise WireBrokenError("no node of the cluster is known")
        chosen = self._hint_address
        if chosen is None or chosen not in masters or self.node_at(chosen).failed_s > self._hint_chosen_s:
            chosen = min(masters, key=lambda address: (self.node_at(address).failed_s, draw_jitter()))
            self._hint_address, self._hint_chosen_s = chosen, monotonic_s()
        return self.node_at(chosen)

    def masters(self) -> Sequence[Node]:
        return [self.node_at(address) for address in self._map.masters]

    def learn(self, redirects: Iterable[Redirect]) -> None:
        """Correct the map after MOVED, and read it again soon, since more hash slots have usually moved."""
        for redirect in redirects:
            if self._map.owners[redirect.hash_slot] != redirect.address:
                self._map = self._map.moved(redirect)
                self.topology_version += 1
            self.invalidate()

    def close(self) -> None:
        self._closed = True
        for node in list(self._nodes.values()):
            node.close()

    def _read_beside(self, read: Event) -> None:
        """Read the slot map in the background while calls use the old one."""
        try:
            self._read_if_due()
        except RmqError as error:
            log.warning("the slot map of the cluster could not be read: %s", error)
        finally:
            self._lock.release()
            read.set()

    def _read(self, invalidated: bool) -> None:
        """Read the map from the first node that answers. Nodes that failed recently are asked last."""
        del invalidated
        problems, refusal = list[str](), None
        known = dict.fromkeys((*self._map.masters, *self._map.replicas, *self._url.hosts))
        nodes = {address: self.node_at(address) for address in known}
        patience_s = FIRST_PATIENCE_S if len(known) > 1 else None
        for address in sorted(known, key=lambda each: (nodes[each].unresponsive, nodes[each].failed_s, draw_jitter())):
            try:
                slot_map = self._map_of(nodes[address], patience_s)
            except WireBrokenError as error:
                nodes[address].failed_s = monotonic_s()
                if isinstance(error, WireTimeoutError):
                    nodes[address].mark_unresponsive()
                problems.append(f"{address}: {error}")
            except RedisUnavailableError as error:
                refusal = error
            else:
                self._take(slot_map)
                return
        if refusal or not self._map.masters:
            raise refusal or WireBrokenError(f"no node of the cluster answers ({'; '.join(problems)})")

    def _map_of(self, node: Node, patience_s: float | None) -> SlotMap:
        try:
            with node.using(node.checkout(patience_s)) as wire:
                wire.send_command("CLUSTER", "SLOTS")
                if patience_s is not None and not wire.can_read(patience_s):
                    raise WireTimeoutError(f"no reply within {patience_s:g} s")
                reply = wire.read()
        except ReplyError as error:
            if "cluster support disabled" in str(error):
                raise InvalidUrlError(f"Redis at {node.address} is not a cluster; use redis://{node.address}") from None
            if not_executed(str(error)):  # for example it is loading its data: ask another node
                raise WireBrokenError(str(error)) from None
            raise RedisUnavailableError(f"Redis at {node.address} refused CLUSTER SLOTS: {error}") from error
        if not reply:
            raise WireBrokenError("the node has not joined a cluster yet")
        try:
            return parse_slot_map(reply, node.address)
        except ValueError as error:
            raise WireBrokenError(f"the reply to CLUSTER SLOTS is invalid: {error!s:.200}") from None

    def _take(self, slot_map: SlotMap) -> None:
        if not self.topology_version:  # the first map
            self.sharded_hints = self._all_sharded(slot_map)
        if slot_map == self._map:
            return
        gone = self._nodes.keys() - {*slot_map.masters, *slot_map.replicas, *self._url.hosts}
        self._map = slot_map
        self.topology_version += 1
        for address in gone:
            self._nodes.pop(address).close()
        if self._closed:
            self.close()

    def _all_sharded(self, slot_map: SlotMap) -> bool:
        """Return whether all masters that answer soon support sharded pub/sub."""
        for address in slot_map.masters:
            node = self.node_at(address)
            try:
                node.give_back(node.checkout(FIRST_PATIENCE_S))
            except WireBrokenError as error:
                log.warning("the cluster's node at %s can't be reached: %s", address, error)
        known = [node.commands for node in map(self.node_at, slot_map.masters) if node.commands is not None]
        return bool(known) and all(SHARDED_PUBLISH in commands for commands in known)
