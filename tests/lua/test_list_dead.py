from __future__ import annotations

from rmq import DeadMessage
from tests.conftest import MakeSlot
from tests.support.core import dead as dead_
from tests.support.slots import T0, SlotState

FAILURE = {"first_ms": "5", "last_ms": "6", "type": "E", "message": "m", "attempts": 17}


def test_a_page_longest_dead_first(make_slot: MakeSlot) -> None:
    slot = make_slot()
    dead = {b"young": T0, b"old": T0 - 2, b"\xff": T0 - 1}
    before = slot.seed(SlotState(dead=dead, reason={b"old": FAILURE}, dead_body={b"young": b"1"}))
    name = slot.topic.name
    old, middle, young = (
        DeadMessage(name, 0, b"old", None, T0 - 2, "E", "m", 17, 5, 6),
        DeadMessage(name, 0, b"\xff", None, T0 - 1, "", "", 0, T0 - 1, T0 - 1),
        DeadMessage(name, 0, b"young", b"1", T0, "", "", 0, T0, T0),
    )
    assert slot.run(dead_.list_dead(slot.topic, 0, 0, 2)) == [old, middle]
    assert slot.run(dead_.list_dead(slot.topic, 0, 1, 1_000)) == [middle, young]
    assert slot.run(dead_.list_dead(slot.topic, 0, 3, 10)) == []
    assert slot.run(dead_.list_dead(slot.topic, 0, 0, 0)) == []
    assert slot.state() == before
    assert middle.text == "\\xff"
