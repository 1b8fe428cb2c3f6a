"""From how many slots a round claims, and how many messages."""

from __future__ import annotations

from rmq._claiming.claimer import FEWEST_SLOTS, FIRST_SLOTS, HEADROOM, MOST_SLOTS, RoundSize
from rmq._model.replies import Claimed, ClaimReply


def reply(messages: int, size_bytes: int = 1, next_due_ms: int = 0) -> ClaimReply[Claimed]:
    claimed = Claimed(b"c" * size_bytes, 100, 1_790_000_000_016, None)
    return ClaimReply(1_790_000_000_000, next_due_ms, 0, 0, (), (claimed,) * messages)


def test_full_claims_make_a_round_narrower_and_others_make_it_wider() -> None:
    size = RoundSize()
    size.note(500, [reply(500)])
    assert size.slots == FIRST_SLOTS // 2
    size.note(500, [reply(1)] * (FIRST_SLOTS // 2))
    assert size.slots == FIRST_SLOTS
    for _ in range(9):
        size.note(10, [reply(10)])
    assert size.slots == FEWEST_SLOTS
    for _ in range(9):
        size.note(10, [reply(0)])
    assert size.slots == MOST_SLOTS


def test_slots_may_bring_several_times_what_they_bring_on_average() -> None:
    """Else those with more than the average keep some back, of priorities always the lowest."""
    size = RoundSize()
    for _ in range(9):
        size.note(500, [reply(3)] * size.slots)
    assert 500 // size.slots == HEADROOM * 3
    for _ in range(9):
        size.note(500, [reply(1)] * size.slots)
    assert 500 // size.slots == HEADROOM
    for _ in range(9):
        size.note(500, [reply(500 // size.slots)] * size.slots)
    assert size.slots == FEWEST_SLOTS


def test_large_messages_are_asked_for_by_their_bytes() -> None:
    size = RoundSize(1_000)
    assert (size.messages(500), size.messages(1), size.messages(0)) == (500, 1, 0)
    size.note(10, [reply(10, 20)])
    assert (size.messages(500), size.messages(20)) == (50, 20)
    size.note(1, [reply(1, 5_000)])
    assert (size.messages(500), size.messages(0)) == (1, 0)
    size.note(1, [reply(0)])
    for _ in range(30):
        size.note(10, [reply(10, 20)])
    assert 45 <= size.messages(500) <= 50, "small ones are believed by and by"


def test_slots_that_others_left_no_room_for_are_noticed() -> None:
    size = RoundSize()
    assert size.note(9, [reply(5), reply(0, next_due_ms=1)])
    assert not size.note(9, [reply(5), reply(0)])
    assert not size.note(9, [reply(0, next_due_ms=1)])
