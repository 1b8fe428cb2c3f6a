"""What a topic that merges has no room for is refused by itself: all others of the same `send_many` are stored."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmq import Collect, Fixed, Merge, PriorityMessage, RangeMergeMessage, RmqClient, Sum, Topic, TopicType, WhenFull
from rmq.errors import CollectionFullError, SumOutOfRangeError
from tests.conftest import MakeTopic
from tests.support.clients import stats_of
from tests.support.core import batch_size, stream

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
    with pytest.raises(CollectionFullError, match=r"b'full' has no room: max_items is 2") as caught:
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


def test_very_many_refusals_end_a_call(
    client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "BUFFERED", 300)
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
