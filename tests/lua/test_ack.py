from __future__ import annotations

from dataclasses import replace

import pytest

from rmq import Owner
from rmq.errors import FencedError
from tests.conftest import MakeSlot
from tests.support.slots import T0, SlotState

MINE, OTHER = T0 * 1000 + 16, T0 * 1000 + 15
FAILURE = {"first_ms": "1", "last_ms": "1", "type": "E", "message": "m"}


def test_done_and_gone_with_body_and_failure(make_slot: MakeSlot) -> None:
    slot = make_slot()
    before = slot.seed(
        SlotState(
            prepare={b"a": MINE, b"b": MINE, b"c": OTHER},
            body={b"a": b"1", b"c": b"3"},
            error={b"a": FAILURE, b"c": FAILURE},
        )
    )
    assert slot.ack((b"a", MINE), (b"b", MINE)) == ()
    assert slot.state() == replace(
        before,
        prepare={b"c": OTHER},
        body={b"c": b"3"},
        error={b"c": FAILURE},
        totals={"accepted": 3, "acked": 2},
    )


def test_a_stale_ack_changes_nothing_and_is_told(make_slot: MakeSlot) -> None:
    # pitfall 31
    slot = make_slot()
    before = slot.seed(SlotState(prepare={b"theirs": OTHER, b"mine": MINE}, body={b"theirs": b"1"}))
    acks = (b"theirs", MINE), (b"mine", MINE), (b"gone", MINE), (b"mine", OTHER)
    assert slot.ack(*acks) == (b"theirs", b"gone", b"mine")
    assert slot.state() == replace(before, prepare={b"theirs": OTHER}, totals={"accepted": 2, "acked": 1})


def test_the_body_of_a_fresh_copy_stays(make_slot: MakeSlot) -> None:
    # pitfall 34
    slot = make_slot()
    before = slot.seed(SlotState(store={b"a": T0}, prepare={b"a": MINE, b"b": MINE}, body={b"a": b"1", b"b": b"2"}))
    slot.ack((b"a", MINE), (b"b", MINE))
    assert slot.state() == replace(before, prepare={}, body={b"a": b"1"}, totals={"accepted": 3, "acked": 2})


def test_2500_at_once_some_stale(make_slot: MakeSlot) -> None:
    # pitfall 12
    slot = make_slot()
    prepare = {b"%d" % number: OTHER if number % 1_000 == 7 else MINE for number in range(2_500)}
    slot.seed(SlotState(prepare=prepare, body=dict.fromkeys(prepare, b"1")))
    assert slot.ack(*((name, MINE) for name in prepare)) == (b"7", b"1007", b"2007")
    state = slot.state()
    assert set(state.prepare) == set(state.body) == {b"7", b"1007", b"2007"}


def test_many_claim_scores_in_one_call(make_slot: MakeSlot) -> None:
    slot = make_slot()
    prepare = {b"%d" % number: MINE - number * 1_000 for number in range(1_000)}
    slot.seed(SlotState(prepare=prepare))
    assert slot.ack(*prepare.items()) == ()
    assert slot.state() == SlotState(totals={"accepted": 1_000, "acked": 1_000})


def test_16_digit_claim_scores_are_compared_exactly(make_slot: MakeSlot) -> None:
    # pitfall 13
    slot = make_slot()
    before = slot.seed(SlotState(prepare={b"a": 2**53 - 1}))
    assert slot.ack((b"a", 2**53 - 2)) == (b"a",)
    assert slot.state() == before
    assert slot.ack((b"a", 2**53 - 1)) == ()


def test_an_older_owner_is_refused(make_slot: MakeSlot) -> None:
    # pitfall 41
    slot = make_slot()
    slot.seed(SlotState(prepare={b"a": MINE}, owner={"epoch": "7", "ensemble": "zk"}))
    before = slot.dump()
    with pytest.raises(FencedError):
        slot.ack((b"a", MINE), owner=Owner(6, "zk"))
    assert slot.dump() == before
    assert slot.ack((b"a", MINE), owner=Owner(8, "zk")) == ()
    assert slot.state().owner == {"epoch": "8", "ensemble": "zk"}
