"""Short words for what many tests do with a client."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from rmq import Consumer, Delivery, RmqClient, Topic, TopicStats
from tests.support.core import ClaimPlan, ClaimPlanner
from tests.support.waiting import LIMIT_S, wait_until


def texts(deliveries: Iterable[Delivery]) -> list[str]:
    """The contents as text, in the order of delivery."""
    return [delivery.text for delivery in deliveries]


def drain(consumer: Consumer, timeout: float = 0.3) -> list[str]:
    """Poll and ack until nothing comes for `timeout` seconds; return the contents in the order of delivery."""
    found: list[str] = []
    while deliveries := consumer.poll(1_000, timeout):
        consumer.ack(deliveries)
        found += texts(deliveries)
    return found


def stats_of(client: RmqClient, topic: Topic) -> TopicStats:
    """The topic's figures, after a check that nothing vanished."""
    stats = client.inspect(topic).stats()
    assert stats.unaccounted == 0, stats
    return stats


def left_in(stats: TopicStats) -> tuple[int, int, int, int]:
    """Messages in store, in flight, waiting for a retry, and dead."""
    return stats.backlog, stats.in_flight, stats.waiting, stats.dead


def run_until(client: RmqClient, ready: Callable[[], object], timeout: float = LIMIT_S) -> None:
    """Run a client's listeners until it is so, and stop them."""
    client.start()
    wait_until(ready, timeout)
    client.stop()


def limits_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages each claim asks for from now on."""
    found: list[int] = []
    plan = ClaimPlanner.plan

    def noted(self: ClaimPlanner, limit: int, *args: Any) -> ClaimPlan:
        found.append(limit)
        return plan(self, limit, *args)

    monkeypatch.setattr(ClaimPlanner, "plan", noted)
    return found
