"""Asks several servers the same question, without waiting long for any of them.

All servers are first asked with the short timeout `QUICK_S`. Only if none answers, they are asked again with
`CONNECT_S`. Servers that failed recently are asked last, and may be skipped for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from rmq._io.wire import ReplyError, WireBrokenError
from rmq._model.times import monotonic_s
from rmq._transport.node import CONNECT_S, Node
from rmq._transport.urls import Address

QUICK_S = 0.5
"""Timeout of the first attempt in seconds; the second one, if no server answered, has `CONNECT_S`."""

SKIP_S, INVALID_SKIP_S = 30.0, 5.0
"""Seconds for which a server that did not answer is skipped: normally, and if the known master may be wrong."""

T = TypeVar("T")


class FailoverQuery:
    """A question to several servers. For one thread at a time.

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
