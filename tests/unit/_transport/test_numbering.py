"""How calls that may be repeated are numbered."""

from __future__ import annotations

from rmq._transport.numbering import OPEN_CALLS, Turn, Turns, named_turn


def test_a_call_that_stays_open_keeps_few_numbers_of_its_lane() -> None:
    turns = Turns()
    stuck = turns.draw("orders", 3)
    drawn = [turns.draw("orders", 3)._replace(token=None) for _ in range(10 * OPEN_CALLS)]
    spans = [turn.number - turn.floor for turn in drawn]
    assert max(spans) < OPEN_CALLS, "the server keeps the replies of all numbers from the floor on"
    assert {turn.lane for turn in drawn} != {stuck.lane}
    assert len({turn.lane for turn in drawn}) == 2, "one lane is stuck, the other one goes on"
    assert len({(turn.lane, turn.number) for turn in [*drawn, stuck]}) == len(drawn) + 1


def test_open_calls_have_numbers_of_their_own_whoever_ends_first() -> None:
    turns, open_turns = Turns(), list[Turn]()
    for number in range(300):
        open_turns.append(turns.draw("orders", 3))
        if number % 3 == 0:
            del open_turns[number % len(open_turns)]
    assert len({(turn.lane, turn.number) for turn in open_turns}) == len(open_turns)
    assert all(0 <= turn.number - turn.floor < OPEN_CALLS for turn in open_turns)


def test_each_slot_has_lanes_of_its_own() -> None:
    turns = Turns()
    drawn = [turns.draw(topic, slot) for topic in ("a", "b") for slot in range(3) for _ in range(2)]
    assert [turn.number for turn in drawn] == [1, 2] * 6
    assert len({turn.lane for turn in drawn}) == 6


def test_a_name_has_lanes_of_few_numbers_each_and_no_other_name_has_them() -> None:
    names = ("a", "0:a", "a:0", "1:a", "=0:a")
    turns = [named_turn(name, number) for name in names for number in range(1, 3 * OPEN_CALLS + 1)]
    assert len({(turn.lane, turn.number) for turn in turns}) == len(turns)
    lanes = {turn.lane for turn in turns}
    assert len(lanes) == 3 * len(names)
    assert all(lane.startswith("=") for lane in lanes)
