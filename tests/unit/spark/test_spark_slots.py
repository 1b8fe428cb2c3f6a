"""How acks and renewals wait for servers that are down: they need no Redis to be seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from rmq import RedisUnavailableError, Topic, TopicType
from rmq._transport.call import Call
from rmq._transport.connections import Connections
from rmq._transport.dispatch import CONNECT_PATIENCE_S
from rmq.spark.calls import Driver, Settled
from rmq.spark.slots import QuerySlots, SettledBatch

TOPIC = Topic("t", TopicType.PRIORITY, slots=4)
DRIVER = Driver("query", 1)


class Servers:
    """Connections whose slots 2 and 3 do not answer in the first `failures` rounds."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.seen: list[tuple[list[int], float | None]] = []

    def run_many(self, calls: Sequence[Call[Any]], patience_s: float | None = None) -> list[Any]:
        slots = [call.slot for call in calls]
        down = sum(2 in earlier for earlier, _ in self.seen) < self.failures
        self.seen.append((slots, patience_s))
        return [RedisUnavailableError("down") if slot >= 2 and down else Settled(1, 0, 0) for slot in slots]


def settle(servers: Servers, window: int) -> SettledBatch:
    chunks = [(slot, 0) for slot in range(TOPIC.slots)]
    return QuerySlots(cast("Connections", servers), TOPIC, window).settle(DRIVER, 1, chunks, "ack")


def test_servers_that_are_down_get_the_whole_deadline_after_all_others() -> None:
    servers = Servers(failures=1)
    assert settle(servers, 64) == SettledBatch(4, 0, {})
    assert servers.seen == [([0, 1, 2, 3], CONNECT_PATIENCE_S), ([2, 3], None)]


def test_servers_that_are_down_are_waited_for_only_once() -> None:
    servers = Servers(failures=99)
    with pytest.raises(RedisUnavailableError, match="down"):
        settle(servers, 1)
    assert servers.seen[-2:] == [([2], None), ([3], CONNECT_PATIENCE_S)]
