from __future__ import annotations

from dataclasses import replace

from rmq import ControlResult
from tests.conftest import MakeSlot
from tests.lua.cases import FAILURE
from tests.support.slots import T0, SlotState

HELD = T0 * 1000 + 3
DONE, IN_FLIGHT, ABSENT = ControlResult.DONE, ControlResult.IN_FLIGHT, ControlResult.ABSENT


def test_out_of_store_and_out_of_retry(make_slot: MakeSlot) -> None:
    slot = make_slot()
    names = [b"stored", b"waiting", b"twice", b"other"]
    before = slot.seed(
        SlotState(
            store={b"stored": T0, b"twice": T0, b"other": T0},
            retry={b"waiting": HELD, b"twice": HELD},
            body=dict.fromkeys(names, b"1"),
            error=dict.fromkeys(names, FAILURE),
        )
    )
    assert slot.cancel(b"stored", b"waiting", b"twice", b"absent", b"stored") == [DONE, DONE, DONE, ABSENT, ABSENT]
    assert slot.state() == replace(
        before,
        store={b"other": T0},
        retry={},
        body={b"other": b"1"},
        error={b"other": FAILURE},
        totals={"accepted": 5, "cancelled": 4},
    )


def test_what_is_in_a_handlers_hands_is_left_alone(make_slot: MakeSlot) -> None:
    slot = make_slot()
    before = slot.seed(
        SlotState(
            store={b"resent": T0},
            prepare={b"held": HELD, b"resent": HELD},
            body={b"held": b"1", b"resent": b"2"},
            error={b"resent": FAILURE},
        )
    )
    assert slot.cancel(b"held", b"resent") == [IN_FLIGHT, DONE]
    assert slot.state() == replace(before, store={}, totals={"accepted": 3, "cancelled": 1})
