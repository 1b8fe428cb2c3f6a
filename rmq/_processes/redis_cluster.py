"""Creates a Redis Cluster from servers, as `redis-cli --cluster create` does, but safe to repeat.

    python -m rmq._processes.redis_cluster host:port,host:port,host:port [replica:port,replica:port,replica:port]

It resumes an interrupted set-up, and waits for servers that do not answer yet or are loading their data.

`next_steps` decides, without I/O, which commands are missing: from the views of all nodes it computes those that can be
sent now. Afterwards the nodes are queried again. It therefore copes with failovers, too.

Source: Redis Cluster specification; CLUSTER NODES, CLUSTER INFO, CLUSTER MEET, ADDSLOTS, REPLICATE, SET-CONFIG-EPOCH.
"""

from __future__ import annotations

import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rmq._io.wire import ReplyError, Wire, WireBrokenError, wire_factory
from rmq._model.workers import from_ranges
from rmq._servers.cluster_map import HASH_SLOTS
from rmq._servers.server_check import not_executed
from rmq._servers.urls import Address
from rmq.errors import RedisUnavailableError

WAIT_S = 30.0
MAIN_WAIT_S = 120.0
"""Timeout under `docker compose up`, seconds: the machine starts all other services at the same time."""

_POLL_S = 0.05
_REPLY_S = 5.0
_QUESTIONS = (("CLUSTER", "NODES"), ("CLUSTER", "INFO"), ("INFO", "replication"))


@dataclass(frozen=True)
class Peer:
    """A line of CLUSTER NODES: one node's knowledge of another, or of itself."""

    id: str
    address: Address  # the host is an IP address
    flags: frozenset[str]  # such as `myself`, `master`, `slave`, `fail?`, `handshake`
    master: str  # id of its master; empty for a master
    connected: bool  # the link to it is up
    slots: frozenset[int]  # hash slots

    @property
    def reached(self) -> bool:
        """True if the link is up and the node is not marked as failing."""
        return self.connected and not self.flags & {"fail", "fail?"}


@dataclass(frozen=True)
class NodeView:
    """One node's view of itself and of the cluster."""

    peers: Mapping[str, Peer]  # by id, including itself, without nodes in handshake
    info: Mapping[str, str]  # CLUSTER INFO
    replication: Mapping[str, str]  # INFO replication

    @property
    def me(self) -> Peer:
        """The node itself."""
        return next(peer for peer in self.peers.values() if "myself" in peer.flags)


@dataclass(frozen=True)
class Step:
    """A command for one node."""

    address: Address
    command: tuple[str | int, ...]


def parse_node(nodes: str, info: str, replication: str) -> NodeView:
    """Parse a node's CLUSTER NODES, CLUSTER INFO and INFO replication."""
    peers = {peer.id: peer for peer in map(_peer, nodes.splitlines()) if "handshake" not in peer.flags}
    return NodeView(peers, _pairs(info), _pairs(replication))


def next_steps(views: Mapping[Address, NodeView], masters: Sequence[Address]) -> list[Step]:
    """Return the commands that can be sent now; empty if no more are needed.

    The hosts of all addresses are the IP addresses by which the nodes meet. The masters share the free hash slots.
    """
    alone = [
        Step(address, ("CLUSTER", "SET-CONFIG-EPOCH", number + 1))
        for number, address in enumerate(masters)
        # Redis accepts it only while a node is alone and has no epoch; connected nodes resolve epochs themselves
        if len(views[address].peers) == 1 and views[address].info.get("cluster_my_epoch", "0") == "0"
    ]
    return [*alone, *_slots(views, masters), *_meetings(views), *_followers(views, masters)]


def missing_parts(views: Mapping[Address, NodeView], replicas: int) -> str:
    """Describe what the cluster lacks; empty if it is complete and each replica has its master's data."""
    ids = {view.me.id for view in views.values()}
    for address, view in views.items():
        if lacking := _trouble(view, ids, replicas):
            return f"{address} {lacking}"
    replication = [item for view in views.values() for item in view.replication.items()]
    following = sum(key.startswith("slave") and "state=online" in value for key, value in replication)
    return f"{following} of {replicas} replicas have their master's data" if following < replicas else ""


def is_busy(views: Mapping[Address, NodeView]) -> bool:
    """Return whether a replica is being sent its master's data, which can take long."""
    return any(view.replication.get("master_sync_in_progress") == "1" for view in views.values())


def foreign_node(views: Mapping[Address, NodeView]) -> str:
    """Describe a node of another cluster that one of these is connected to; empty if there is none."""
    ids = {view.me.id for view in views.values()}
    for address, view in views.items():
        for peer in view.peers.values():
            if peer.id not in ids and peer.connected and not peer.flags & {"fail", "noaddr"}:
                return f"{address} belongs to a cluster with another node, {peer.address}"
    return ""


def _trouble(view: NodeView, ids: set[str], replicas: int) -> str:
    known = ids & view.peers.keys()
    if known != ids:
        return f"knows {len(known)} of {len(ids)} nodes"
    ours = [view.peers[each] for each in known]
    if not all(peer.reached for peer in ours):
        return "does not reach all other nodes"
    if view.info.get("cluster_slots_ok") != str(HASH_SLOTS):
        return f"sees {view.info.get('cluster_slots_ok', '0')} of {HASH_SLOTS} hash slots served"
    if view.info.get("cluster_state") != "ok":
        return "is not ready (cluster_state is not ok)"
    following = sum("slave" in peer.flags for peer in ours)
    if following < replicas:
        return f"sees {following} of {replicas} replicas"
    if "slave" in view.me.flags and view.replication.get("master_link_status") != "up":
        return "has not received its master's data yet"
    return ""


def _slots(views: Mapping[Address, NodeView], masters: Sequence[Address]) -> Iterable[Step]:
    """Give each master the unassigned hash slots of its share."""
    taken = {slot for view in views.values() for peer in view.peers.values() for slot in peer.slots}
    able = [address for address in masters if "master" in views[address].me.flags]
    able = able or [address for address, view in views.items() if "master" in view.me.flags]
    for number, address in enumerate(masters):
        share = range(HASH_SLOTS * number // len(masters), HASH_SLOTS * (number + 1) // len(masters))
        free = [slot for slot in share if slot not in taken]
        if free:
            yield Step(address if address in able else able[0], ("CLUSTER", "ADDSLOTS", *free))


def _meetings(views: Mapping[Address, NodeView]) -> Iterable[Step]:
    """Let each node meet the first one, unless they know each other, and nodes that it knows by an old address."""
    first, its_view = next(iter(views.items()))
    for address, view in views.items():
        if address != first and not (its_view.me.id in view.peers and view.me.id in its_view.peers):
            yield Step(address, ("CLUSTER", "MEET", first.host, first.port))
        for other, its in views.items():
            known = view.peers.get(its.me.id)
            if known is not None and not known.reached and known.address != other:
                yield Step(address, ("CLUSTER", "MEET", other.host, other.port))


def _followers(views: Mapping[Address, NodeView], masters: Sequence[Address]) -> Iterable[Step]:
    """Make each node without hash slots a replica, once all hash slots are assigned and it knows its master."""
    nodes = {address: view.me for address, view in views.items()}
    if sum(len(node.slots) for node in nodes.values()) < HASH_SLOTS:
        return
    following = Counter(node.master for node in nodes.values())
    preferred = dict.fromkeys((*masters, *nodes))
    holders = [nodes[address].id for address in preferred if nodes[address].slots]
    for address, view in views.items():
        if view.me.slots or view.me.master:
            continue
        chosen = min(holders, key=following.__getitem__)
        following[chosen] += 1
        if chosen in view.peers:
            yield Step(address, ("CLUSTER", "REPLICATE", chosen))


def _peer(line: str) -> Peer:
    node, place, flags, master, _, _, _, link, *parts = line.split()
    host, _, port = place.partition("@")[0].rpartition(":")
    held = frozenset(from_ranges(",".join(part for part in parts if part[0] != "[")))  # [: a hash slot being migrated
    following = "" if master == "-" else master
    return Peer(node, Address(host, int(port)), frozenset(flags.split(",")), following, link == "connected", held)


def _pairs(text: str) -> dict[str, str]:
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


class _NotYet(Exception):
    """A server cannot answer yet. `busy` is true while it loads data, for which there is no time limit."""

    def __init__(self, text: str, *, busy: bool = False) -> None:
        super().__init__(text)
        self.busy = busy


def create_cluster(
    masters: Sequence[Address],
    replicas: Sequence[Address] = (),
    timeout_s: float = WAIT_S,
    waiting: Callable[[str], None] = lambda _: None,
) -> None:
    """Create a cluster, or complete one; return when it is complete.

    In a complete cluster all nodes reach each other, all hash slots are served, and replicas have their masters' data.

    Args:
        masters: Servers that share the unassigned hash slots evenly.
        replicas: Other servers. Each node without hash slots becomes a replica; failovers may have changed the roles.
        timeout_s: Seconds to wait. The time to load and copy data does not count.
        waiting: Called repeatedly with a description of what is missing.

    Raises:
        RedisUnavailableError: The cluster is not complete in time, or a server cannot be part of it.

    Guarantee:
        Safe to repeat, even if an earlier call was interrupted.
    """
    with _Nodes((*masters, *replicas)) as nodes:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                views = nodes.look()
                if trouble := foreign_node(views):
                    raise RedisUnavailableError(f"the cluster cannot be created: {trouble}")
                lacking, busy = missing_parts(views, len(replicas)), is_busy(views)
                if not lacking:
                    return
                if refused := nodes.carry_out(next_steps(views, [nodes.places[address] for address in masters])):
                    lacking = f"{lacking} ({refused})"
            except _NotYet as trouble:
                lacking, busy = str(trouble), trouble.busy
            if busy:
                deadline = time.monotonic() + timeout_s
            if time.monotonic() > deadline:
                raise RedisUnavailableError(f"the cluster was not ready in time: {lacking}")
            waiting(lacking)
            time.sleep(_POLL_S)


class _Nodes:
    """The servers, by IP address. Broken connections are reopened."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses
        self._wires: dict[Address, Wire] = {}
        self.places: dict[Address, Address] = {}  # address → the same with an IP address: CLUSTER MEET takes no names

    def __enter__(self) -> _Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        for wire in self._wires.values():
            wire.close()

    def look(self) -> dict[Address, NodeView]:
        """Query all nodes.

        Raises:
            _NotYet: A node cannot answer yet.
            RedisUnavailableError: A node refuses permanently.
        """
        views: dict[Address, NodeView] = {}
        for address in self._addresses:
            try:
                place = self.places[address] = Address(socket.gethostbyname(address.host), address.port)
                # Valkey answers the other queries while it loads
                if b"\nloading:1" in self._call(address, "INFO", "persistence"):
                    raise _NotYet(f"{address} is loading its data", busy=True)
                views[place] = parse_node(*(self._call(address, *command).decode() for command in _QUESTIONS))
            except ReplyError as error:
                if not_executed(str(error)):
                    raise _NotYet(f"{address}: {error}", busy=str(error).startswith("LOADING")) from None
                raise RedisUnavailableError(f"Redis at {address} cannot join a cluster: {error}") from error
            except OSError as error:
                raise _NotYet(f"cannot resolve {address.host}: {error}") from None
        return views

    def carry_out(self, steps: Sequence[Step]) -> str:
        """Send commands; return the last refusal, which may be due to a change in the meantime."""
        addresses = {place: address for address, place in self.places.items()}
        refused = ""
        for step in steps:
            try:
                self._call(addresses[step.address], *step.command)
            except ReplyError as error:
                refused = f"{step.address}: {error}"
        return refused

    def _call(self, address: Address, *command: str | int) -> bytes:
        try:
            if address not in self._wires:
                wire = wire_factory(f"redis://{address}", _REPLY_S)()
                self._wires[address] = wire
                wire.connect()
            return self._wires[address].call(*command)
        except WireBrokenError as error:
            self._wires.pop(address).close()
            raise _NotYet(f"Redis at {address} does not answer: {error}") from None
        except ReplyError as error:
            if not_executed(str(error)):
                self._wires.pop(address).close()
            raise


def main(arguments: Sequence[str]) -> int:
    """Create a cluster, or complete one; return the exit code."""
    servers = [
        [Address(host, int(port)) for host, _, port in (item.rpartition(":") for item in text.split(","))]
        for text in arguments
    ]
    shown: list[str] = []

    def tell(lacking: str) -> None:
        if shown != [lacking]:
            shown[:] = [lacking]
            sys.stderr.write(f"waiting: {lacking}\n")

    try:
        create_cluster(*servers, timeout_s=MAIN_WAIT_S, waiting=tell)
    except RedisUnavailableError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
