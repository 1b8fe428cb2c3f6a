"""A chunk of a streaming query's batch goes to a slot once, however often its batch is run."""

from __future__ import annotations

import pytest

from rmq import TopicType, WhenFull
from rmq.errors import BacklogFullError, FixedTimePassedError
from rmq.spark.marks import Mark, Once, send_once
from tests.conftest import MakeSlot, MakeTopic
from tests.support.core import EncodedMessage, sent_key
from tests.support.slots import SlotUnderTest

ROWS = [EncodedMessage(0, b"a", 1_000, b"A"), EncodedMessage(0, b"b", 2_000, None)]
OTHER = [EncodedMessage(0, b"c", 1_000, None)]


def mark(batch: int = 3, partition: int = 0, chunk: int = 0, rows: list[EncodedMessage] = ROWS) -> Mark:
    return Mark("q1", batch, partition, 600).of(chunk, rows)


def send(slot: SlotUnderTest, marked: Mark, rows: list[EncodedMessage] = ROWS) -> Once:
    return slot.run(send_once(slot.topic, 0, rows, marked))


def test_a_chunk_is_sent_once(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    assert send(slot, mark()) == Once(2, 0, 0)
    state = slot.state()
    assert (state.store, state.body) == ({b"a": 1_000, b"b": 2_000}, {b"a": b"A"})
    slot.cancel(b"a")
    before = slot.dump()
    assert send(slot, mark()) == Once(0, 0, 2)
    assert slot.dump() == before
    assert send(slot, mark(batch=2), OTHER) == Once(0, 0, 1), "a late task of an earlier batch"
    assert send(slot, mark(batch=4)) == Once(1, 1, 0)
    assert 0 < slot.client.ttl(sent_key(slot.topic.name, 0, "q1")) <= 600


def test_other_rows_another_chunk_and_another_partition_are_sent(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY)
    send(slot, mark())
    assert send(slot, mark(rows=OTHER), OTHER).new == 1, "the batch was not the same: at least once"
    assert send(slot, mark(chunk=1)).merged == 2
    assert send(slot, mark(partition=1)).merged == 2


def test_times_are_those_of_the_plain_sends(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.RANGE_MERGE)
    assert send(slot, mark()).new == 2
    assert slot.state().store == {b"a": slot.now_ms + 1_000, b"b": slot.now_ms + 2_000}
    slot.advance(500)
    assert send(slot, mark(batch=4)) == Once(0, 2, 0)
    assert slot.state().store[b"a"] == slot.now_ms + 500


def test_a_refused_chunk_leaves_no_mark(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.FIXED_TIME, max_backlog=2)
    due = slot.now_ms + 10
    rows = [EncodedMessage(0, b"a", due, None), EncodedMessage(0, b"b", due, None)]
    slot.advance(10)
    with pytest.raises(FixedTimePassedError, match=f"fixed_time {due} is in the past"):
        send(slot, mark(rows=rows), rows)
    later = [row._replace(value=slot.now_ms + 10) for row in rows]
    with pytest.raises(BacklogFullError):
        send(slot, mark(), [*later, EncodedMessage(0, b"c", slot.now_ms + 5, None)])
    assert slot.dump() == {}
    assert send(slot, mark(rows=rows), later).new == 2
    slot.advance(1_000)
    assert send(slot, mark(rows=rows), later).skipped == 2, "what was sent needs no time ahead any more"


def test_topics_that_drop_and_messages_that_age_take_marks(make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.PRIORITY, max_backlog=1, when_full=WhenFull.DROP, ttl="1h")
    assert send(slot, mark()) == Once(2, 0, 0)
    state = slot.state()
    assert (len(state.store), state.totals["dropped"], set(state.born)) == (1, 1, set(state.store))
    assert send(slot, mark()) == Once(0, 0, 2)
    assert slot.state() == state


def test_entries_of_a_stream(make_topic: MakeTopic, make_slot: MakeSlot) -> None:
    slot = make_slot(TopicType.STREAM, checked=False)
    rows = [EncodedMessage(0, b"a", 0, b"A"), EncodedMessage(0, b"xy", 0, None, (b"x", b"y"))]
    for expected in (Once(2, 0, 0), Once(0, 0, 2)):
        assert send(slot, mark(rows=rows), rows) == expected
    entries = slot.client.xrange(slot.keys.store) or []
    assert [fields for _, fields in entries] == [{b"content": b"a", b"body": b"A"}, {b"x": b"y"}]


def test_the_digest_tells_lists_of_messages_apart() -> None:
    lists = [
        ROWS,
        OTHER,
        ROWS[::-1],
        [ROWS[0]._replace(body=None), ROWS[1]],
        [ROWS[0]._replace(body=b""), ROWS[1]],
        [ROWS[0]._replace(value=1_001), ROWS[1]],
        [EncodedMessage(0, b"xy", 0, None, (b"x", b"y"))],
        [EncodedMessage(0, b"xy", 0, None, (b"xy", b""))],
    ]
    assert len({mark(rows=rows).digest for rows in lists}) == len(lists)
