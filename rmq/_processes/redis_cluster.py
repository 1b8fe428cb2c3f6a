"""Makes a Redis Cluster out of servers: what `redis-cli --cluster create` does, without redis-cli, and safe to repeat.

    python -m rmq._processes.redis_cluster host:port,host:port,host:port [replica:port,replica:port,replica:port]

It goes on from wherever an earlier set-up was cut off, and waits for servers that do not answer yet or still load their
data. What is missing is decided by cluster_plan.py.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Sequence

from rmq._io.wire import ReplyError, Wire, WireBrokenError, wire_factory
from rmq._processes.cluster_plan import NodeView, Step, foreign_node, is_busy, missing_parts, next_steps, parse_node
from rmq._transport.exchange import not_executed
from rmq._transport.urls import Address
from rmq.errors import RedisUnavailableError

WAIT_S = 30.0
MAIN_WAIT_S = 120.0
"""What `docker compose up` grants: the machine starts all else meanwhile."""

_POLL_S = 0.05
_REPLY_S = 5.0
_QUESTIONS = (("CLUSTER", "NODES"), ("CLUSTER", "INFO"), ("INFO", "replication"))


class _NotYet(Exception):
    """A server can't answer yet. `busy`: it works on its data, however long that takes."""

    def __init__(self, text: str, *, busy: bool = False) -> None:
        super().__init__(text)
        self.busy = busy


def create_cluster(
    masters: Sequence[Address],
    replicas: Sequence[Address] = (),
    timeout_s: float = WAIT_S,
    waiting: Callable[[str], None] = lambda _: None,
) -> None:
    """Make a cluster, or what is missing of one; return when it is complete.

    Complete: each node knows and reaches all others, all hash slots are served, and each replica has its master's data.

    Args:
        masters: Servers that share the free hash slots evenly.
        replicas: Further servers. A node without hash slots follows a master; failovers may have changed roles.
        timeout_s: How long to wait, in seconds. Loading and copying of data does not count.
        waiting: Called again and again meanwhile, with what lacks.

    Raises:
        RedisUnavailableError: It is not complete in time, or a server can't be part of it.

    Guarantee:
        Safe to repeat, from whatever point an earlier call was cut off at.
    """
    with _Nodes((*masters, *replicas)) as nodes:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                views = nodes.look()
                if trouble := foreign_node(views):
                    raise RedisUnavailableError(f"the cluster can't be made: {trouble}")
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
                raise RedisUnavailableError(f"the cluster is not ready in time: {lacking}")
            waiting(lacking)
            time.sleep(_POLL_S)


class _Nodes:
    """The servers, by the addresses under which they meet; connections are made anew when they break."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses
        self._wires: dict[Address, Wire] = {}
        self.places: dict[Address, Address] = {}  # address as given → with an IP address: CLUSTER MEET takes no names

    def __enter__(self) -> _Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        for wire in self._wires.values():
            wire.close()

    def look(self) -> dict[Address, NodeView]:
        """Ask all of them what they know.

        Raises:
            _NotYet: One can't answer yet.
            RedisUnavailableError: One refuses for good.
        """
        views: dict[Address, NodeView] = {}
        for address in self._addresses:
            try:
                place = self.places[address] = Address(socket.gethostbyname(address.host), address.port)
                if b"\nloading:1" in self._call(address, "INFO", "persistence"):  # Valkey answers the others meanwhile
                    raise _NotYet(f"{address}: LOADING its data", busy=True)
                views[place] = parse_node(*(self._call(address, *command).decode() for command in _QUESTIONS))
            except ReplyError as error:
                if not_executed(str(error)):
                    raise _NotYet(f"{address}: {error}", busy=str(error).startswith("LOADING")) from None
                raise RedisUnavailableError(f"Redis at {address} can't be made part of a cluster: {error}") from error
            except OSError as error:
                raise _NotYet(f"{address.host} is not known: {error}") from None
        return views

    def carry_out(self, steps: Sequence[Step]) -> str:
        """Send commands; return what the servers refused, since what they know may have changed meanwhile."""
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
    """Make a cluster, or what is missing of one; return the exit code."""
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
