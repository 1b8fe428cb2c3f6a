from __future__ import annotations

from dataclasses import replace

from rmq import TopicType
from tests.conftest import MakeSlot
from tests.support.slots import SlotState


def test_the_last_send_decides(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    slot.send((b"a", 50, b"first"), (b"b", 60))
    assert slot.send((b"a", 40, b"second"), (b"b", 70)).merged == 2
    assert slot.state() == SlotState(
        store={b"a": 40, b"b": 70},
        body={b"a": b"second"},
        totals={"accepted": 4, "merged": 2},
        hints=[0, 0],
    )


def test_a_send_makes_a_rolled_back_message_fresh(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    before = slot.seed(SlotState(store={b"a": 3}))
    slot.send((b"a", 40))
    assert slot.state() == replace(before, store={b"a": 40}, totals={"accepted": 2, "merged": 1}, hints=[0])


def test_priorities_up_to_2_to_the_53_are_exact(make_slot: MakeSlot) -> None:
    # pitfall 13
    slot = make_slot(TopicType.PRIORITY)
    scores = {b"a": 2**53 - 1, b"b": 2**53 - 2, b"c": 1_780_000_000_123_456, b"d": 1_780_000_000_123_457}
    slot.send(*scores.items())
    assert slot.state().store == scores
    assert [(claimed.content, claimed.store_score) for claimed in slot.claim().messages] == list(scores.items())[
        :2
    ] + list(scores.items())[:1:-1]
