"""A full backlog: refuse, wait for room, or drop; and what gets too old."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from rmq import FixedTimeMessage, PriorityMessage, RangeMergeMessage, RmqClient, SendResult, Topic, TopicType, WhenFull
from rmq.errors import BacklogFullError, InvalidTopicError, RmqError
from tests.conftest import MakeTopic
from tests.support.waiting import wait_until


def numbered(count: int, first: int = 0) -> Iterator[PriorityMessage]:
    return (PriorityMessage(f"m{n}", 100 + n) for n in range(first, first + count))


def test_refuse_is_the_default(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, max_backlog=2)
    producer = client.producer(topic)
    producer.send_many(numbered(2))
    with pytest.raises(BacklogFullError, match="holds 2 messages"):
        producer.send(PriorityMessage("m9", 100))
    assert producer.send(PriorityMessage("m1", 500)) == SendResult(0, 1), "what merges needs no room"


def test_block_waits_until_a_consumer_has_made_room(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, max_backlog=20, when_full=WhenFull.BLOCK, full_timeout="1m")
    seen: list[str] = []
    consumer = client.consumer(topic)

    def consume() -> None:
        while len(seen) < 1_500:
            for delivery in consumer.poll(50, timeout=0.2):
                delivery.ack()
                seen.append(delivery.text)

    thread = threading.Thread(target=consume)
    thread.start()
    producer = client.producer(topic)
    result = producer.send_many(numbered(1_499), outcomes=True)
    assert producer.send(PriorityMessage("last", 100)) == SendResult(1, 0)
    thread.join(120)
    consumer.close()
    assert (result.new, result.merged, set(result.outcomes), len(result.outcomes)) == (1_499, 0, {True}, 1_499)
    assert sorted(seen) == sorted(["last", *(f"m{n}" for n in range(1_499))])


def test_block_gives_up_and_says_what_was_stored(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, max_backlog=3, when_full=WhenFull.BLOCK, full_timeout="50ms")
    producer = client.producer(topic)
    with pytest.raises(BacklogFullError, match="no room within") as caught:
        producer.send_many(numbered(5))
    assert caught.value.stored == 3
    assert [message.content for message in caught.value.not_stored] == ["m3", "m4"]  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(BacklogFullError, match="no room"):
        producer.send(PriorityMessage("m9", 100))
    assert producer.send(PriorityMessage("m1", 700)) == SendResult(0, 1)


def test_drop_keeps_the_highest(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, max_backlog=100, when_full=WhenFull.DROP)
    producer = client.producer(topic)
    result = producer.send_many(numbered(1_000))
    assert (result.new, result.dropped) == (1_000, 900)
    stats = client.inspect(topic).stats()
    assert (stats.backlog, stats.total("dropped"), stats.unaccounted) == (100, 900, 0)
    with client.consumer(topic) as consumer:
        delivered = consumer.poll(1_000, timeout=1)
        assert {delivery.text for delivery in delivered} == {f"m{n}" for n in range(900, 1_000)}
        for delivery in delivered:
            delivery.ack()


def test_what_is_too_old_dies_and_can_be_redriven(client: RmqClient, make_topic: MakeTopic) -> None:
    timed = make_topic(TopicType.RANGE_MERGE, ttl=timedelta(milliseconds=1))
    ranked = make_topic(TopicType.PRIORITY, ttl="1ms")
    client.producer(timed).send(RangeMergeMessage("a", time_range_ms=1, body="b"))
    client.producer(ranked).send(PriorityMessage("a", 100, body="b"))
    threading.Event().wait(0.05)
    for topic in (timed, ranked):
        with client.consumer(topic) as consumer:
            assert consumer.poll(10, timeout=0) == []
        dead = list(client.dead(topic).list())
        assert [(each.text, each.body, each.error_type, each.attempts) for each in dead] == [("a", b"b", "Expired", 0)]
        stats = client.inspect(topic).stats()
        assert (stats.total("ttl_expired"), stats.total("buried"), stats.unaccounted) == (1, 0, 0)
        assert client.dead(topic).redrive().redriven == 1


def test_the_limits_are_part_of_the_definition(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(
        TopicType.FIXED_TIME, max_backlog=5, when_full=WhenFull.DROP, full_timeout=timedelta(seconds=3), ttl="7s"
    )
    client.producer(topic)
    registered = client.topic(topic.name)
    assert registered == topic
    assert (registered.ttl_ms, registered.full_timeout_s, registered.drops) == (7_000, 3.0, True)
    plain = make_topic(TopicType.FIXED_TIME)
    assert not {"when_full", "full_timeout_ms", "ttl_ms"} & set(plain.to_json()), "as earlier versions know it"
    client.producer(plain).send(FixedTimeMessage("a", fixed_time_ms=4 * 10**12))


@pytest.mark.parametrize(
    "wrong",
    [{"ttl": "0s"}, {"ttl": -1}, {"when_full": "DROP"}, {"full_timeout": "0s"}, {"full_timeout": timedelta(days=2)}],
)
def test_limits_out_of_range(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidTopicError):
        Topic("t", TopicType.PRIORITY, **wrong)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("wrong", [{"ttl": "1s"}, {"when_full": WhenFull.DROP}])
def test_streams_have_their_retention_instead(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidTopicError, match="retention"):
        Topic("t", TopicType.STREAM, **wrong)  # pyright: ignore[reportArgumentType]


def test_several_who_wait_for_room_all_get_through(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, max_backlog=5, when_full=WhenFull.BLOCK, full_timeout="1m")
    client.control(topic).pause()
    failed: list[Exception] = []

    def send(first: int) -> None:
        try:
            with RmqClient(client.shown_url) as own:
                own.producer(topic).send_many(numbered(50, first))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=send, args=(1_000 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: client.inspect(topic).stats().backlog == 5, 60)
    seen: set[str] = set()
    with client.consumer(topic) as consumer:
        assert consumer.poll(10) == [], "it is paused"
        client.control(topic).resume()
        while len(seen) < 200 and not failed:
            for delivery in consumer.poll(10, timeout=1):
                delivery.ack()
                seen.add(delivery.text)
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert seen == {f"m{1_000 * number + n}" for number in range(4) for n in range(50)}


def test_who_waits_for_room_ends_with_its_client(redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, max_backlog=1, when_full=WhenFull.BLOCK, full_timeout="10m")
    failed: list[Exception] = []
    client = RmqClient(redis_url)
    producer = client.producer(topic)
    producer.send(PriorityMessage("a", 100))

    def send() -> None:
        try:
            producer.send(PriorityMessage("b", 100))
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    client.close()
    thread.join(60)
    assert not thread.is_alive()
    assert isinstance(failed[0], RmqError)
