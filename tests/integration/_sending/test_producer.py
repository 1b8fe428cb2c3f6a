"""Sending: one by one and in streams, and what an error says of what was stored."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from rmq import (
    FixedTimeMessage,
    Merge,
    PriorityMessage,
    RangeMergeMessage,
    Replace,
    RmqClient,
    SendResult,
    Sum,
    Topic,
    TopicType,
    WhenFull,
)
from rmq.errors import (
    BacklogFullError,
    FixedTimePassedError,
    InvalidBatchError,
    InvalidMessageError,
    InvalidValueError,
    SendError,
)
from tests.conftest import MakeTopic
from tests.support.clients import left_in, stats_of
from tests.support.core import BATCH, BUFFERED, Message, batch_size, slot_keys

HOUR_MS = 3_600_000


def test_new_and_merged(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, slots=4)
    producer = client.producer(topic)
    message = RangeMergeMessage("item:1", time_range=timedelta(minutes=5))
    assert producer.send(message) == SendResult(1, 0)
    assert producer.send(message) == SendResult(0, 1)
    assert producer.send(message).accepted == 1
    assert left_in(stats_of(client, topic)) == (1, 0, 0, 0)


def test_the_first_time_range_stands(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE)
    producer = client.producer(topic)
    producer.send(RangeMergeMessage("a", time_range_ms=60_000))
    due_ms = client.inspect(topic).peek()[0].due_ms
    producer.send(RangeMergeMessage("a", time_range_ms=1))
    producer.send(RangeMergeMessage("a", time_range_ms=600_000))
    assert client.inspect(topic).peek()[0].due_ms == due_ms


def test_the_last_priority_and_fixed_time_decide(client: RmqClient, make_topic: MakeTopic) -> None:
    urgent, timed = make_topic(TopicType.PRIORITY), make_topic(TopicType.FIXED_TIME)
    client.producer(urgent).send(PriorityMessage("a", 50, body="old"))
    assert client.producer(urgent).send(PriorityMessage("a", 40)) == SendResult(0, 1)
    [peeked] = client.inspect(urgent).peek()
    assert (peeked.priority, peeked.body) == (40, b"old")
    soon = datetime.now(UTC) + timedelta(hours=1)
    client.producer(timed).send(FixedTimeMessage("a", soon))
    client.producer(timed).send(FixedTimeMessage("a", soon + timedelta(hours=1), body=b"new"))
    [peeked] = client.inspect(timed).peek()
    assert peeked.due_ms == -(-int((soon + timedelta(hours=1)).timestamp() * 1_000_000) // 1_000)
    assert peeked.body == b"new"


TIMED: dict[str, dict[str, Any]] = {
    "plain": {},
    "several": {"slots": 4},
    "drops": {"max_backlog": 1_000, "when_full": WhenFull.DROP},
    "waits": {"max_backlog": 1_000, "when_full": WhenFull.BLOCK},
    "merges": {"merge": Merge(Replace())},
}


def due_after(client: RmqClient, topic: Topic) -> dict[str, int]:
    """Return after how many ms, from now by the clock of Redis, each message is due."""
    now_ms = max(slot.now_ms for slot in stats_of(client, topic).slots)
    pages = [client.inspect(topic).pages(slot, "store") for slot in range(topic.slots)]
    return {message.content.decode(): (message.due_ms or 0) - now_ms for page in pages for message in page}


@pytest.mark.parametrize("settings", TIMED.values(), ids=TIMED)
def test_a_delay_counts_from_the_arrival(settings: dict[str, Any], client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.FIXED_TIME, **settings)
    producer = client.producer(topic)
    assert producer.send(FixedTimeMessage("a", delay="1h", body="x")) == SendResult(1, 0)
    assert producer.send(FixedTimeMessage("a", delay=timedelta(hours=3))) == SendResult(0, 1)
    assert producer.send(FixedTimeMessage("now", delay="0s")) == SendResult(1, 0)
    due = due_after(client, topic)
    assert 2 * HOUR_MS < due["a"] <= 3 * HOUR_MS
    assert due["now"] <= 1
    with client.consumer(topic) as consumer:
        [delivery] = consumer.poll(timeout=50.0)
        assert delivery.content == b"now"
        consumer.ack([delivery])


@pytest.mark.parametrize("settings", TIMED.values(), ids=TIMED)
def test_delays_and_fixed_times_are_sent_together(
    settings: dict[str, Any], client: RmqClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.FIXED_TIME, **settings)
    ahead = datetime.now(UTC) + timedelta(days=2)
    sent = [FixedTimeMessage(f"c{n}", ahead) if n % 2 else FixedTimeMessage(f"c{n}", delay="5h") for n in range(100)]
    sent += [FixedTimeMessage("c1", delay="7h"), FixedTimeMessage("c2", ahead)]
    result = client.producer(topic).send_many(sent, outcomes=True)
    assert (result.new, result.merged, result.outcomes) == (100, 2, (True,) * 100 + (False,) * 2)
    hours = {content: round(due / HOUR_MS) for content, due in due_after(client, topic).items()}
    assert hours == {f"c{n}": 48 if n % 2 else 5 for n in range(100)} | {"c1": 7, "c2": 48}


def test_of_delays_and_fixed_times_only_times_are_refused(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.FIXED_TIME, slots=4)
    sent = [
        FixedTimeMessage(f"c{n}", fixed_time_ms=5) if n % 3 == 1 else FixedTimeMessage(f"c{n}", delay="1h")
        for n in range(60)
    ]
    with pytest.raises(FixedTimePassedError, match="fixed_time 5 is in the past") as caught:
        client.producer(topic).send_many(sent)
    assert sorted(caught.value.not_stored, key=sent.index) == sent[1::3]
    assert (caught.value.stored, stats_of(client, topic).backlog) == (40, 40)


def test_columns_of_delays(client: RmqClient, make_topic: MakeTopic) -> None:
    for settings in ({"slots": 4}, {"merge": Merge(Replace())}):
        topic = make_topic(TopicType.FIXED_TIME, **settings)
        producer = client.producer(topic)
        contents = [f"c{n}" for n in range(50)]
        assert producer.send_columns(contents, delays="2h").new == 50
        delays = [5 * HOUR_MS, "7h", timedelta(hours=9), 3.6 * HOUR_MS]
        assert producer.send_columns(contents[:4], delays=delays).merged == 4
        due = due_after(client, topic)
        assert [round(due[content] / HOUR_MS) for content in contents[:6]] == [5, 7, 9, 4, 2, 2]
        with pytest.raises(InvalidBatchError, match="row 1 of send_columns: delay is -1"):
            producer.send_columns(contents[:2], delays=[1, -1])
        with pytest.raises(InvalidValueError, match="takes either fixed_times or delays"):
            producer.send_columns(contents, delays="2h", fixed_times=datetime.now(UTC))


@pytest.mark.parametrize("fold", [False, True])
def test_folded_delays_are_those_of_the_last_send(fold: bool, client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.FIXED_TIME, merge=Merge(Sum()))
    ahead = datetime.now(UTC) + timedelta(hours=48)
    messages = [
        FixedTimeMessage("a", ahead, body=1), FixedTimeMessage("a", delay="5h", body=2),
        FixedTimeMessage("b", delay="5h", body=3), FixedTimeMessage("b", ahead, body=4),
    ]  # fmt: skip
    for _ in range(2):  # a repeat of a named call changes nothing
        result = client.producer(topic).send_many(messages, fold=fold, once="call")
    assert result.new == 2
    assert {name: round(due / HOUR_MS) for name, due in due_after(client, topic).items()} == {"a": 5, "b": 48}
    assert [message.value for message in client.inspect(topic).peek()] == [3, 7]


@pytest.mark.slow
def test_one_content_sent_a_thousand_times_in_its_window_is_delivered_once(
    client: RmqClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, slots=8)
    producer = client.producer(topic)
    results = [producer.send(RangeMergeMessage("item:1", time_range=timedelta(seconds=8))) for _ in range(500)]
    results.append(producer.send_many(RangeMergeMessage("item:1", time_range_ms=8_000) for _ in range(500)))
    assert (sum(result.new for result in results), sum(result.merged for result in results)) == (1, 999)
    with client.consumer(topic) as consumer:
        assert consumer.poll() == []
        [delivery] = consumer.poll(timeout=20)
        assert delivery.text == "item:1"
        assert delivery.ack()
        assert consumer.poll() == []
    stats = stats_of(client, topic)
    assert (stats.total("accepted"), stats.total("merged"), stats.total("delivered")) == (1_000, 999, 1)


def test_fixed_time_in_the_past_is_refused_and_nothing_is_stored(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.FIXED_TIME)
    message = FixedTimeMessage("a", fixed_time_ms=int(time.time() * 1000) - 5_000)
    with pytest.raises(FixedTimePassedError, match="0 messages stored, 1 not stored") as caught:
        client.producer(topic).send(message)
    assert (caught.value.stored, caught.value.not_stored, caught.value.slot) == (0, (message,), 0)
    assert left_in(stats_of(client, topic)) == (0, 0, 0, 0)


def test_a_message_that_breaks_a_rule_is_not_sent(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, max_content_bytes=10, max_body_bytes=5)
    producer = client.producer(topic)
    for message in (
        PriorityMessage("x" * 11, 50),
        PriorityMessage("x", 2**20),
        PriorityMessage("x", 50, body="123456"),
        RangeMergeMessage("x", time_range_ms=5),
    ):
        with pytest.raises(InvalidMessageError):
            producer.send(message)
    assert left_in(stats_of(client, topic)) == (0, 0, 0, 0)


def test_send_many_of_nothing(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE)
    assert client.producer(topic).send_many([]) == SendResult(0, 0)
    assert client.producer(topic).send_many([], outcomes=True) == SendResult(0, 0, ())


@pytest.mark.slow
@pytest.mark.parametrize("slots", [1, 64])
def test_send_many_stores_each_message_in_its_slot(client: RmqClient, make_topic: MakeTopic, slots: int) -> None:
    """More than fits the buffer, so that part-filled batches are flushed, too."""
    topic = make_topic(TopicType.PRIORITY, slots=slots)
    number = BUFFERED + 2_345
    result = client.producer(topic).send_many(PriorityMessage(f"m{i % number}", 100 + i) for i in range(number + 100))
    assert result == SendResult(number, 100)
    stats = stats_of(client, topic)
    assert stats.backlog == number
    for index in (0, number - 1):
        slot = topic.slot_of(f"m{index}".encode())
        assert any(peeked.text == f"m{index}" for peeked in client.inspect(topic).pages(slot, "store"))
    # of the same content, the last one sent decided: the order within a slot was kept
    assert [p.priority for p in client.inspect(topic).pages(topic.slot_of(b"m0"), "store") if p.text == "m0"] == [
        number + 100
    ]


def test_outcomes_are_in_the_order_of_sending(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, slots=16)
    contents = [f"c{i % 700}" for i in range(1_500)]
    result = client.producer(topic).send_many(
        (RangeMergeMessage(c, time_range_ms=60_000) for c in contents), outcomes=True
    )
    assert result.outcomes == tuple(index < 700 for index in range(1_500))
    assert (result.new, result.merged) == (700, 800)


def test_large_bodies_travel_in_smaller_batches(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE)
    bodies = {f"b{i}": bytes([i]) * 600_000 for i in range(8)}
    result = client.producer(topic).send_many(
        RangeMergeMessage(c, time_range_ms=1, body=body) for c, body in bodies.items()
    )
    assert result == SendResult(8, 0)
    with client.consumer(topic) as consumer:
        found = consumer.poll(8, timeout=2)
        found += consumer.poll(8)
        assert {delivery.text: delivery.body for delivery in found} == bodies
        assert consumer.ack(found) == []


def test_an_invalid_message_in_the_middle(client: RmqClient, make_topic: MakeTopic) -> None:
    """The error says what was stored, and which of those taken from the iterable were not; the rest is not touched."""
    topic = make_topic(TopicType.PRIORITY, slots=2)
    taken: list[Message] = []

    def messages() -> Iterator[Message]:
        for i in range(10 * BATCH):
            taken.append(PriorityMessage(f"m{i}", 2**20 if i == 5 * BATCH else 100))
            yield taken[-1]

    with pytest.raises(InvalidBatchError, match=f"message {5 * BATCH + 1} of send_many: priority is 1048576") as caught:
        client.producer(topic).send_many(messages())
    error = caught.value
    assert isinstance(error, InvalidMessageError)
    assert len(taken) == 5 * BATCH + 1
    assert error.stored == 4 * BATCH
    assert error.unknown == ()
    assert error.not_stored[-1] is taken[-1]
    stored = {peeked.text for slot in range(2) for peeked in client.inspect(topic).pages(slot, "store")}
    assert len(stored) == error.stored
    assert stored == {str(m.content) for m in taken} - {str(m.content) for m in error.not_stored}


def test_a_refusal_in_the_middle(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, max_backlog=3_000)
    sent = [PriorityMessage(f"m{i}", 100) for i in range(8 * BATCH)]
    with pytest.raises(BacklogFullError, match="max_backlog") as caught:
        client.producer(topic).send_many(sent)
    error = caught.value
    stats = stats_of(client, topic)
    assert stats.backlog == error.stored <= 3_000
    assert error.unknown == ()
    stored = {peeked.text for slot in range(2) for peeked in client.inspect(topic).pages(slot, "store")}
    not_stored = {str(message.content) for message in error.not_stored}
    assert not stored & not_stored
    # what was taken from the iterable is accounted for; a list can be resumed behind it
    assert error.stored + len(error.not_stored) <= len(sent)
    taken = {str(m.content) for m in sent[: error.stored + len(error.not_stored)]}
    assert stored | not_stored == taken
    # merging still works at the bound
    merged = next(iter(stored))
    assert client.producer(topic).send(PriorityMessage(merged, 200)) == SendResult(0, 1)


def test_a_refusal_at_the_very_end(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, max_backlog=2)
    messages = [PriorityMessage(f"m{i}", 100) for i in range(3)]
    with pytest.raises(BacklogFullError) as caught:
        client.producer(topic).send_many(messages)
    assert (caught.value.stored, caught.value.not_stored) == (0, tuple(messages))
    with pytest.raises(BacklogFullError) as caught:
        client.producer(topic).send_many(messages, outcomes=True)


def test_an_iterable_that_fails_leaves_no_reply_behind(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    number = 5 * batch_size(topic)

    def messages() -> Iterator[Message]:
        for i in range(number + 7):
            yield PriorityMessage(f"m{i}", 100)
        raise LookupError("the source broke")

    producer = client.producer(topic)
    with pytest.raises(LookupError):
        producer.send_many(messages())
    assert stats_of(client, topic).backlog == number
    sent = producer.send_many(PriorityMessage(f"m{i}", 100) for i in range(number + BATCH))
    assert sent == SendResult(BATCH, number)


def test_a_foreign_key_of_the_same_name_is_an_error_and_is_left_alone(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    """Pitfall 8: checked before anything is written."""
    topic = make_topic(TopicType.PRIORITY, checked=False)
    keys = slot_keys(topic.name, 0)
    redis_client.set(keys.body, "someone else's")
    with pytest.raises(Exception, match="WRONGTYPE") as caught:
        client.producer(topic).send_many([PriorityMessage("a", 100, body="b")])
    assert isinstance(caught.value, SendError)
    assert redis_client.exists(keys.store) == 0
    assert redis_client.get(keys.body) == b"someone else's"


def test_threads_share_a_producer(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    producer = client.producer(topic)
    results: list[SendResult] = []

    def send(part: int) -> None:
        results.append(producer.send_many(PriorityMessage(f"m{part}-{i}", 100) for i in range(3_000)))
        results.append(producer.send(PriorityMessage("same", 100)))

    threads = [threading.Thread(target=send, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sum(result.new for result in results) == 12_001
    assert stats_of(client, topic).backlog == 12_001


def test_slot_basis_brings_messages_together(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, slots=64)
    client.producer(topic).send_many(
        RangeMergeMessage(f"c{i}", time_range_ms=60_000, slot_basis="order:7") for i in range(20)
    )
    stats = stats_of(client, topic)
    assert [slot.backlog for slot in stats.slots if slot.backlog] == [20]
    assert stats.slots[topic.slot_of(b"order:7")].backlog == 20
