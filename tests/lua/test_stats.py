from __future__ import annotations

import pytest

from rmq import SlotStats, TopicType
from tests.conftest import MakeSlot
from tests.lua.cases import FULL
from tests.support.core import ages_for, figures, viewing
from tests.support.slots import T0, SlotState


@pytest.mark.parametrize(
    ("kind", "due_now", "oldest"), [(TopicType.FIXED_TIME, 2, T0 - 5), (TopicType.PRIORITY, 3, T0)]
)
def test_sizes_times_and_totals(kind: TopicType, due_now: int, oldest: int, make_slot: MakeSlot) -> None:
    slot = make_slot(kind)
    before = slot.seed(FULL)
    assert slot.run(viewing.stats(slot.topic, 0)) == SlotStats(
        topic=slot.topic.name,
        slot=0,
        now_ms=T0,
        backlog=3,
        due_now=due_now,
        in_flight=4,
        waiting=2,
        dead=2,
        oldest_due_ms=oldest,
        next_due_ms=T0 if kind is TopicType.PRIORITY else T0 - 39_999,
        epoch=5,
        paused=False,
        totals={"accepted": 11},
    )
    assert slot.state() == before


def test_the_longest_wait_where_scores_have_ages(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY, ties="oldest", checked=False)
    ages = ages_for(slot.topic.max_priority)
    sent = ((5_000, "middle", 5), (9_000, "low", 1), (2_000, "low, later", 1), (7_000, "high", 9))
    for age_ms, content, priority in sent:
        score = ages.aged([priority], ages.mark_at(T0 - age_ms))[0]
        slot.client.zadd(slot.keys.store, {content: score})
    assert slot.run(viewing.stats(slot.topic, 0)).oldest_sent_ms == (T0 - 9_000) // ages.unit_ms * ages.unit_ms


def test_an_empty_slot(make_slot: MakeSlot) -> None:
    slot = make_slot()
    stats = slot.run(viewing.stats(slot.topic, 0))
    assert (stats.backlog, stats.oldest_due_ms, stats.next_due_ms, stats.totals, stats.unaccounted) == (
        0,
        None,
        0,
        {},
        0,
    )


def test_owner_pause_and_accounts(make_slot: MakeSlot) -> None:
    slot = make_slot(checked=False)
    totals = {name: 2**40 + index for index, name in enumerate(figures.TOTALS)}
    slot.client.hset(slot.keys.meta, mapping={**totals, "epoch": 2**40, "ensemble": "zk", "paused": 1})
    slot.client.zadd(slot.keys.store, {b"a": 3, b"b": 2**53 - 1})
    stats = slot.run(viewing.stats(slot.topic, 0))
    assert (stats.epoch, stats.paused, stats.totals) == (2**40, True, totals)
    assert (stats.backlog, stats.oldest_due_ms, stats.next_due_ms) == (2, T0, 3)
    gone = sum(totals[name] for name in ("merged", "acked", "cancelled", "purged", "trimmed", "dropped"))
    assert stats.unaccounted == totals["accepted"] - gone - 2


def test_the_real_clock(make_slot: MakeSlot, connections: object) -> None:
    from tests.support.core import Connections

    assert isinstance(connections, Connections)
    slot = make_slot()
    seconds, micros = slot.client.time()  # pyright: ignore[reportGeneralTypeIssues]
    before_ms = seconds * 1000 + micros // 1000
    now_ms = connections.run(viewing.stats(slot.topic, 0)).now_ms
    assert before_ms <= now_ms <= before_ms + 60_000


def test_the_accounts_of_a_state_are_those_of_the_stats(make_slot: MakeSlot) -> None:
    slot = make_slot(checked=False)
    slot.seed(SlotState(store={b"a": 1}, totals={"acked": 3}))
    slot.client.hincrby(slot.keys.meta, "accepted", 5)
    assert slot.run(viewing.stats(slot.topic, 0)).unaccounted == slot.state().unaccounted == 5
