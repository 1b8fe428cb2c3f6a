"""The due_times: nothing is forgotten, every slot gets its turn, and only state decides (pitfalls 25 to 27)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq._claiming.due_times import DueTimes

NOW_MS = 1_790_000_000_000
SLOTS = st.integers(1, 40)


def note(due_times: DueTimes, slot: int, due_ms: int) -> None:
    """A claim from a slot has told when it is due next; 0 for never."""
    due_times.picked([slot])
    if due_ms:
        due_times.hint(slot, due_ms)


def settled(slots: int, monotonic_s: float = 100.0) -> DueTimes:
    """A due_times that knows Redis' clock (`NOW_MS` at `monotonic_s`) and has nothing to do."""
    due_times = DueTimes(range(slots))
    due_times.sync_clock(NOW_MS, monotonic_s)
    for slot in range(slots):
        note(due_times, slot, 0)
    return due_times


def test_at_first_every_slot_is_due() -> None:
    due_times = DueTimes([3, 1, 2])
    assert due_times.due(5.0, 10) == [3, 1, 2]
    assert due_times.wait_s(5.0, 1.0) == 0


def test_without_slots_there_is_nothing_to_do() -> None:
    due_times = DueTimes([])
    assert due_times.due(5.0, 10) == []
    assert due_times.wait_s(5.0, 0.7) == 0.7


def test_redis_time_is_mapped_to_the_local_clock() -> None:
    due_times = settled(1)
    note(due_times, 0, NOW_MS + 2_500)
    assert due_times.wait_s(100.0, 10.0) == 2.5
    assert due_times.wait_s(101.0, 10.0) == 1.5
    assert due_times.wait_s(100.0, 1.0) == 1.0
    assert due_times.due(102.499, 10) == []
    assert due_times.due(102.5, 10) == [0]
    # Redis' clock was set back: its word counts, nothing is early
    due_times.sync_clock(NOW_MS, 102.5)
    assert due_times.due(102.5, 10) == []


def test_a_hint_only_brings_a_slot_forward() -> None:
    due_times = settled(3)
    due_times.hint(0, NOW_MS + 500)
    assert due_times.wait_s(100.0, 10.0) == 0.5
    due_times.hint(0, NOW_MS + 900)  # later than known
    assert due_times.wait_s(100.0, 10.0) == 0.5
    due_times.hint(0, NOW_MS + 100)
    assert due_times.wait_s(100.0, 10.0) == 0.1
    due_times.hint(1, 0)
    assert due_times.due(100.0, 10) == [1]
    due_times.hint(99, 0)  # somebody else's
    assert due_times.due(100.0, 10) == [1]


def test_postponed_is_due_after_the_pause_whatever_was_known() -> None:
    due_times = settled(2)
    due_times.hint(0, 1)
    due_times.postpone(0, 100.0, 0.2)
    due_times.postpone(1, 100.0, 0.3)
    due_times.postpone(9, 100.0, 0.3)  # not ours
    assert due_times.due(100.19, 10) == []
    assert due_times.due(100.2, 10) == [0]
    assert due_times.due(100.3, 10) == [0, 1]


def test_postponed_before_redis_has_told_its_time() -> None:
    due_times = DueTimes([0])
    due_times.postpone(0, 100.0, 0.2)
    assert due_times.due(100.1, 10) == []
    assert due_times.wait_s(100.1, 10.0) == pytest.approx(0.1, abs=0.002)
    assert due_times.due(100.21, 10) == [0]
    due_times.sync_clock(NOW_MS, 100.1)
    assert due_times.due(100.1, 10) == [0]


def test_other_slots_join_due_at_once_and_gone_ones_are_forgotten() -> None:
    due_times = settled(3)
    due_times.set_slots([1, 2, 7, 5])
    assert due_times.due(100.0, 10) == [5, 7]
    note(due_times, 0, 1)  # an answer that comes late
    due_times.served([0, 5])
    assert due_times.due(100.0, 10) == [7, 5]


@given(slots=SLOTS, most=st.integers(1, 16))
def test_fairness_each_slot_has_its_turn_though_all_are_always_due(slots: int, most: int) -> None:
    due_times = settled(slots)
    for slot in range(slots):
        note(due_times, slot, 1)
    for _ in range(3):
        seen: list[int] = []
        for _ in range(-(-slots // most)):
            turn = due_times.due(100.0, most)
            due_times.served(turn)
            seen += turn
        assert set(seen) == set(range(slots))


@given(slots=SLOTS, flooded=st.integers(0, 39))
def test_fairness_a_slot_that_becomes_due_goes_before_a_flooded_one(slots: int, flooded: int) -> None:
    due_times = settled(slots)
    flooded %= slots
    note(due_times, flooded, 1)
    for _ in range(3):
        due_times.served(due_times.due(100.0, 1))
    for other in range(slots):
        if other != flooded:
            due_times.hint(other, 0)
    turns: list[int] = []
    for _ in range(slots):
        turns += due_times.due(100.0, 1)
        due_times.served(turns[-1:])
    assert sorted(turns) == list(range(slots))
    assert turns[-1] == flooded


_TIMES = st.integers(-2_000, 2_000).map(lambda ms: NOW_MS + ms)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("hint"), st.integers(0, 5), st.one_of(st.just(0), _TIMES)),
        st.tuples(st.just("note"), st.integers(0, 5), st.one_of(st.just(0), _TIMES)),
        st.tuples(st.just("postpone"), st.integers(0, 5), st.integers(0, 1_000)),
        st.tuples(st.just("served"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("pass"), st.just(0), st.integers(0, 1_000)),
    ),
    max_size=60,
)


@given(steps=_STEPS)
def test_never_forgets_a_slot_and_decides_by_state_alone(steps: list[tuple[str, int, int]]) -> None:
    """Against a plain model: due is what was noted or hinted for a time that has come; asking changes nothing."""
    due_times = DueTimes(range(4))
    due_times.sync_clock(NOW_MS, 100.0)
    model = dict.fromkeys(range(4), 1)
    now_ms = NOW_MS
    order = list(range(4))

    def seconds() -> float:
        return 100 + (now_ms - NOW_MS) / 1000

    def apply(kind: str, slot: int, number: int) -> None:
        if kind == "note":
            note(due_times, slot, number)
            model.update({slot: number} if slot in model else {})
            order.sort(key=lambda other: other == slot)
        elif kind == "hint":
            due_times.hint(slot, number)
            if slot in model and (model[slot] == 0 or (number or 1) < model[slot]):
                model[slot] = number or 1
        elif kind == "postpone":
            due_times.postpone(slot, seconds(), number / 1000)
            model.update({slot: now_ms + number} if slot in model else {})
        elif kind == "served" and slot in model:
            due_times.served([slot])
            order.remove(slot)
            order.append(slot)

    for kind, slot, number in steps:
        if kind == "pass":
            now_ms += number
        apply(kind, slot, number)
        # half a millisecond on, past the rounding of the two clocks
        probe_s = seconds() + 0.0005
        expected = [slot for slot in order if 0 < model[slot] <= now_ms]
        assert due_times.due(probe_s, 9) == due_times.due(probe_s, 9) == expected
        assert (due_times.wait_s(probe_s, 5.0) == 0) == bool(expected)
        times = [time for time in model.values() if time]
        longest_s = min([5.0, *((time - now_ms) / 1000 for time in times)])
        assert due_times.wait_s(probe_s, 5.0) <= max(0.0, longest_s) + 0.002
