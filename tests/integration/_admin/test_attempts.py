"""Failed attempts of messages, kept by choice of the topic: when, why, where, and the last traceback."""

from __future__ import annotations

import json
import os

import pytest
import redis

from rmq import Delivery, PriorityMessage, RmqClient, StreamMessage, Topic, TopicType
from rmq.errors import InvalidTopicError
from tests.conftest import MakeTopic
from tests.support.core import slot_keys
from tests.support.waiting import wait_until


def fail(text: str) -> ValueError:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


def claimed(client: RmqClient, topic: Topic) -> Delivery:
    with client.consumer(topic) as consumer:
        [delivery] = wait_until(lambda: consumer.poll(1, timeout=5), 30)
        return delivery


def test_a_dead_message_tells_its_last_attempts(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, keep_attempts=2)
    client.producer(topic).send(PriorityMessage("a", 5))
    for text in ("one", "two"):
        assert claimed(client, topic).nack("0s", fail(text))
    failure = client.inspect(topic).find("a").failure
    assert failure is not None
    assert [each.error_message for each in failure.history] == ["two", "one"]
    assert "raise ValueError(text)\nValueError: two" in failure.traceback
    assert claimed(client, topic).bury(fail("three\nlines\x00"))
    [dead] = client.dead(topic).list()
    assert [(each.error_type, each.error_message) for each in dead.history] == [
        ("ValueError", "three\nlines\x00"), ("ValueError", "two"),
    ]  # fmt: skip
    assert dead.history[0].worker.endswith(f":{os.getpid()}")
    assert dead.history[0].failed_ms == dead.died_ms >= dead.history[1].failed_ms
    assert (dead.error_type, dead.error_message) == ("ValueError", "three\nlines\x00")
    assert dead.traceback.startswith("Traceback (most recent call last)")


def test_what_is_kept_is_bounded(client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis) -> None:
    topic = make_topic(TopicType.PRIORITY, keep_attempts=20, max_retries=30)
    client.producer(topic).send(PriorityMessage("a", 5))
    for _ in range(25):
        assert claimed(client, topic).nack("0s", fail("\U0001f4a5" * 5_000))
    stored = redis_client.hget(slot_keys(topic.name, 0).error, "a") or b""
    assert len(stored) < 100_000
    failure = client.inspect(topic).find("a").failure
    assert failure is not None
    assert len(failure.history) == 20
    assert len(failure.traceback) <= 4_000
    claimed(client, topic).ack()


def test_nothing_is_kept_without_the_setting(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic).send(PriorityMessage("a", 5))
    assert claimed(client, topic).bury(fail("one"))
    reason = json.loads(redis_client.hget(slot_keys(topic.name, 0).reason, "a") or b"")
    assert reason.keys() <= {"first_ms", "last_ms", "type", "message", "attempts"}
    [dead] = client.dead(topic).list()
    assert (dead.history, dead.traceback) == ((), "")


def test_a_plain_failure_in_between_and_a_name_that_is_no_name(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, keep_attempts=5)
    client.producer(topic).send(PriorityMessage("a", 5))
    assert claimed(client, topic).nack("0s", fail("one"))
    client.change_topic(topic.changed(keep_attempts=None))
    assert claimed(client, topic).nack("0s", fail("two"))
    failure = client.inspect(topic).find("a").failure
    assert failure is not None
    assert (failure.message, failure.traceback) == ("two", "")
    assert [each.error_message for each in failure.history] == ["one"]
    client.change_topic(topic.changed(keep_attempts=5))
    odd = type("odd\n7\n{}\n", (Exception,), {})
    assert claimed(client, topic).bury(odd("x"))
    [dead] = client.dead(topic).list()
    assert [each.error_message for each in dead.history] == ["x", "one"]


def test_a_message_that_is_sent_again_begins_anew(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, keep_attempts=5)
    client.producer(topic).send(PriorityMessage("a", 5))
    assert claimed(client, topic).bury(fail("one"))
    client.dead(topic).redrive()
    assert claimed(client, topic).bury(fail("two"))
    [dead] = client.dead(topic).list()
    assert [each.error_message for each in dead.history] == ["two"]


def test_entries_of_a_stream(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.STREAM, checked=False, keep_attempts=5)
    client.producer(topic).send(StreamMessage("a"))
    with client.consumer(topic, group="billing", start="all") as consumer:
        for number in range(2):
            [delivery] = wait_until(lambda: consumer.poll(1, timeout=5), 30)
            assert delivery.bury(fail("end")) if number else delivery.nack("0s", fail("first"))
    [dead] = client.stream(topic).dead("billing").list()
    assert [each.error_message for each in dead.history] == ["end", "first"]
    assert "ValueError: end" in dead.traceback


def test_the_setting_is_checked_and_stored_only_where_it_is_set() -> None:
    with pytest.raises(InvalidTopicError, match="keep_attempts of topic t is 21; it must be a whole number"):
        Topic("t", TopicType.PRIORITY, keep_attempts=21)
    assert "keep_attempts" not in Topic("t", TopicType.PRIORITY).to_json()
    kept = Topic("t", TopicType.PRIORITY, keep_attempts=3)
    assert Topic.from_json(kept.to_json()).keep_attempts == 3
