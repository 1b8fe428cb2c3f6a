"""What a send's reply and the totals count, and what a full backlog drops among equals."""

from __future__ import annotations

from rmq._model.merging import Merge
from rmq._model.records import Record, write_record
from rmq._model.reducers import Sum
from rmq._model.replies import SendResult
from rmq._model.topics import TopicType, WhenFull
from rmq._model.windows import Leading
from tests.conftest import MakeSlot
from tests.support.slots import T0


def number(content: bytes, score: int, weight: int = 1) -> tuple[bytes, int, bytes]:
    return content, score, write_record(Record(weight, 0, 0, 1, "S", b""))


def test_what_a_window_drops_is_merged_in_the_reply_and_not_in_the_totals(make_slot: MakeSlot) -> None:
    slot = make_slot(merge=Merge(Sum(), window=Leading(500, trailing=False)))
    assert slot.send(number(b"x", 500)) == SendResult(1, 0)
    slot.claim(1)
    result = slot.send(number(b"x", 500), number(b"x", 500), number(b"x", 500, weight=5))
    assert result == SendResult(0, 3, dropped=7), "messages in `merged`, sends in `dropped`"
    assert result.accepted == 3
    totals = slot.state().totals
    assert {name: totals.get(name, 0) for name in ("accepted", "merged", "dropped")} == {
        "accepted": 8,
        "merged": 0,
        "dropped": 7,
    }


def test_what_makes_room_counts_as_one_however_many_sends_it_stands_for(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY, merge=Merge(Sum()), max_backlog=1, when_full=WhenFull.DROP)
    assert slot.send(number(b"low", 50), number(b"low", 50, weight=5)) == SendResult(1, 1)
    assert slot.send(number(b"high", 90)) == SendResult(1, 0, dropped=1)
    totals = slot.state().totals
    assert {name: totals[name] for name in ("accepted", "merged", "dropped")} == {
        "accepted": 7,
        "merged": 5,
        "dropped": 1,
    }


def test_among_equal_priorities_the_smallest_bytes_are_dropped(make_slot: MakeSlot) -> None:
    for ties in ("any", "oldest"):  # all are of one age
        slot = make_slot(TopicType.PRIORITY, max_backlog=2, when_full=WhenFull.DROP, ties=ties)
        assert slot.send((b"b", 50), (b"a", 50), (b"c", 50)).dropped == 1
        assert slot.state().store.keys() == {b"b", b"c"}


def test_among_equal_due_times_the_largest_bytes_are_dropped(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME, max_backlog=2, when_full=WhenFull.DROP)
    due = T0 + 500
    assert slot.send((b"b", due), (b"a", due), (b"c", due)).dropped == 1
    assert slot.state().store.keys() == {b"a", b"b"}
