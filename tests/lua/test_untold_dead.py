"""Who has died and was not told yet: each once under each name, one teller at a time, nobody passed over."""

from __future__ import annotations

import pytest

from rmq import DeadMessage
from tests.conftest import MakeSlot
from tests.support.core import Turn, Untold, dead
from tests.support.slots import T0, SlotState, SlotUnderTest

HOLD_MS = 60_000
FAILURE = {"first_ms": "5", "last_ms": "6", "type": "E", "message": "m", "attempts": 17}


def look(slot: SlotUnderTest, turn: Turn, limit: int = 100) -> Untold[DeadMessage]:
    return slot.run(dead.untold(slot.topic, 0, turn, limit))


def told(slot: SlotUnderTest, turn: Turn, limit: int = 100) -> tuple[list[str], Turn]:
    """What is told until nothing is left, and the turn after it."""
    names: list[str] = []
    while True:
        found = look(slot, turn, limit)
        names += [each.text for each in found.dead]
        turn = turn.done(found)
        if not found.more:
            return names, turn


def begun(slot: SlotUnderTest, name: str = "ops", holder: str = "me") -> Turn:
    turn = Turn(name, holder, HOLD_MS)
    return turn.done(look(slot, turn, 0))


def die(slot: SlotUnderTest, *contents: str, at_ms: int) -> None:
    slot.client.zadd(slot.keys.dead, dict.fromkeys(contents, at_ms))


def test_who_was_dead_before_is_not_told_and_who_dies_is_told_a_second_later(make_slot: MakeSlot) -> None:
    slot = make_slot(checked=False)
    slot.seed(SlotState(dead={b"before": T0 - 2_000}, reason={b"before": FAILURE}))
    turn = begun(slot)
    die(slot, "new", at_ms=slot.now_ms)
    assert told(slot, turn)[0] == []
    slot.advance(1_001)
    names, turn = told(slot, turn)
    assert names == ["new"]
    assert told(slot, turn)[0] == []


def test_pages_within_one_millisecond_tell_each_once(make_slot: MakeSlot) -> None:
    slot = make_slot(checked=False)
    turn = begun(slot)
    die(slot, *(f"{number:03}" for number in range(25)), at_ms=slot.now_ms)
    slot.advance(2_000)
    assert told(slot, turn, limit=4)[0] == [f"{number:03}" for number in range(25)]


def test_where_the_last_told_is_gone_its_millisecond_is_told_again(make_slot: MakeSlot) -> None:
    slot = make_slot(checked=False)
    turn = begun(slot)
    die(slot, "a", "b", "c", at_ms=slot.now_ms)
    slot.advance(2_000)
    found = look(slot, turn, 2)
    assert [each.text for each in found.dead] == ["a", "b"]
    slot.client.zrem(slot.keys.dead, "b")
    assert told(slot, turn.done(found))[0] == ["a", "c"]


def test_another_one_has_to_wait_until_the_time_of_the_first_is_over(make_slot: MakeSlot) -> None:
    slot = make_slot(checked=False)
    mine = begun(slot)
    die(slot, "new", at_ms=slot.now_ms)
    slot.advance(2_000)
    other = Turn("ops", "other", HOLD_MS)
    assert look(slot, other) == Untold(0, [], False)
    assert other.done(look(slot, other)) == other
    slot.advance(HOLD_MS)
    names, other = told(slot, other)
    assert names == ["new"]  # the first one has crashed before it could note that it has told
    assert look(slot, mine) == Untold(0, [], False)


@pytest.mark.parametrize("back_ms", [25_000, 3_600_000])
def test_a_turn_of_a_clock_that_was_set_back_holds_up_nobody(make_slot: MakeSlot, back_ms: int) -> None:
    slot = make_slot(checked=False)
    begun(slot)
    slot.advance(-back_ms)
    other = Turn("ops", "other", HOLD_MS)
    other = other.done(look(slot, other, 0))
    die(slot, "new", at_ms=slot.now_ms)
    slot.advance(2_000)
    assert told(slot, other)[0] == ["new"]
    assert look(slot, Turn("ops", "third", HOLD_MS)) == Untold(0, [], False)


def test_what_is_noted_is_not_told_by_the_next_one(make_slot: MakeSlot) -> None:
    slot = make_slot(checked=False)
    turn = begun(slot)
    die(slot, "new", at_ms=slot.now_ms)
    slot.advance(2_000)
    _, turn = told(slot, turn)
    look(slot, Turn(turn.name, turn.holder, 0, turn.since, turn.after), 0)  # as at a close
    slot.advance(1)
    assert told(slot, Turn("ops", "other", HOLD_MS))[0] == []


def test_each_name_is_told_of_all(make_slot: MakeSlot) -> None:
    slot = make_slot(checked=False)
    ops, shop = begun(slot), begun(slot, "shop", "other")
    die(slot, "new", at_ms=slot.now_ms)
    slot.advance(2_000)
    assert told(slot, ops)[0] == told(slot, shop)[0] == ["new"]


def test_a_clock_that_is_set_back_passes_over_nobody(make_slot: MakeSlot) -> None:
    slot = make_slot(checked=False)
    turn = begun(slot)
    slot.advance(50_000)
    _, turn = told(slot, turn)
    slot.advance(-40_000)
    _, turn = told(slot, turn)  # notices it
    die(slot, "new", at_ms=slot.now_ms)
    slot.advance(1_001)
    assert told(slot, turn)[0] == ["new"]


def test_a_turn_from_a_clock_that_was_days_ahead_holds_nobody_up(make_slot: MakeSlot) -> None:
    slot = make_slot(checked=False)
    slot.client.hset(slot.keys.meta, "told:ops", f"other {T0 + 10**12} 5")
    die(slot, "old", at_ms=6)
    assert told(slot, Turn("ops", "me", HOLD_MS))[0] == ["old"]


def test_garbage_in_the_note_begins_anew(make_slot: MakeSlot) -> None:
    slot = make_slot(checked=False)
    slot.client.hset(slot.keys.meta, "told:ops", "garbage")
    die(slot, "old", at_ms=6)
    assert told(slot, Turn("ops", "me", HOLD_MS))[0] == []
