"""How calls that may be repeated are numbered."""

from __future__ import annotations

from rmq._scripts.numbering import OPEN_CALLS, Turn, Turns


def test_a_call_that_stays_open_keeps_few_numbers_of_its_lane() -> None:
    turns = Turns()
    stuck = turns.draw()
    drawn = [turns.draw()._replace(token=None) for _ in range(10 * OPEN_CALLS)]
    spans = [turn.number - turn.floor for turn in drawn]
    assert max(spans) < OPEN_CALLS, "the server keeps the replies of all numbers from the floor on"
    assert {turn.lane for turn in drawn} != {stuck.lane}
    assert len({turn.lane for turn in drawn}) == 2, "one lane is stuck, the other one goes on"
    assert len({(turn.lane, turn.number) for turn in [*drawn, stuck]}) == len(drawn) + 1


def test_open_calls_have_numbers_of_their_own_whoever_ends_first() -> None:
    turns, open_turns = Turns(), list[Turn]()
    for number in range(300):
        open_turns.append(turns.draw())
        if number % 3 == 0:
            del open_turns[number % len(open_turns)]
    assert len({(turn.lane, turn.number) for turn in open_turns}) == len(open_turns)
    assert all(0 <= turn.number - turn.floor < OPEN_CALLS for turn in open_turns)
