"""Creates a Redis Cluster from servers, as `redis-cli --cluster create` does, but safe to repeat.

    python -m rmq._processes.redis_cluster host:port,host:port,host:port [replica:port,replica:port,replica:port]

It resumes an interrupted set-up, and waits for servers that do not answer yet or are loading their data.
cluster_plan.py decides which commands are missing.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Sequence

from rmq._io.wire import ReplyError, Wire, WireBrokenError, wire_factory
from rmq._processes.cluster_plan import NodeView, Step, foreign_node, is_busy, missing_parts, next_steps, parse_node
from rmq._servers.server_check import not_executed
from rmq._servers.urls import Address
from rmq.errors import RedisUnavailableError

WAIT_S = 30.0
MAIN_WAIT_S = 120.0
"""Timeout under `docker compose up`, seconds: the machine starts all other services at the same time."""

_POLL_S = 0.05
_REPLY_S = 5.0
_QUESTIONS = (("CLUSTER", "NODES"), ("CLUSTER", "INFO"), ("INFO", "replication"))


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
