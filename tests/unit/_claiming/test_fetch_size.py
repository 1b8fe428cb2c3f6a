"""From how many slots a round claims, and how many messages."""

from __future__ import annotations

from collections.abc import Sequence

from rmq._claiming.rounds import FEWEST_SLOTS, FIRST_SLOTS, HEADROOM, MOST_SLOTS, FetchSize
from rmq._model.replies import ClaimReply
from tests.support.claims import Claimed


def reply(messages: int, size_bytes: int = 1, next_due_ms: int = 0) -> ClaimReply[tuple[Claimed, ...]]:
    claimed = Claimed(b"c" * size_bytes, 100, 1_790_000_000_016, None)
    return ClaimReply(1_790_000_000_000, next_due_ms, 0, 0, (), (claimed,) * messages)


def note(size: FetchSize, asked: int, replies: Sequence[ClaimReply[tuple[Claimed, ...]]]) -> bool:
    """Let it learn from a round of which all replies have come."""
    return size.note(asked, replies, len(replies))


def test_full_claims_make_a_round_narrower_and_others_make_it_wider() -> None:
    size = FetchSize()
    note(size, 500, [reply(500)])
    assert size.slots == FIRST_SLOTS // 2
    note(size, 500, [reply(1)] * (FIRST_SLOTS // 2))
    assert size.slots == FIRST_SLOTS
    for _ in range(9):
        note(size, 10, [reply(10)])
    assert size.slots == FEWEST_SLOTS
    for _ in range(9):
        note(size, 10, [reply(0)])
    assert size.slots == MOST_SLOTS


def test_a_round_has_slots_enough_for_its_messages_and_for_all_nodes() -> None:
    size = FetchSize(1)
    for _ in range(9):
        note(size, 500, [reply(500)])
    assert size.slots == 1, "slots that share no call cost less the fewer they are"
    assert size.size_for(500, 1_000, 1) == (500, 1)
    assert size.size_for(2_000, 1_000, 1) == (2_000, 2)
    assert size.size_for(2_001, 500, 4) == (2_001, 5)
    assert size.size_for(2_000, 1_000, 4) == (2_000, 4)
    assert size.size_for(3, 1_000, 4) == (3, 3)


def test_slots_may_bring_several_times_what_they_bring_on_average() -> None:
    """Else those with more than the average keep some back, of priorities always the lowest."""
    size = FetchSize()
    for _ in range(9):
        note(size, 500, [reply(3)] * size.slots)
    assert 500 // size.slots == HEADROOM * 3
    for _ in range(9):
        note(size, 500, [reply(1)] * size.slots)
    assert 500 // size.slots == HEADROOM
    for _ in range(9):
        note(size, 500, [reply(500 // size.slots)] * size.slots)
    assert size.slots == FEWEST_SLOTS


def test_large_messages_are_asked_for_by_their_bytes() -> None:
    size = FetchSize(most_bytes=1_000)
    assert (size.messages(500), size.messages(1), size.messages(0)) == (500, 1, 0)
    note(size, 10, [reply(10, 20)])
    assert (size.messages(500), size.messages(20)) == (50, 20)
    note(size, 1, [reply(1, 5_000)])
    assert (size.messages(500), size.messages(0)) == (1, 0)
    note(size, 1, [reply(0)])
    for _ in range(30):
        note(size, 10, [reply(10, 20)])
    assert 45 <= size.messages(500) <= 50, "small ones are believed by and by"


def test_slots_that_others_left_no_room_for_are_noticed() -> None:
    size = FetchSize()
    assert note(size, 9, [reply(5), reply(0, next_due_ms=1)])
    assert not note(size, 9, [reply(5), reply(0)])
    assert not note(size, 9, [reply(0, next_due_ms=1)])


def test_replies_of_several_servers_tell_as_much_as_those_of_one() -> None:
    """Each server's part comes by itself; it has been asked for its share of the messages."""
    whole, parts = FetchSize(), FetchSize()
    for _ in range(9):
        note(whole, 480, [reply(20)] * 12)
        for _ in range(3):
            parts.note(160, [reply(20)] * 4, 12)
    assert whole.slots == parts.slots == 12 * 480 // (HEADROOM * 240)
