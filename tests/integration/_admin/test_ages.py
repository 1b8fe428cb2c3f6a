"""PRIORITY topics that deliver the oldest of equal priorities first."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from rmq import ControlResult, PriorityMessage, RedriveResult, RmqClient, Ties, Topic, TopicType
from rmq.errors import InvalidTopicError, TopicMismatchError
from tests.conftest import MakeTopic


def taken(client: RmqClient, topic: Topic, number: int) -> list[str]:
    with client.consumer(topic) as consumer:
        found = consumer.poll(number, timeout=5)
        consumer.ack(found)
        return [delivery.text for delivery in found]


def test_a_new_topic_has_the_oldest_first(client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic).send(PriorityMessage("a", 1))
    registered = client.topic(topic.name)
    assert (registered.ties, registered.max_priority) == (Ties.OLDEST, 2**20 - 1)
    document = json.loads(redis_client.hget("rmq:topics", topic.name) or b"")
    assert (document["ties"], document["max_priority"]) == ("oldest", 2**20 - 1)


def test_all_views_speak_of_priorities(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic).send_many(PriorityMessage(f"m{priority}", priority) for priority in (5, 7))
    view, control = client.inspect(topic), client.control(topic)
    assert [(peeked.text, peeked.priority) for peeked in view.peek()] == [("m7", 7), ("m5", 5)]
    found = view.find("m5").stored
    assert found is not None
    assert found.priority == 5
    assert {(each.text, each.priority) for each in view.search("*").messages} == {("m7", 7), ("m5", 5)}
    assert control.reprioritise("m5", 9) is ControlResult.DONE
    with client.consumer(topic) as consumer:
        first, second = consumer.poll(2, timeout=5)
        assert [(each.text, each.priority) for each in (first, second)] == [("m5", 9), ("m7", 7)]
        first.bury(ValueError("no"))
        second.ack()
    assert client.dead(topic).redrive() == RedriveResult(1, 0, 0)
    assert [(peeked.text, peeked.priority) for peeked in view.peek()] == [("m5", 1)]
    assert taken(client, topic, 1) == ["m5"]


def test_a_promoted_message_has_a_priority_that_it_may_be_sent_with(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, max_priority=5)
    client.producer(topic).send_many(PriorityMessage(content, 5) for content in "ab")
    assert client.control(topic).promote("a") is ControlResult.DONE
    assert [(peeked.text, peeked.priority) for peeked in client.inspect(topic).peek()] == [("a", 5), ("b", 5)]
    with client.consumer(topic) as consumer:
        for delivery in consumer.poll(2, timeout=5):
            client.producer(topic).send(PriorityMessage(delivery.content, delivery.priority or 0))
            delivery.ack()


def test_a_change_of_settings_leaves_the_order_alone(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, ties="any")
    client.producer(topic).send(PriorityMessage("a", 50))
    with pytest.raises(InvalidTopicError, match=r"ties of topic .* is part of the stored scores and can't be changed"):
        client.topic(topic.name).changed(ties="oldest")
    assert client.change_topic(Topic(topic.name, TopicType.PRIORITY, max_retries=3)).ties is Ties.ANY
    with pytest.raises(TopicMismatchError, match="is part of the stored scores and can't be changed"):
        client.update_topic(topic.name, lambda _: Topic(topic.name, TopicType.PRIORITY))


@pytest.mark.parametrize(
    ("kind", "settings", "rule"),
    [
        (TopicType.PRIORITY, {"ties": "newest"}, "must be oldest or any"),
        (TopicType.PRIORITY, {"max_priority": 0}, "whole number from 1 to 8388607"),
        (TopicType.PRIORITY, {"max_priority": 2**23}, "whole number from 1 to 8388607"),
        (TopicType.PRIORITY, {"ties": "any", "max_priority": 5}, "needs ties='oldest'"),
        (TopicType.FIXED_TIME, {"ties": "any"}, "ties of topic t is 'any'; only PRIORITY topics"),
        (TopicType.RANGE_MERGE, {"max_priority": 5}, "max_priority of topic t is 5; only PRIORITY topics"),
    ],
)
def test_settings_that_do_not_fit(kind: TopicType, settings: dict[str, Any], rule: str) -> None:
    with pytest.raises(InvalidTopicError, match=rule):
        Topic("t", kind, **settings)
