"""When a topology is read again that another thread has found to be wrong, without a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from rmq._io.backend import THREADS
from rmq._servers.durability import parse_durability
from rmq._servers.nodes import DOUBT_S, Node, NodeFactory, Router, StandaloneRouter
from rmq._servers.urls import parse_url


class Counting(Router):
    """Counts the readings of its topology; `meanwhile` is called once while the time of the next one is computed."""

    meanwhile: Callable[[], object] | None = None
    readings = 0

    def _read(self, invalidated: bool) -> None:
        self.readings += 1
        self._node = self._factory.only()

    def masters(self) -> Sequence[Node]:
        if self.readings and (meanwhile := self.meanwhile):
            self.meanwhile = None
            meanwhile()
        return super().masters()


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now_s = [100.0]
    monkeypatch.setattr("rmq._servers.nodes.monotonic_s", lambda: now_s[0])
    return now_s


def factory() -> NodeFactory:
    return NodeFactory(parse_url("redis://127.0.0.1:1"), 1.0, parse_durability("memory", 0), THREADS)


def test_an_invalidation_while_a_reading_ends_is_not_lost(now_s: list[float]) -> None:
    router = Counting(factory(), 30.0)
    router.meanwhile = router.invalidate
    router.refresh()
    now_s[0] += 2 * DOUBT_S
    router.refresh()
    assert router.readings == 2
    now_s[0] += 2 * DOUBT_S
    router.refresh()
    assert router.readings == 2, "one invalidation, one reading"


def test_a_longer_interval_keeps_an_invalidation(now_s: list[float]) -> None:
    router = StandaloneRouter(factory())
    now_s[0] += 1.0
    router.invalidate()
    router.look_seldom(60.0)
    version = router.topology_version
    router.refresh()
    assert router.topology_version == version + 1
