"""Finds the master of a service by asking its Sentinels.

Source: Redis documentation, "Guidelines for Redis clients with support for Redis Sentinel".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from rmq._io.reports import reporter
from rmq._io.wire import ReplyError, Wire, WireBrokenError
from rmq._model.times import monotonic_s
from rmq._servers.nodes import CONNECT_S, Node, NodeFactory, Router
from rmq._servers.urls import Address, RedisUrl, parse_address
from rmq.errors import RedisUnavailableError

log = reporter("rmq.connections")

REFRESH_S = 5.0
"""Interval at which the Sentinels are asked if nothing is wrong, in seconds: a replaced master may still answer."""

QUICK_S = 0.5
"""Timeout of the first attempt in seconds; the second one, if no server answered, has `CONNECT_S`."""

SKIP_S, INVALID_SKIP_S = 30.0, 5.0
"""Seconds for which a server that did not answer is skipped: normally, and if the known master may be wrong."""

T = TypeVar("T")


class Answer(NamedTuple):
    """The answer of a Sentinel.

    Attributes:
        master: Address of the master.
        epoch: Number of the failover that promoted it; it only rises.
        priorities: `replica-priority` of each replica that may be promoted, if the durability level needs it.
    """

    master: Address
    epoch: int
    priorities: tuple[int, ...] = ()


def newest_first(answers: Sequence[Answer]) -> list[Address]:
    """Return the masters that Sentinels name, the newest failover first; ties go to the most frequent answer."""
    votes = Counter(answer.master for answer in answers)
    in_order = sorted(answers, key=lambda answer: (-answer.epoch, -votes[answer.master]))
    return list(dict.fromkeys(answer.master for answer in in_order))


class FailoverQuery:
    """A question to several servers, without waiting long for any of them. For one thread at a time.

    All servers are first asked with the short timeout `QUICK_S`. Only if none answers, they are asked again with
    `CONNECT_S`. Servers that failed recently are asked last, and may be skipped for a while.

    Args:
        connect: Creates a node from an address and a timeout in seconds.
    """

    def __init__(self, connect: Callable[[Address, float], Node]) -> None:
        self._connect = connect
        self._nodes: dict[tuple[Address, float], Node] = {}
        self._unresponsive_s: dict[tuple[Address, float], float] = {}
        self._failed_s: dict[Address, float] = {}
        self.problems: list[str] = []
        """Errors of the servers that did not answer the last question."""

    def ask(
        self,
        addresses: Iterable[Address],
        question: Callable[[Node], T],
        *,
        skip_s: float = 0.0,
    ) -> Iterator[tuple[Address, T]]:
        """Ask the servers one after the other and yield their answers. Those that failed last are asked at the end.

        Args:
            addresses: The servers.
            question: Function that asks one server.
            skip_s: Seconds for which a server that timed out is skipped; 0 to skip none.
        """
        self.problems = []
        answered = False
        for patience_s in (QUICK_S, CONNECT_S):
            for address in sorted(addresses, key=lambda each: self._failed_s.get(each, 0.0)):
                started_s = monotonic_s()
                target = address, patience_s
                pause_s = max(skip_s, INVALID_SKIP_S if answered else 0.0)
                if started_s - self._unresponsive_s.get(target, float("-inf")) < pause_s:
                    continue
                try:
                    answer = question(self._node(target))
                except (WireBrokenError, ReplyError) as error:
                    self.distrust(address)
                    if monotonic_s() - started_s > patience_s / 2:  # a quick refusal is no reason to skip it
                        self._unresponsive_s[target] = monotonic_s()
                    self.problems.append(f"{address}: {error}")
                    continue
                answered = True
                yield address, answer
            if answered or skip_s >= SKIP_S:
                return

    def distrust(self, address: Address) -> None:
        """Ask this server after the others from now on."""
        self._failed_s[address] = monotonic_s()

    def close(self) -> None:
        """Close all idle connections."""
        for node in list(self._nodes.values()):
            node.close()

    def _node(self, target: tuple[Address, float]) -> Node:
        node = self._nodes.get(target)
        if node is None:
            node = self._nodes[target] = self._connect(*target)
        return node


class SentinelRouter(Router):
    """A `Router` to the master of one service.

    Args:
        url: The Sentinels and the service.
        nodes: Factory of nodes.
    """

    def __init__(self, url: RedisUrl, nodes: NodeFactory) -> None:
        super().__init__(nodes, REFRESH_S)
        self._url = url
        self._sentinels = FailoverQuery(nodes.sentinel)
        nodes.sentinel(url.hosts[0], CONNECT_S)  # refuses a URL with an unknown option now, not with the first call
        self._warned: list[int] = []

    def close(self) -> None:
        super().close()
        self._sentinels.close()

    def _read(self, invalidated: bool) -> None:
        """Ask all Sentinels that answer in time, and use the newest answer whose server really is a master.

        A Sentinel that was disconnected from the others may name an old master, which may still be running.
        """
        problems: list[str] = []
        skip_s = 0.0 if self._node is None else INVALID_SKIP_S if invalidated else SKIP_S
        answers = list(self._sentinels.ask(self._url.hosts, self._answer_of, skip_s=skip_s))
        named = newest_first([answer for _, answer in answers])
        for address in named:
            problem = "" if self._is_current(address, invalidated) else self._problem_with(address)
            if not problem:
                self._warn(next(answer for _, answer in answers if answer.master == address))
                self._set_master(address)
                return
            for sentinel in (sentinel for sentinel, answer in answers if answer.master == address):
                self._sentinels.distrust(sentinel)
                problems.append(f"{sentinel} names {address}: {problem}")
        problems += self._sentinels.problems
        if named:
            self._set_master(named[0])
        elif self._node is None:
            raise WireBrokenError(f"no Sentinel names a master of {self._url.service} ({'; '.join(problems)})")
        elif problems:
            log.warning("no Sentinel names a master; still using %s (%s)", self._node.address, "; ".join(problems))

    def _is_current(self, address: Address, invalidated: bool) -> bool:
        """Return whether the address is that of the current master, and nothing is wrong with it."""
        return not invalidated and self._node is not None and self._node.address == address

    def _problem_with(self, address: Address) -> str:
        """Return the reason not to use a server as the master, or "" if it is a master and can be reached."""
        server = self._factory.probe_node(address, QUICK_S, _require_master)
        try:
            server.give_back(server.checkout())
        except (WireBrokenError, RedisUnavailableError) as error:
            return str(error)
        finally:
            server.close()
        return ""

    def _answer_of(self, sentinel: Node) -> Answer:
        service, durability = self._url.service, self._factory.durability
        try:
            reply = sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
        except ReplyError as error:
            if "unknown command" not in str(error).lower():
                raise
            raise WireBrokenError("this server is not a Sentinel") from None
        if reply is None:
            raise WireBrokenError(f"this Sentinel watches no master named {service}")
        try:
            host, port = reply
            address = parse_address(host, port)
        except (TypeError, ValueError) as error:
            raise WireBrokenError(f"this Sentinel names a master with an invalid address: {error!s:.200}") from None
        [epoch] = _numbers_of(sentinel, "MASTER", service, b"config-epoch") or [0]
        replicas = _numbers_of(sentinel, "REPLICAS", service, b"slave-priority") if durability.replicas else []
        return Answer(address, epoch, tuple(priority for priority in replicas if priority))

    def _warn(self, answer: Answer) -> None:
        """Log a warning, once, if a failover may promote a replica that lacks confirmed writes."""
        durability, priorities = self._factory.durability, sorted(answer.priorities)
        unsafe = durability.replicas < len(priorities) and len(set(priorities)) > 1
        if unsafe and priorities != self._warned:
            log.warning(
                "durability %s waits for %d of %d replicas of %s, whose replica-priority values differ %s: a failover "
                "promotes the replica with the lowest, even if it lacks messages; use equal values, or set replicas=%d",
                durability.level.value,
                durability.replicas,
                len(priorities),
                self._url.service,
                tuple(priorities),
                len(priorities),
            )
        self._warned = priorities if unsafe else []

    def _set_master(self, address: Address) -> None:
        old = self._node
        if old is None or old.address != address:
            self._replace(self._factory.server(address, _require_master))
            if old is not None:
                log.warning("the master of %s is now at %s, no longer at %s", self._url.service, address, old.address)


def _require_master(wire: Wire) -> None:
    """Raise if the server has become a replica, which would return old data."""
    try:
        role: list[Any] = wire.call("ROLE")
    except ReplyError as error:
        if str(error).startswith("NOPERM"):
            return
        raise
    if role[0] != b"master":
        raise WireBrokenError("this server is a replica now")


def _numbers_of(sentinel: Node, what: str, service: str, field: bytes) -> list[int]:
    """Return a numeric field of a Sentinel's reply about a master or about its replicas, where it is present."""
    numbers: list[int] = []
    with suppress(ReplyError, TypeError, ValueError):  # no permission, or the server is not a Sentinel
        reply: Any = sentinel.ask("SENTINEL", what, service)
        for row in [reply] if what == "MASTER" else reply:
            fields = dict(zip(row[::2], row[1::2], strict=False))
            if field in fields:
                numbers.append(int(fields[field]))
    return numbers
