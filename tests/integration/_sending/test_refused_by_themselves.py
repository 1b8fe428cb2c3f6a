"""What a topic that merges has no room for is refused by itself: all others of the same `send_many` are stored."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from rmq import (
    Collect,
    Fixed,
    FixedTimeMessage,
    Merge,
    PriorityMessage,
    RangeMergeMessage,
    RmqClient,
    Sum,
    Topic,
    TopicType,
    WhenFull,
)
from rmq.errors import BacklogFullError, CollectionFullError, FixedTimePassedError, SumOutOfRangeError
from tests.conftest import MakeTopic
from tests.support.clients import stats_of
from tests.support.core import batch_sender, batch_size

FULL = Merge(Collect(max_items=2, when_full="refuse"), window=Fixed("1m"))
NUMBER = 3_000
MOST = 2**53 - 1


def rows(full: str = "full", every: int = 500) -> list[RangeMergeMessage]:
    """Many messages, among them some of one content that is full from the third one on."""
    return [RangeMergeMessage(full if n % every == 7 else f"c{n}", body=f"i{n}") for n in range(NUMBER)]


def accepted(client: RmqClient, topic: Topic) -> int:
    return sum(slot.totals["accepted"] for slot in stats_of(client, topic).slots)


@pytest.mark.parametrize("slots", [1, 8])
@pytest.mark.parametrize("fold", [False, True])
def test_one_full_collect_stops_no_other(slots: int, fold: bool, client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, slots=slots, merge=FULL)
    producer = client.producer(topic)
    producer.send(RangeMergeMessage("full", body=["a", "b"]))
    sent = rows()
    with pytest.raises(CollectionFullError, match=r"b'full' is full: max_items is 2") as caught:
        producer.send_many(sent, fold=fold)
    refused = [message for message in sent if message.content == "full"]
    assert list(caught.value.not_stored) == refused
    assert (caught.value.stored, caught.value.unknown) == (NUMBER - len(refused), ())
    assert stats_of(client, topic).backlog == NUMBER - len(refused) + 1


def test_one_sum_out_of_range_stops_no_other(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, merge=Merge(Sum()))
    producer = client.producer(topic)
    producer.send(PriorityMessage("sum", 50, body=MOST))
    sent = [PriorityMessage("sum" if n % 300 == 7 else f"c{n}", 50, body=1) for n in range(2_000)]
    with pytest.raises(SumOutOfRangeError) as caught:
        producer.send_many(sent, outcomes=True)
    assert [message.content for message in caught.value.not_stored] == ["sum"] * 7
    assert stats_of(client, topic).backlog == 1_994


def test_rows_of_columns_are_refused_by_their_numbers(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, merge=FULL)
    producer = client.producer(topic)
    contents = [f"c{n % 900}" for n in range(2_400)]
    with pytest.raises(CollectionFullError) as caught:
        producer.send_columns(contents, bodies=[f"i{n}" for n in range(2_400)])
    assert sorted(caught.value.not_stored) == list(range(1_800, 2_400))
    assert caught.value.stored == 1_800


def test_one_message_is_refused_as_before(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, merge=FULL)
    producer = client.producer(topic)
    producer.send(RangeMergeMessage("full", body=["a", "b"]))
    message = RangeMergeMessage("full", body="c")
    with pytest.raises(CollectionFullError) as caught:
        producer.send(message)
    assert caught.value.not_stored == (message,)
    with pytest.raises(CollectionFullError) as caught:
        producer.send_many([message])
    assert (caught.value.stored, caught.value.not_stored) == (0, (message,))


def test_a_repeat_of_a_named_call_refuses_the_same(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, slots=4, merge=FULL)
    producer = client.producer(topic)
    sent = rows(every=50)
    told: list[object] = []
    for _ in range(2):
        with pytest.raises(CollectionFullError) as caught:
            producer.send_many(sent, once="once")
        told.append((caught.value.stored, caught.value.not_stored))
    assert told[0] == told[1]
    assert accepted(client, topic) == NUMBER - len(caught.value.not_stored)


@pytest.mark.parametrize("once", [None, "once"])
def test_what_a_call_leaves_is_sent_by_the_next_one(once: str | None, client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, merge=Merge(Collect(max_bytes=1 << 20), window=Fixed("1m")))
    producer = client.producer(topic)
    sent = [RangeMergeMessage(f"c{n}", body=b"x" * 200_000) for n in range(2 * batch_size(topic))]
    producer.send_many(sent)
    result = producer.send_many(sent, outcomes=True, once=once)
    assert (result.new, result.merged, result.outcomes) == (0, len(sent), (False,) * len(sent))
    if once:
        assert producer.send_many(sent, outcomes=True, once=once) == result
    assert accepted(client, topic) == 2 * len(sent)


@pytest.mark.parametrize("once", [None, "once"])
def test_who_waits_for_room_gets_what_a_call_leaves_sent_too(
    once: str | None, client: RmqClient, make_topic: MakeTopic
) -> None:
    merge = Merge(Collect(max_bytes=1 << 20), window=Fixed("1m"))
    topic = make_topic(TopicType.RANGE_MERGE, merge=merge, max_backlog=999, when_full=WhenFull.BLOCK)
    producer = client.producer(topic)
    sent = [RangeMergeMessage(f"c{n}", body=b"x" * 200_000) for n in range(batch_size(topic))]
    for _ in range(2):
        assert producer.send_many(sent, once=once).accepted == len(sent)


TIMED = {
    "plain": {},
    "blocks": {"max_backlog": 3_000, "when_full": WhenFull.BLOCK},
    "drops": {"max_backlog": 3_000, "when_full": WhenFull.DROP},
    "merges": {"merge": Merge(Sum())},
    "merges and blocks": {"merge": Merge(Sum()), "max_backlog": 3_000, "when_full": WhenFull.BLOCK},
}


@pytest.mark.parametrize("slots", [1, 64])
@pytest.mark.parametrize("settings", TIMED.values(), ids=TIMED)
def test_times_that_have_passed_stop_no_other(
    slots: int, settings: dict[str, Any], client: RmqClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.FIXED_TIME, slots=slots, **settings)
    value: Any = 1 if topic.merge else "1"
    ahead_ms = time.time_ns() // 1_000_000 + 600_000
    times = [1_000 if n % 7 == 3 else ahead_ms for n in range(1_200)]
    late = [n for n, due_ms in enumerate(times) if due_ms == 1_000]
    sent = [FixedTimeMessage(f"c{n}", fixed_time_ms=due_ms, body=value) for n, due_ms in enumerate(times)]
    with pytest.raises(FixedTimePassedError, match=r"fixed_time 1000 is in the past.* seconds") as caught:
        client.producer(topic).send_many(sent, outcomes=True)
    assert sorted(caught.value.not_stored, key=sent.index) == [sent[n] for n in late]
    assert (caught.value.stored, caught.value.unknown) == (len(sent) - len(late), ())
    assert accepted(client, topic) == len(sent) - len(late)
    contents, bodies = [message.content for message in sent], [value] * len(sent)
    with pytest.raises(FixedTimePassedError) as caught:
        client.producer(topic).send_columns(contents, fixed_times=times, bodies=bodies)
    assert sorted(caught.value.not_stored) == late
    assert (caught.value.stored, caught.value.unknown) == (len(sent) - len(late), ())


def test_a_time_that_a_repeat_refuses_may_be_stored(
    client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply to the first sending was lost, and by the second one the time had passed."""
    topic = make_topic(TopicType.FIXED_TIME)
    settle = batch_sender.BatchSender._settle
    monkeypatch.setattr(
        batch_sender.BatchSender,
        "_settle",
        lambda self, batch, result: settle(self, batch, replace(result, repeated=True)),
    )
    sent = [
        FixedTimeMessage("late", fixed_time_ms=1_000),
        FixedTimeMessage("ahead", fixed_time_ms=time.time_ns() // 1_000_000 + 600_000),
    ]
    with pytest.raises(FixedTimePassedError) as caught:
        client.producer(topic).send_many(sent)
    assert (caught.value.stored, caught.value.not_stored, caught.value.unknown) == (1, (), (sent[0],))


def test_times_that_have_passed_do_not_count_where_a_send_waits_for_room(
    client: RmqClient, make_topic: MakeTopic
) -> None:
    """It sends part after part, as room is left."""
    topic = make_topic(TopicType.FIXED_TIME, max_backlog=10, when_full=WhenFull.BLOCK, full_timeout="100ms")
    producer = client.producer(topic)
    ahead_ms = time.time_ns() // 1_000_000 + 600_000
    producer.send_many([FixedTimeMessage(f"m{n}", fixed_time_ms=ahead_ms) for n in range(8)])
    sent = [FixedTimeMessage(f"c{n}", fixed_time_ms=1_000 if n in (0, 3, 4) else ahead_ms) for n in range(5)]
    with pytest.raises(FixedTimePassedError) as caught:
        producer.send_many(sent, outcomes=True)
    assert (caught.value.stored, list(caught.value.not_stored)) == (2, [sent[0], sent[3], sent[4]])
    more = [FixedTimeMessage(f"d{n}", fixed_time_ms=1_000 if n % 2 else ahead_ms) for n in range(6)]
    with pytest.raises((BacklogFullError, FixedTimePassedError)) as caught:
        producer.send_many(more)
    assert caught.value.stored == 0
    assert sorted(caught.value.not_stored, key=more.index) == more


def test_very_many_refusals_end_a_call(
    client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_sender, "BUFFERED", 300)
    topic = make_topic(TopicType.RANGE_MERGE, merge=FULL)
    producer = client.producer(topic)
    taken = 0

    def read() -> Iterator[RangeMergeMessage]:
        nonlocal taken
        for _ in range(10_000):
            taken += 1
            yield RangeMergeMessage("full", body="x")

    with pytest.raises(CollectionFullError) as caught:
        producer.send_many(read())
    assert caught.value.stored == 2
    assert len(caught.value.not_stored) == taken - 2 < 5_000


def test_very_many_refusals_do_not_end_a_named_call(
    client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its repeat would end at the same place: what stands behind could not be sent by that name."""
    monkeypatch.setattr(batch_sender, "BUFFERED", 300)
    topic = make_topic(TopicType.RANGE_MERGE, merge=FULL)
    producer = client.producer(topic)
    sent = [RangeMergeMessage("full" if n % 3 else f"c{n}", body=f"i{n}") for n in range(NUMBER)]
    told: list[tuple[int, int]] = []
    for _ in range(2):
        with pytest.raises(CollectionFullError) as caught:
            producer.send_many(sent, once="once")
        told.append((caught.value.stored, len(caught.value.not_stored)))
    assert told == [(NUMBER // 3 + 2, NUMBER - NUMBER // 3 - 2)] * 2
    assert accepted(client, topic) == NUMBER // 3 + 2
