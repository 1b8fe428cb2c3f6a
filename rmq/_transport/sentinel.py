"""Finds the master of a service by asking its Sentinels.

Source: Redis documentation, "Guidelines for Redis clients with support for Redis Sentinel".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from rmq._io.reports import reporter
from rmq._io.wire import ReplyError, Wire, WireBrokenError
from rmq._model.times import monotonic_s
from rmq._transport.failover_query import INVALID_SKIP_S, QUICK_S, SKIP_S, FailoverQuery
from rmq._transport.node import CONNECT_S, Node, NodeFactory
from rmq._transport.standalone import OneMaster
from rmq._transport.urls import Address, RedisUrl, parse_address
from rmq.errors import RedisUnavailableError

log = reporter("rmq.connections")

REFRESH_S = 5.0
"""Interval at which the Sentinels are asked if nothing is wrong, in seconds: a replaced master may still answer."""

DOUBT_S = 0.1
"""Minimum time between two questions after a failure, in seconds."""


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


class SentinelRouter(OneMaster):
    """A `Router` to the master of one service.

    Args:
        url: The Sentinels and the service.
        nodes: Factory of nodes.
    """

    def __init__(self, url: RedisUrl, nodes: NodeFactory) -> None:
        self._url = url
        self._nodes = nodes
        self._sentinels = FailoverQuery(nodes.sentinel)
        nodes.sentinel(url.hosts[0], CONNECT_S)  # refuses a URL with an unknown option now, not with the first call
        self._master: Node | None = None
        self._lock = nodes.runtime.lock()
        self._invalidated = False
        self._asked_s = float("-inf")
        self._closed = False
        self._warned: list[int] = []

    def refresh(self) -> None:
        if not self._ask_now() or not self._lock.acquire(blocking=self._master is None):
            return
        try:
            if self._ask_now():
                self._ask()
        finally:
            self._lock.release()

    def node_for(self, key: str | bytes) -> Node:
        del key
        if self._master is None:
            raise WireBrokenError(f"no Sentinel knows a master of {self._url.service}")
        return self._master

    def masters(self) -> Sequence[Node]:
        return () if self._master is None else (self._master,)

    def invalidate(self) -> None:
        self._invalidated = True

    def close(self) -> None:
        self._closed = True
        self._sentinels.close()
        for node in self.masters():
            node.close()

    def _ask_now(self) -> bool:
        if self._master is None:
            return True
        return monotonic_s() - self._asked_s > (DOUBT_S if self._invalidated else REFRESH_S)

    def _ask(self) -> None:
        """Ask all Sentinels that answer in time, and use the newest answer whose server really is a master.

        A Sentinel that was disconnected from the others may name an old master, which may still be running.
        """
        invalidated, self._invalidated = self._invalidated, False
        problems: list[str] = []
        skip_s = 0.0 if self._master is None else INVALID_SKIP_S if invalidated else SKIP_S
        try:
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
        finally:
            self._asked_s = monotonic_s()
        problems += self._sentinels.problems
        if named:
            self._set_master(named[0])
        elif self._master is None:
            raise WireBrokenError(f"no Sentinel names a master of {self._url.service} ({'; '.join(problems)})")
        elif problems:
            log.warning("no Sentinel answers; still using the master at %s: %s", self._master.address, problems)

    def _is_current(self, address: Address, invalidated: bool) -> bool:
        """Return whether the address is that of the current master, and nothing is wrong with it."""
        return not invalidated and self._master is not None and self._master.address == address

    def _problem_with(self, address: Address) -> str:
        """Return the reason not to use a server as the master, or "" if it is a master and can be reached."""
        server = self._nodes.probe_node(address, QUICK_S, _require_master)
        try:
            server.give_back(server.checkout())
        except (WireBrokenError, RedisUnavailableError) as error:
            return str(error)
        finally:
            server.close()
        return ""

    def _answer_of(self, sentinel: Node) -> Answer:
        service, durability = self._url.service, self._nodes.durability
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
        durability, priorities = self._nodes.durability, sorted(answer.priorities)
        unsafe = durability.replicas < len(priorities) and len(set(priorities)) > 1
        if unsafe and priorities != self._warned:
            log.warning(
                "durability %s waits for %d of %d replicas of %s, whose replica-priority differs %s: a failover "
                "promotes the lowest one, even if it lacks messages; use equal priorities, or set replicas=%d",
                durability.level.value,
                durability.replicas,
                len(priorities),
                self._url.service,
                tuple(priorities),
                len(priorities),
            )
        self._warned = priorities if unsafe else []

    def _set_master(self, address: Address) -> None:
        old = self._master
        if old is not None and old.address == address:
            return
        self._master = self._nodes.server(address, _require_master)
        self.topology_version += 1
        if old is not None:
            log.warning("the master of %s is now at %s, no longer at %s", self._url.service, address, old.address)
            old.close()
        if self._closed:
            self.close()


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
