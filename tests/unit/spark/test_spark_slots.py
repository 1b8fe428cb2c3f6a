"""How acks and renewals wait for servers that are down: they need no Redis to be seen."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from rmq import RedisUnavailableError, Topic, TopicType
from rmq._transport.call import Call
from rmq._transport.connections import Connections
from rmq._transport.dispatch import CONNECT_PATIENCE_S
from rmq.spark import slots
from rmq.spark.calls import Driver, Settled
from rmq.spark.slots import WINDOW, Pace, QuerySlots, SettledBatch

TOPIC = Topic("t", TopicType.PRIORITY, slots=4)
DRIVER = Driver("query", 1)


class Servers:
    """Connections whose slots 2 and 3 do not answer in the first `failures` rounds."""

    def __init__(self, failures: int, silent: bool = False) -> None:
        self.failures = failures
        self.seen: list[tuple[list[int], float | None]] = []
        self.unresponsive_nodes = ["node"] if silent else []

    def unresponsive(self, key: str) -> bool:
        return key.startswith(("t_2", "t_3"))

    def run_many(self, calls: Sequence[Call[Any]], patience_s: float | None = None) -> list[Any]:
        slots = [call.slot for call in calls]
        down = sum(2 in earlier for earlier, _ in self.seen) < self.failures
        self.seen.append((slots, patience_s))
        return [RedisUnavailableError("down") if slot >= 2 and down else Settled(1, 0, 0) for slot in slots]


class Breaths(Pace):
    """Counts the breaths, and takes none; the breath with the number `stop` ends the batch."""

    def __init__(self, piece: int, stop: int = 0) -> None:
        self.piece, self.stop, self.number = piece, stop, 0

    def breathe(self) -> bool:
        self.number += 1
        return self.number == self.stop


def settle(servers: Servers, chunks: int = 1, pace: Pace | None = None) -> SettledBatch:
    parts = [(slot, chunk) for chunk in range(chunks) for slot in range(TOPIC.slots)]
    query_slots = QuerySlots(cast("Connections", servers), TOPIC)
    query_slots.pace = pace
    return query_slots.settle(DRIVER, 1, parts, "ack")


def all_done(chunks: int) -> SettledBatch:
    each = dict.fromkeys(range(TOPIC.slots), chunks)
    return SettledBatch(each, 0, {}, 0, each)


@pytest.mark.parametrize("piece", [1, 2, 4])
def test_a_batch_is_settled_in_small_pieces_with_a_breath_behind_each(piece: int) -> None:
    servers, pace = Servers(failures=0), Breaths(piece)
    assert settle(servers, 3, pace) == all_done(3)
    assert [slots for slots, _ in servers.seen] == [[0, 1, 2, 3][n : n + piece] for n in range(0, 4, piece)] * 3
    assert pace.number == 12 // piece


def test_whoever_stops_while_it_breathes_leaves_the_rest() -> None:
    assert settle(Servers(failures=0), 3, Breaths(4, stop=1)) == all_done(1)


class Breath(threading.Event):
    """Notes how long a breath would take, and how a call before it takes `call_s`."""

    def __init__(self, now: list[float]) -> None:
        super().__init__()
        self.now, self.breaths = now, list[float]()

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.breaths.append(timeout)
        self.now[0] += timeout
        return self.is_set()


@pytest.mark.parametrize(
    ("call_s", "most_at_once"),
    [(0.003, 1), (0.010, 1), (0.015, 2), (0.030, 3), (0.500, 4)],
)
def test_renewals_go_one_after_the_other_while_that_is_in_time(
    monkeypatch: pytest.MonkeyPatch, call_s: float, most_at_once: int
) -> None:
    now = [100.0]
    monkeypatch.setattr(slots, "monotonic_s", lambda: now[0])
    breath = Breath(now)
    pace, left, sizes = Pace(400, 10, breath), 400, list[int]()
    while left > 0:
        sizes.append(min(left, pace.piece))
        left -= pace.piece
        now[0] += call_s
        assert not pace.breathe()
    assert sizes[0] == 1
    assert max(sizes) == most_at_once
    assert sum(breath.breaths) == pytest.approx(5, rel=0.02)
    if call_s < 0.05:
        assert now[0] - 100 <= 10
    breath.set()
    assert pace.breathe()
    assert Pace(400, 10, breath, 4).piece == 4


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
