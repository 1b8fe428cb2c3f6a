from __future__ import annotations

from datetime import timedelta

import pytest

from rmq import TopicType
from tests.conftest import MakeSlot
from tests.support.core import claims, slot_keys
from tests.support.slots import T0, SlotState

NOW_S = T0 // 1000


@pytest.mark.parametrize(
    ("kind", "state", "due_ms"),
    [
        (TopicType.FIXED_TIME, SlotState(), 0),
        (TopicType.FIXED_TIME, SlotState(store={b"a": T0 + 5, b"b": T0 + 6}), T0 + 5),
        (TopicType.FIXED_TIME, SlotState(store={b"a": 3}), 3),
        (
            TopicType.FIXED_TIME,
            SlotState(store={b"a": T0 + 5000}, retry={b"b": (NOW_S + 2) * 1000 + 7}),
            (NOW_S + 2) * 1000,
        ),
        (TopicType.FIXED_TIME, SlotState(prepare={b"b": T0 * 1000 + 7}), T0 + 5_001),
        (TopicType.PRIORITY, SlotState(store={b"a": 2**53 - 1}), T0),
        (TopicType.PRIORITY, SlotState(prepare={b"b": T0 * 1000 + 7}), T0 + 5_001),
        (TopicType.FIXED_TIME, SlotState(store={b"a": 3}, owner={"paused": "1"}), 0),
        (TopicType.PRIORITY, SlotState(store={b"a": 50}, owner={"paused": "1"}), 0),
    ],
)
def test_when_there_is_something_to_do(kind: TopicType, state: SlotState, due_ms: int, make_slot: MakeSlot) -> None:
    slot = make_slot(kind, lease=timedelta(seconds=5))
    before = slot.seed(state)
    assert slot.run(claims.look(slot.topic, [0])) == (T0, [due_ms])
    assert slot.state() == before


def test_256_slots_in_one_call(make_slot: MakeSlot) -> None:
    # pitfall 12
    slot = make_slot(slots=256)
    for number in (3, 200):
        slot.client.zadd(slot_keys(slot.topic.name, number).store, {b"a": T0 + number})
        slot.client.hset(slot_keys(slot.topic.name, number).meta, "accepted", 1)
    expected = [T0 + number if number in (3, 200) else 0 for number in range(256)]
    assert slot.run(claims.look(slot.topic, range(256))) == (T0, expected)
