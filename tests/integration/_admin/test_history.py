"""The last day of the topics, recorded once a minute by whoever is there."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import redis

from rmq import FixedTimeMessage, Minute, PriorityMessage, RmqClient, StreamMessage, TopicType
from rmq.errors import ScriptFailedError
from tests.conftest import MakeTopic
from tests.support.cli import bury
from tests.support.core import HISTORY_LOCK_KEY, LONGEST_WAIT_S, MINUTES, TOPICS_KEY, history_key, slot_keys, sum_of
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def no_history_before(redis_client: redis.Redis) -> Iterator[None]:
    redis_client.delete(HISTORY_LOCK_KEY, history_key(None))
    yield
    redis_client.delete(HISTORY_LOCK_KEY, history_key(None))


def test_a_record_in_and_out() -> None:
    minute = Minute(29_000_000, *range(1, 13))
    assert Minute.from_bytes(minute.to_bytes()) == minute
    earlier = Minute(29_000_000, *range(1, 12))  # of a version that did not count failures after another send
    assert Minute.from_bytes(earlier.to_bytes()) == earlier
    assert earlier.refailed is None
    assert Minute.from_bytes(b"29000000 7") is None
    assert Minute.from_bytes(minute.to_bytes() + b" 99") == minute  # of a later version
    assert Minute.from_bytes(b"no record") is None
    assert Minute.from_bytes(b"") is None


def test_the_sum_has_the_worst_lateness() -> None:
    parts = [Minute(7, backlog=1, late_ms=5, acked=10), Minute(7, backlog=2, late_ms=9, acked=1)]
    assert sum_of(7, parts) == Minute(7, backlog=3, late_ms=9, acked=11, refailed=0)
    assert sum_of(7, []) == Minute(7, refailed=0)


def test_a_minute_is_what_the_topics_hold(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2)
    client.producer(topic).send_many(PriorityMessage(f"m{i}", 100) for i in range(10))
    bury(client, topic, 3)
    history = client.history()
    history.record(29_000_000)
    history.record(29_000_000)
    history.record(29_000_001)
    found = history.last(topic.name)
    assert [minute.minute for minute in found] == [29_000_000, 29_000_001]
    assert (found[0].backlog, found[0].dead, found[0].accepted, found[0].buried) == (7, 3, 10, 3)
    assert history.last(topic.name, 1) == found[1:]
    assert history.last()[-1].backlog >= 7
    assert history.last("never-heard-of") == []


def test_a_stream_is_recorded_by_what_its_groups_have_before_them(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.STREAM, slots=1, checked=False)
    producer = client.producer(topic)
    client.stream(producer.topic).add_group("billing", "all")
    producer.send_many(StreamMessage(f"m{i}") for i in range(4))
    client.history().record(29_000_000)
    [minute] = client.history().last(topic.name)
    assert (minute.backlog, minute.accepted, minute.dead) == (4, 4, 0)


def test_the_slots_of_all_topics_are_read_and_written_in_few_calls(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    topics = [make_topic(kind, slots=32) for kind in (TopicType.PRIORITY, TopicType.FIXED_TIME)]
    streams = make_topic(TopicType.STREAM, slots=32, checked=False)
    client.producer(topics[0]).send_many(PriorityMessage(f"m{i}", 100) for i in range(100))
    client.producer(topics[1]).send_many(FixedTimeMessage(f"m{i}", delay="1h") for i in range(50))
    client.producer(streams).send_many(StreamMessage(f"m{i}") for i in range(10))

    def calls() -> int:
        return redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]

    client.history().record(29_000_000)  # scripts loaded
    before = calls()
    client.history().record(29_000_001)
    assert calls() - before <= 8
    assert [client.history().last(topic.name)[-1].accepted for topic in (*topics, streams)] == [100, 50, 10]


def test_a_slot_that_cannot_be_read_is_named_and_costs_no_other_topic_its_record(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    good, bad = (make_topic(TopicType.PRIORITY, slots=4, checked=False) for _ in range(2))
    for topic in (good, bad):
        client.producer(topic).send_many(PriorityMessage(f"m{i}", 100) for i in range(10))
    redis_client.delete(slot_keys(bad.name, 2).store)
    redis_client.set(slot_keys(bad.name, 2).store, "of another type")
    with pytest.raises(ScriptFailedError, match=f"slot 2 of topic {bad.name}"):
        client.inspect(bad).stats()
    client.history().record(29_000_000)
    assert [minute.backlog for minute in client.history().last(good.name)] == [10]
    assert client.history().last(bad.name) == []
    assert client.history().last()[-1].backlog >= 10


def test_of_many_at_once_one_gets_the_turn(client: RmqClient) -> None:
    won: list[int] = []
    ready = threading.Barrier(8)

    def try_it() -> None:
        ready.wait(30)
        won.append(client.history().take_turn()[1] or 0)

    before = client.history().take_turn()[1]
    assert before is not None
    threads = [threading.Thread(target=try_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(won) == 8
    assert sorted(won)[:-1] == [0] * 7  # none, but for the one that begins a minute in the meantime


def test_a_topic_that_cannot_be_read_costs_the_others_nothing(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    good, bad = make_topic(TopicType.PRIORITY), make_topic(TopicType.PRIORITY, checked=False)
    client.producer(good)
    redis_client.hset(TOPICS_KEY, bad.name, "not a definition")
    try:
        client.history().record(29_000_000)
    finally:
        redis_client.hdel(TOPICS_KEY, bad.name)
    assert len(client.history().last(good.name)) == 1
    assert client.history().last(bad.name) == []


def test_a_recorder_records_and_ends(client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq._admin.history.LATEST_S", 0.01)
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic)
    client.record_history()
    client.record_history()
    recorders = [thread for thread in threading.enumerate() if thread.name == "rmq-history"]
    assert len(recorders) == 1
    wait_until(lambda: client.history().last(topic.name), LONGEST_WAIT_S + 40)
    client.stop()
    recorders[0].join(30)
    assert not recorders[0].is_alive()
    assert 1 <= len(client.history().last(topic.name)) <= 2
    assert MINUTES == 24 * 60


def test_a_topic_whose_record_is_refused_costs_no_other_its_minute(
    client: RmqClient, redis_client: redis.Redis, make_topic: MakeTopic
) -> None:
    topics = [make_topic(TopicType.PRIORITY, slots=1) for _ in range(2)]
    for topic in topics:
        client.producer(topic)
    first, second = sorted(topic.name for topic in topics)
    redis_client.set(history_key(first), "of another program")
    client.history().record(29_000_000)
    assert [minute.minute for minute in client.history().last(second)] == [29_000_000]
    assert [minute.minute for minute in client.history().last()] == [29_000_000]
    redis_client.delete(history_key(first))
