"""A master that Sentinels watch: they say who it is now.

Source: Redis documentation, "Guidelines for Redis clients with support for Redis Sentinel".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from rmq._io.wire import ReplyError, Wire, WireBrokenError
from rmq._model.reports import reporter
from rmq._model.times import monotonic_s
from rmq._transport.failover_query import INVALID_SKIP_S, QUICK_S, SKIP_S, FailoverQuery
from rmq._transport.node import CONNECT_S, Node, NodeFactory
from rmq._transport.standalone import OneMaster
from rmq._transport.urls import Address, RedisUrl, parse_address
from rmq.errors import RedisUnavailableError

log = reporter("rmq.connections")

REFRESH_S = 5.0
"""So often the Sentinels are asked even if all is well: an old master that they have given up may go on answering."""

DOUBT_S = 0.1
"""Shortest time between two questions when something is wrong."""


class Answer(NamedTuple):
    """What a Sentinel says.

    Attributes:
        master: Where the master is.
        epoch: Number of the failover that made it the master; it only rises.
        priorities: `replica-priority` of each replica that may be promoted, where that matters.
    """

    master: Address
    epoch: int
    priorities: tuple[int, ...] = ()


def newest_first(answers: Sequence[Answer]) -> list[Address]:
    """Return the masters that Sentinels name: the one of the newest failover first, of equal ones what most say."""
    votes = Counter(answer.master for answer in answers)
    in_order = sorted(answers, key=lambda answer: (-answer.epoch, -votes[answer.master]))
    return list(dict.fromkeys(answer.master for answer in in_order))


class SentinelRouter(OneMaster):
    """A `Router` to the master of one service.

    Args:
        url: The Sentinels and the service.
        nodes: Makes nodes.
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
        """Ask all Sentinels that answer in time, and take the newest answer that names a server which is a master.

        A Sentinel may have been cut off from the others, and name a master of long ago, even one that still lives.
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
            log.warning("no Sentinel answers; going on with the master at %s: %s", self._master.address, problems)

    def _is_current(self, address: Address, invalidated: bool) -> bool:
        """Return whether a server is the one that we work with, and nothing is wrong with it."""
        return not invalidated and self._master is not None and self._master.address == address

    def _problem_with(self, address: Address) -> str:
        """Look whether a server can be reached and is a master; return why not."""
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
            raise WireBrokenError(f"it watches no master named {service}")
        try:
            host, port = reply
            address = parse_address(host, port)
        except (TypeError, ValueError) as error:
            raise WireBrokenError(f"it names a master with an invalid address: {error!s:.200}") from None
        [epoch] = _numbers_of(sentinel, "MASTER", service, b"config-epoch") or [0]
        replicas = _numbers_of(sentinel, "REPLICAS", service, b"slave-priority") if durability.replicas else []
        return Answer(address, epoch, tuple(priority for priority in replicas if priority))

    def _warn(self, answer: Answer) -> None:
        """Warn, once, where a failover may promote a replica that has not confirmed what others have."""
        durability, priorities = self._nodes.durability, sorted(answer.priorities)
        unsafe = durability.replicas < len(priorities) and len(set(priorities)) > 1
        if unsafe and priorities != self._warned:
            log.warning(
                "durability %s waits for %d of %d replicas of %s, whose replica-priority differs %s: a failover "
                "promotes the one with the lowest, even if it lacks messages; give all the same, or set replicas=%d",
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
    """Refuse a connection to a server that has become a replica: it would answer reads with old data."""
    try:
        role: list[Any] = wire.call("ROLE")
    except ReplyError as error:
        if str(error).startswith("NOPERM"):
            return
        raise
    if role[0] != b"master":
        raise WireBrokenError("this server is a replica now")


def _numbers_of(sentinel: Node, what: str, service: str, field: bytes) -> list[int]:
    """Return a field of what a Sentinel knows of a master, or of each of its replicas; of those where it has one."""
    numbers: list[int] = []
    with suppress(ReplyError, TypeError, ValueError):  # no right to it, or something else than a Sentinel
        reply: Any = sentinel.ask("SENTINEL", what, service)
        for row in [reply] if what == "MASTER" else reply:
            fields = dict(zip(row[::2], row[1::2], strict=False))
            if field in fields:
                numbers.append(int(fields[field]))
    return numbers
