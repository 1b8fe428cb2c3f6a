"""A chunk of a batch goes once to a slot of a topic that merges, however often its task runs: each send counts."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from rmq import Collect, Max, Merge, Sum, TopicType, WhenFull
from rmq.errors import (
    BacklogFullError,
    BatchChangedError,
    CollectionFullError,
    FixedTimePassedError,
    SumOutOfRangeError,
)
from rmq.spark.marks import Mark, Once, send_once
from tests.conftest import MakeSlot
from tests.support.core import EncodedMessage, Record, Reducer, framed, read_record, sent_key, write_record
from tests.support.slots import SlotUnderTest, with_hints

HOUR_MS = 3_600_000


def number(content: bytes, value: float, count: int = 1, kind: str = "S", score: int = 5_000) -> EncodedMessage:
    return EncodedMessage(0, content, score, write_record(Record(count, 0, 0, value, kind)))


def items(content: bytes, *values: bytes, kind: str = "C") -> EncodedMessage:
    return EncodedMessage(0, content, 5_000, write_record(Record(1, 0, 0, len(values), kind, framed(values))))


ROWS = [number(b"a", 3, 2), number(b"b", 5)]


def mark(rows: list[EncodedMessage], batch: int = 3, partition: int = 0, chunk: int = 0) -> Mark:
    return Mark("q1", batch, partition, 600).of(chunk, rows, merges=True)


def send(slot: SlotUnderTest, rows: list[EncodedMessage], marked: Mark | None = None) -> Once:
    return slot.run(with_hints(send_once(slot.topic, 0, rows, marked or mark(rows))))


def sums(slot: SlotUnderTest) -> dict[bytes, tuple[float, int]]:
    found = {content: read_record(body) for content, body in slot.state().body.items()}
    return {content: (record.number, record.count) for content, record in found.items() if record}


@pytest.fixture
def slot(make_slot: MakeSlot) -> SlotUnderTest:
    return make_slot(TopicType.PRIORITY, merge=Merge(Sum()))


def test_a_chunk_counts_once(slot: SlotUnderTest) -> None:
    assert send(slot, ROWS) == Once(2, 0, 0)
    before = slot.dump()
    assert send(slot, ROWS) == Once(0, 0, 2)
    assert slot.dump() == before
    assert (sums(slot), slot.state().totals["accepted"]) == ({b"a": (3, 2), b"b": (5, 1)}, 3)
    slot.cancel(b"a")
    assert send(slot, ROWS) == Once(0, 0, 2), "consumed meanwhile, and not sent again"
    assert send(slot, ROWS, mark(ROWS, batch=2)) == Once(0, 0, 2), "a late task of an earlier batch"
    assert send(slot, ROWS, mark(ROWS, batch=4)) == Once(1, 1, 0)
    assert send(slot, ROWS, mark(ROWS, batch=4, chunk=1)) == send(slot, ROWS, mark(ROWS, partition=1)) == Once(0, 2, 0)
    assert sums(slot) == {b"a": (9, 6), b"b": (20, 4)}
    assert 0 < slot.client.ttl(sent_key(slot.topic.name, 0, "q1")) <= 600


@pytest.mark.parametrize(("reducer", "kind"), [(Sum(), "S"), (Collect(), "C")])
def test_other_rows_under_the_same_mark_are_refused_where_each_send_counts(
    reducer: Reducer, kind: str, make_slot: MakeSlot
) -> None:
    slot = make_slot(TopicType.PRIORITY, merge=Merge(reducer))
    first, second = ([number(b"a", 1, kind=kind)], [number(b"b", 1, kind=kind)])
    if kind == "C":
        first, second = [items(b"a", b"1")], [items(b"a", b"2")]
    assert send(slot, first).new == 1
    before = slot.dump()
    with pytest.raises(BatchChangedError, match="batch 3"):
        send(slot, second)
    assert slot.dump() == before
    assert send(slot, second, mark(second, batch=4)).skipped == 0


def test_other_rows_are_sent_where_a_second_send_changes_no_value(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY, merge=Merge(Max()))
    send(slot, [number(b"a", 7, kind="X")])
    assert send(slot, [number(b"a", 9, kind="X")]) == Once(0, 1, 0)
    assert sums(slot) == {b"a": (9, 2)}


def test_what_was_sent_without_some_messages_counts_as_sent(slot: SlotUnderTest) -> None:
    rows = [*ROWS, number(b"c", 7)]
    assert send(slot, [rows[0]], mark(rows).without([1, 2])) == Once(1, 0, 0)
    before = slot.dump()
    assert send(slot, rows) == Once(0, 0, 1, (1, 2))
    assert send(slot, rows[:2], mark(rows).without([2])) == Once(0, 0, 0, (1, 2)), "refused later than by the first"
    assert slot.dump() == before
    other = [*ROWS, number(b"d", 7)]
    with pytest.raises(BatchChangedError):
        send(slot, other[:1], mark(other).without([1, 2]))


def test_what_was_sent_in_full_needs_no_time_ahead_any_more(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME, merge=Merge(Sum()))
    due = slot.now_ms + 10
    rows = [number(b"a", 1, score=due), number(b"b", 1, score=due + HOUR_MS)]
    assert send(slot, rows).new == 2
    slot.advance(1_000)
    assert send(slot, rows) == Once(0, 0, 2)
    assert send(slot, rows[1:], mark(rows).without([0])) == Once(0, 0, 1)
    with pytest.raises(FixedTimePassedError, match=f"fixed_time {due} is in the past"):
        send(slot, rows, mark(rows, batch=4))


LARGE = Merge(Collect())
"""Values of up to 64 KiB: a call folds a few of them."""


def large(number: int, tag: bytes = b"s") -> list[EncodedMessage]:
    return [items(b"m%d" % index, tag) for index in range(number)]


@pytest.fixture
def filled(make_slot: MakeSlot) -> SlotUnderTest:
    slot = make_slot(TopicType.PRIORITY, merge=LARGE)
    for index in range(40):
        send(slot, [items(b"m%d" % index, b"x" * 60_000)], mark([], chunk=100 + index))
    return slot


def test_a_call_folds_no_more_than_it_may_and_its_mark_says_how_far_it_came(filled: SlotUnderTest) -> None:
    slot, rows = filled, large(40)
    first = send(slot, rows)
    assert first.done is not None
    assert 0 < first.done < 20
    assert (first.new, first.merged, first.skipped) == (0, first.done, 0)
    before = slot.dump()
    assert send(slot, rows) == Once(0, 0, first.done, (), first.done), "run again, it goes on from there"
    assert slot.dump() == before

    done, calls = first.done, 1
    while done < len(rows):
        answer = send(slot, rows[done:], replace(mark(rows), first=done))
        again = send(slot, rows[done:], replace(mark(rows), first=done))  # its reply was lost
        assert again == Once(0, 0, answer.merged, (), answer.done)
        done, calls = answer.done or len(rows), calls + 1
        assert calls < 40
    assert send(slot, rows) == Once(0, 0, len(rows))
    assert set(sums(slot).values()) == {(2, 2)}


def test_other_rows_do_not_go_on_where_a_call_has_ended(filled: SlotUnderTest) -> None:
    rows = large(40)
    done = send(filled, rows).done
    assert done
    other = large(40, b"t")
    for first in (0, done):
        with pytest.raises(BatchChangedError):
            send(filled, other[first:], replace(mark(other), first=first))


def test_what_is_left_of_a_chunk_may_be_sent_without_some(filled: SlotUnderTest) -> None:
    rows = large(40)
    done = send(filled, rows).done
    assert done
    rest = mark(rows).without(list(range(done + 2, 40)))
    assert send(filled, rows[done : done + 2], replace(rest, first=done)) == Once(0, 2, 0)
    assert send(filled, rows) == Once(0, 0, done + 2, tuple(range(done + 2, 40)))


def test_a_call_without_some_folds_no_more_than_it_may_and_goes_on(filled: SlotUnderTest) -> None:
    rows = large(40)
    left = [row for index, row in enumerate(rows) if index not in (1, 30)]
    own = mark(rows).without([1, 30])
    first = send(filled, left, own)
    assert first.done is not None
    assert first == Once(0, first.done, 0, (), first.done)
    assert 0 < first.done < 20
    assert send(filled, rows) == Once(0, 0, first.done, (1, 30), first.done), "run again, it is told what is left"
    done, calls = first.done, 1
    while done < len(left):
        if calls == 2:  # another one is refused on the way
            left.remove(rows[39])
            own = mark(rows).without([1, 30, 39])
        answer = send(filled, left[done:], replace(own, first=done))
        assert answer.merged == (answer.done or len(left)) - done
        done, calls = answer.done or len(left), calls + 1
    assert calls > 2
    assert send(filled, rows) == Once(0, 0, 37, (1, 30, 39))
    sent = sums(filled)
    assert {name for name, (_, number) in sent.items() if number == 1} == {b"m1", b"m30", b"m39"}


def test_a_refused_chunk_leaves_no_mark(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY, merge=Merge(Sum()), max_backlog=2)
    rows = [*ROWS, number(b"c", 7)]
    with pytest.raises(BacklogFullError):
        send(slot, rows)
    largest = [number(b"a", 2**53 - 1), number(b"a", 1)]
    with pytest.raises(SumOutOfRangeError, match=r"message 2 of .* adds 1 to the sum of b'a'"):
        send(slot, largest)
    assert slot.dump() == {}
    assert send(slot, ROWS) == Once(2, 0, 0)
    lists = make_slot(TopicType.PRIORITY, merge=Merge(Collect(max_items=2, when_full="refuse")))
    with pytest.raises(
        CollectionFullError, match="1 item that counts 5 bytes, but b'a' is full: max_items is 2, max_bytes"
    ):
        send(lists, [items(b"a", b"1", b"2"), items(b"a", b"3")])
    assert lists.dump() == {}
    assert send(lists, [items(b"a", b"1", b"2")]).new == 1


def test_topics_that_drop_and_messages_that_age_take_marks(make_slot: MakeSlot) -> None:
    limits = {"max_backlog": 1, "when_full": WhenFull.DROP, "ttl": timedelta(hours=1)}
    slot = make_slot(TopicType.PRIORITY, merge=Merge(Sum()), **limits)
    assert send(slot, ROWS).skipped == 0
    state = slot.state()
    assert (len(state.store), state.totals["dropped"], state.unaccounted) == (1, 1, 0)
    assert set(state.born) == set(state.store)
    assert send(slot, ROWS).skipped == 2
    assert slot.state() == state


def test_the_digest_is_that_of_the_sends_in_whatever_order_they_were_folded() -> None:
    one = [items(b"a", b"x", b"yy"), number(b"b", 0.1 + 0.2 + 0.3)]
    other = [items(b"a", b"yy", b"x"), number(b"b", 0.3 + 0.2 + 0.1)]
    assert one[1] != other[1]
    assert mark(one) == mark(other)
    lists = [
        ROWS,
        ROWS[:1],
        ROWS[::-1],
        [number(b"a", 3, 3), ROWS[1]],
        [number(b"a", 4, 2), ROWS[1]],
        [number(b"a", 3, 2, "X"), number(b"b", 5.5, 1, "X")],
        [items(b"a", b"x")],
        [items(b"a", b"x", b"x")],
        [items(b"a", b"xx")],
    ]
    assert len({mark(rows).digest for rows in lists}) == len(lists)
