"""Servers that tell about the others: asked in turn, and none of them waited for long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from rmq._io.wire import ReplyError, WireBrokenError
from rmq._model.times import monotonic_s
from rmq._transport.node import CONNECT_S, Node
from rmq._transport.urls import Address

QUICK_S = 0.5
"""Each is waited for so long at first, and for `CONNECT_S` only if none has answered."""

SKIP_S, INVALID_SKIP_S = 30.0, 5.0
"""So long a silent one is not asked again where we can do without it, and where what we know is in doubt."""

T = TypeVar("T")


class FailoverQuery:
    """Servers that answer the same question. For one thread at a time.

    Args:
        connect: Makes the connections to one of them, with the time to wait for it, seconds.
    """

    def __init__(self, connect: Callable[[Address, float], Node]) -> None:
        self._connect = connect
        self._nodes: dict[tuple[Address, float], Node] = {}
        self._unresponsive_s: dict[tuple[Address, float], float] = {}
        self._failed_s: dict[Address, float] = {}
        self.problems: list[str] = []
        """Why those did not answer that were asked last."""

    def ask(
        self,
        addresses: Iterable[Address],
        question: Callable[[Node], T],
        *,
        skip_s: float = 0.0,
    ) -> Iterator[tuple[Address, T]]:
        """Yield the answers as they are wanted, those who failed last at the end.

        Args:
            addresses: Whom to ask.
            question: Asks one of them.
            skip_s: So long those are left alone that kept us waiting; 0 to wait for anybody.
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
                    if monotonic_s() - started_s > patience_s / 2:  # refused at once, it costs nothing
                        self._unresponsive_s[target] = monotonic_s()
                    self.problems.append(f"{address}: {error}")
                    continue
                answered = True
                yield address, answer
            if answered or skip_s >= SKIP_S:
                return

    def distrust(self, address: Address) -> None:
        """Ask one after the others from now on."""
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
