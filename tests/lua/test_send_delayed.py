"""Fixed times that are delays: below 0, ms from the script's time, negated; alone, and among times."""

from __future__ import annotations

from typing import Any

import pytest

from rmq import Merge, Replace, SendResult, TopicType, WhenFull
from rmq.errors import FixedTimePassedError
from tests.conftest import MakeSlot
from tests.support.core import (
    Batch,
    EncodedMessage,
    PartlySent,
    QueueSends,
    Record,
    sends,
    slot_keys,
    write_record,
)
from tests.support.slots import T0, SlotState, SlotUnderTest, with_hints


def send(slot: SlotUnderTest, *messages: tuple[bytes, int], body: bytes | None = None, **how: Any) -> SendResult:
    if slot.topic.merge is not None:
        body = write_record(Record(1, 0, 0, 0, "R", b"" if body is None else b"=" + body))
    encoded = [EncodedMessage(0, content, value, body) for content, value in messages]
    calls: Any = sends.send_calls(slot.topic)
    return slot.run(with_hints(calls(0, encoded, **how)))


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "drops": {"max_backlog": 9, "when_full": WhenFull.DROP},
    "merges": {"merge": Merge(Replace())},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_delays_count_from_now_and_the_last_send_decides(make_slot: MakeSlot, settings: dict[str, Any]) -> None:
    slot = make_slot(TopicType.FIXED_TIME, **settings)
    assert send(slot, (b"a", -50), (b"b", -60), (b"c", -60)).new == 3
    assert send(slot, (b"a", -70), (b"b", -1), body=b"last").merged == 2
    assert send(slot, (b"d", -5)).new == 1
    state = slot.state()
    assert state.store == {b"a": T0 + 70, b"b": T0 + 1, b"c": T0 + 60, b"d": T0 + 5}
    assert state.totals == {"accepted": 6, "merged": 2}
    assert state.hints[:2] == [T0 + 50, T0 + 1]
    if not slot.topic.merge:
        assert state.body == {b"a": b"last", b"b": b"last"}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_delays_and_times_travel_together_in_order(make_slot: MakeSlot, settings: dict[str, Any]) -> None:
    slot = make_slot(TopicType.FIXED_TIME, **settings)
    sent = send(slot, (b"a", T0 + 50), (b"a", -9), (b"b", -9), (b"b", T0 + 70), (b"c", -40))
    assert (sent.new, sent.merged) == (3, 2)
    assert slot.state().store == {b"a": T0 + 9, b"b": T0 + 70, b"c": T0 + 40}
    assert slot.state().hints == [T0 + 9]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_of_delays_and_times_only_times_pass(make_slot: MakeSlot, settings: dict[str, Any]) -> None:
    slot = make_slot(TopicType.FIXED_TIME, **settings)
    mixed = (b"a", -7), (b"late", T0), (b"b", -1), (b"c", T0 + 3)
    with pytest.raises(FixedTimePassedError, match=f"fixed_time {T0} is in the past"):
        send(slot, *mixed)
    assert slot.state() == SlotState(merges=slot.topic.merge is not None)
    result = send(slot, *mixed, partly="each", detailed=True)
    assert isinstance(result, PartlySent)
    assert (result.new, result.refused, result.outcomes) == (3, {1: "RMQ_PAST"}, (True, False, True, True))
    assert slot.state().store == {b"a": T0 + 7, b"b": T0 + 1, b"c": T0 + 3}
    assert slot.state().hints == [T0 + 1]


def test_several_slots_in_a_call_take_delays(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME, slots=2, checked=False)
    parts = [
        Batch(0, [b"a", b"b"], [-5, T0 + 2]),
        Batch(1, [b"c", b"late", b"d"], [-8, T0, -8]),
    ]
    first, second = slot.run(with_hints(QueueSends(slot.topic).joined(parts)))
    assert first == SendResult(2, 0)
    assert isinstance(second, PartlySent)
    assert (second.new, second.refused) == (2, {1: "RMQ_PAST"})
    stored = [slot.client.zrange(slot_keys(slot.topic.name, n).store, 0, -1, withscores=True) for n in (0, 1)]
    assert stored == [[(b"b", T0 + 2), (b"a", T0 + 5)], [(b"c", T0 + 8), (b"d", T0 + 8)]]
