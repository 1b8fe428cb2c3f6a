from __future__ import annotations

from dataclasses import replace

from rmq import TopicType
from tests.conftest import MakeSlot
from tests.support.slots import T0, SlotState, SlotUnderTest


def a_slot(make_slot: MakeSlot) -> SlotUnderTest:
    return make_slot(TopicType.RANGE_MERGE)


def test_due_a_range_from_now(make_slot: MakeSlot) -> None:
    slot = a_slot(make_slot)
    slot.send((b"a", 5_000), (b"b", 1), (b"c", 5_000))
    assert slot.state() == SlotState(
        store={b"a": T0 + 5_000, b"b": T0 + 1, b"c": T0 + 5_000}, totals={"accepted": 3}, hints=[T0 + 1]
    )


def test_the_first_send_of_a_window_decides_when_it_is_due(make_slot: MakeSlot) -> None:
    slot = a_slot(make_slot)
    slot.send((b"a", 5_000, b"first"))
    before = slot.state()
    slot.advance(4_000)
    assert slot.send((b"a", 10, b"second")).merged == 1
    slot.advance(10**9)  # however old the backlog is
    assert slot.send((b"a", 10)).merged == 1
    assert slot.state() == replace(before, body={b"a": b"second"}, totals={"accepted": 3, "merged": 2})


def test_1000_sends_in_a_window_are_one_delivery(make_slot: MakeSlot) -> None:
    slot = a_slot(make_slot)
    for _ in range(1_000):
        slot.send((b"a", 5_000))
        slot.advance(4)
    slot.advance(1_000)
    assert [claimed.content for claimed in slot.claim().messages] == [b"a"]
    assert slot.state().totals == {"accepted": 1_000, "merged": 999, "delivered": 1}


def test_a_send_merges_with_what_was_rolled_back(make_slot: MakeSlot) -> None:
    slot = a_slot(make_slot)
    before = slot.seed(SlotState(store={b"a": 3}))
    slot.send((b"a", 5_000))
    assert slot.state() == replace(before, totals={"accepted": 2, "merged": 1})
