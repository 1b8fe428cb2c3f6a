"""How acks and renewals wait for servers that are down: they need no Redis to be seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, cast

import pytest

from rmq import RedisUnavailableError, Topic, TopicType
from rmq._transport.call import Call
from rmq._transport.connections import Connections
from rmq._transport.dispatch import CONNECT_PATIENCE_S
from rmq.spark.calls import Driver, Settled
from rmq.spark.slots import WINDOW, QuerySlots, SettledBatch

TOPIC = Topic("t", TopicType.PRIORITY, slots=4)
DRIVER = Driver("query", 1)


class Servers:
    """Connections whose slots 2 and 3 do not answer in the first `failures` rounds."""

    def __init__(self, failures: int, silent: bool = False) -> None:
        self.failures = failures
        self.seen: list[tuple[list[int], float | None]] = []
        self.silent_nodes = ["node"] if silent else []

    def silent(self, key: str) -> bool:
        return key.startswith(("t_2", "t_3"))

    def run_many(self, calls: Sequence[Call[Any]], patience_s: float | None = None) -> list[Any]:
        slots = [call.slot for call in calls]
        down = sum(2 in earlier for earlier, _ in self.seen) < self.failures
        self.seen.append((slots, patience_s))
        return [RedisUnavailableError("down") if slot >= 2 and down else Settled(1, 0, 0) for slot in slots]


def settle(servers: Servers, chunks: int = 1, pause: Callable[[], bool] | None = None) -> SettledBatch:
    parts = [(slot, chunk) for chunk in range(chunks) for slot in range(TOPIC.slots)]
    return QuerySlots(cast("Connections", servers), TOPIC, pause).settle(DRIVER, 1, parts, "ack")


def all_done(chunks: int) -> SettledBatch:
    each = dict.fromkeys(range(TOPIC.slots), chunks)
    return SettledBatch(each, 0, {}, 0, each)


def test_a_batch_is_settled_in_small_pieces_with_a_pause_behind_each() -> None:
    servers, pauses = Servers(failures=0), count()
    assert settle(servers, 3, lambda: next(pauses) < 0) == all_done(3)
    assert [slots for slots, _ in servers.seen] == [[0, 1, 2, 3]] * 3
    assert next(pauses) == 3


def test_a_pause_ends_what_it_belongs_to() -> None:
    servers = Servers(failures=0)
    assert settle(servers, 3, lambda: True) == all_done(1)


def test_servers_that_are_down_get_the_whole_deadline_after_all_others() -> None:
    servers = Servers(failures=1)
    assert settle(servers) == all_done(1)
    assert servers.seen == [([0, 1, 2, 3], CONNECT_PATIENCE_S), ([2, 3], None)]


def test_of_servers_that_are_known_to_be_down_all_is_asked_at_once_at_the_end() -> None:
    servers = Servers(failures=0, silent=True)
    assert settle(servers, 2) == all_done(2)
    assert servers.seen == [([0, 1], CONNECT_PATIENCE_S), ([0, 1], CONNECT_PATIENCE_S), ([2, 3, 2, 3], None)]


def test_servers_that_are_down_are_waited_for_only_once() -> None:
    servers = Servers(failures=999)
    with pytest.raises(RedisUnavailableError, match="down"):
        settle(servers, WINDOW)
    assert [patience_s for _, patience_s in servers.seen[-2:]] == [None, CONNECT_PATIENCE_S]
    assert [len(slots) for slots, _ in servers.seen[-2:]] == [WINDOW, WINDOW]
