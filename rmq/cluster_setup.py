"""Makes a Redis Cluster out of empty servers: what `redis-cli --cluster create` does, without redis-cli.

    python -m rmq.cluster_setup host:port,host:port,host:port [replica:port,replica:port,replica:port]

Source: Redis Cluster specification; CLUSTER MEET, ADDSLOTS, REPLICATE.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from rmq.errors import RedisUnavailableError
from rmq.slot_map import HASH_SLOTS
from rmq.urls import Address
from rmq.wire import ReplyError, Wire, WireBrokenError, wire_factory

_POLL_S = 0.05


def create_cluster(masters: Sequence[Address], replicas: Sequence[Address] = (), timeout_s: float = 30.0) -> None:
    """Make a cluster; return when it serves all hash slots and the replicas have their data.

    Args:
        masters: Empty servers that share the hash slots evenly.
        replicas: Empty servers; the first follows the first master and so on, beginning anew after the last.
        timeout_s: How long to wait.

    Raises:
        RedisUnavailableError: It is not ready in time, or a server refuses.
    """
    deadline = time.monotonic() + timeout_s
    with ExitStack() as stack:
        wires = {address: _connected(address) for address in (*masters, *replicas)}
        for wire in wires.values():
            stack.callback(wire.close)
        try:
            _form(wires, masters, deadline)
            ids = {address: _text(wires[address].call("CLUSTER", "MYID")) for address in masters}
            for number, address in enumerate(replicas):
                _follow(wires[address], ids[masters[number % len(masters)]], deadline)
            for address, wire in wires.items():
                _wait(lambda wire=wire: _ready(wire, len(masters), len(replicas)), deadline, f"{address} to be ready")
        except (ReplyError, WireBrokenError) as error:
            raise RedisUnavailableError(f"the cluster could not be made: {error}") from error


def is_formed(address: Address) -> bool:
    """Return whether a server has been made part of a cluster before."""
    wire = _connected(address)
    try:
        return len(_nodes(wire)) > 1
    finally:
        wire.close()


def main(arguments: Sequence[str]) -> int:
    """Make a cluster unless it is one already; return the exit code."""
    masters = _addresses(arguments[0])
    replicas = _addresses(arguments[1]) if len(arguments) > 1 else []
    try:
        if not is_formed(masters[0]):
            create_cluster(masters, replicas)
    except RedisUnavailableError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _addresses(text: str) -> list[Address]:
    return [Address(host, int(port)) for host, _, port in (item.rpartition(":") for item in text.split(","))]


def _form(wires: dict[Address, Wire], masters: Sequence[Address], deadline: float) -> None:
    """Make the servers know each other, and share the hash slots."""
    first = next(iter(wires))
    for number, address in enumerate(masters):
        wires[address].call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        share = range(HASH_SLOTS * number // len(masters), HASH_SLOTS * (number + 1) // len(masters))
        wires[address].call("CLUSTER", "ADDSLOTS", *share)
    for address, wire in wires.items():
        if address != first:
            wire.call("CLUSTER", "MEET", socket.gethostbyname(first.host), first.port)
    for address, wire in wires.items():
        _wait(lambda wire=wire: len(_nodes(wire)) == len(wires), deadline, f"{address} to know all others")


def _follow(wire: Wire, master_id: str, deadline: float) -> None:
    _wait(lambda: any(line.startswith(master_id) for line in _nodes(wire)), deadline, "a master to be known")
    wire.call("CLUSTER", "REPLICATE", master_id)


def _ready(wire: Wire, masters: int, replicas: int) -> bool:
    if "cluster_state:ok" not in _text(wire.call("CLUSTER", "INFO")):
        return False
    if "master_link_status:down" in _text(wire.call("INFO", "replication")):
        return False
    nodes = _nodes(wire)
    return sum("slave" in line.split()[2] for line in nodes) == replicas and len(nodes) == masters + replicas


def _nodes(wire: Wire) -> list[str]:
    """Return the lines of CLUSTER NODES, without servers that are only being met."""
    lines = _text(wire.call("CLUSTER", "NODES")).splitlines()
    return [line for line in lines if "handshake" not in line.split()[2]]


def _connected(address: Address) -> Wire:
    wire = wire_factory(f"redis://{address}", 5.0)()
    try:
        wire.connect()
    except (ReplyError, WireBrokenError) as error:
        wire.close()
        raise RedisUnavailableError(f"Redis at {address} can't be made part of a cluster: {error}") from error
    return wire


def _text(reply: bytes) -> str:
    return reply.decode()


def _wait(condition: Callable[[], bool], deadline: float, what: str) -> None:
    while not condition():
        if time.monotonic() > deadline:
            raise RedisUnavailableError(f"the cluster is not ready in time: waited for {what}")
        time.sleep(_POLL_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
