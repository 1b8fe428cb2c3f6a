"""PRIORITY topics that deliver the oldest of equal priorities first, and those of a release before that change over."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from rmq import ControlResult, PriorityMessage, RedriveResult, RmqClient, Ties, Topic, TopicType
from rmq._admin.ages import order_oldest_first
from rmq.errors import InvalidTopicError, TopicMismatchError
from tests.conftest import MakeTopic


def taken(client: RmqClient, topic: Topic, number: int) -> list[str]:
    with client.consumer(topic) as consumer:
        found = consumer.poll(number, timeout=5)
        consumer.ack(found)
        return [delivery.text for delivery in found]


def register_as_before(redis_client: redis.Redis, topic: Topic) -> None:
    """Register a topic as a release did that knew no ties."""
    fields: dict[str, Any] = json.loads(topic.to_json()) | {"version": 2, "min_reader": 1}
    del fields["ties"], fields["max_priority"]
    redis_client.hset("rmq:topics", topic.name, json.dumps(fields))


def test_a_new_topic_has_the_oldest_first_and_older_releases_keep_away_from_it(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic).send(PriorityMessage("a", 1))
    registered = client.topic(topic.name)
    assert (registered.ties, registered.max_priority) == (Ties.OLDEST, 2**20 - 1)
    document = json.loads(redis_client.hget("rmq:topics", topic.name) or b"")
    assert (document["ties"], document["min_reader"]) == ("oldest", 3)


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


def test_a_topic_of_a_release_before_keeps_its_order_until_it_is_changed_over(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis, redis_url: str
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2)
    register_as_before(redis_client, topic)
    with RmqClient(redis_url) as old:  # it reads the definition once, as a process that runs
        stale = old.producer(topic)
        stale.send_many(PriorityMessage(f"m{number}", 100 + number % 3) for number in range(600))
        assert old.topic(topic.name).ties is Ties.ANY

        assert client.order_oldest_first(topic.name) == 600
        assert client.topic(topic.name).ties is Ties.OLDEST
        stale.send(PriorityMessage("late", 2**53 - 1))
        stale.send(PriorityMessage("behind", 1_000))
        client.producer(topic).send(PriorityMessage("new", 1))
    assert client.order_oldest_first(topic.name) == 1, "a sender that knew no ages is caught up with"
    order: list[str] = []
    while found := taken(client, topic, 100):
        order += found
        if len(order) == 603:
            break
    assert sorted(order) == sorted([*(f"m{number}" for number in range(600)), "late", "behind", "new"])


def test_a_priority_above_the_largest_one_is_told_before_anything_changes(
    client: RmqClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, ties="any")
    client.producer(topic).send(PriorityMessage("a", 5_000))
    with pytest.raises(InvalidTopicError, match="a with priority 5000, above the wanted max_priority 4000"):
        client.order_oldest_first(topic, 4_000)
    assert client.topic(topic.name).ties is Ties.ANY
    assert client.order_oldest_first(topic, 5_000) == 1
    assert client.order_oldest_first(topic) == 0
    with pytest.raises(InvalidTopicError, match=r"max_priority of topic .* is 5000 and can't be changed"):
        client.order_oldest_first(topic, 6_000)


def test_of_two_who_change_a_topic_over_the_first_decides_on_the_largest_priority(
    client: RmqClient, make_topic: MakeTopic, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, other = make_topic(TopicType.PRIORITY, ties="any"), make_topic(TopicType.PRIORITY, ties="any")
    with RmqClient(redis_url) as second:
        for each in (topic, other):
            second.producer(each)  # from now on, this client knows the definition
        assert client.order_oldest_first(topic, 30) == 0
        assert second.order_oldest_first(topic) == 0
        with pytest.raises(InvalidTopicError, match=r"max_priority of topic .* is 30 and can't be changed"):
            second.order_oldest_first(topic, 40)

        def be_faster(*_: object) -> None:
            monkeypatch.undo()
            client.order_oldest_first(other, 30)

        monkeypatch.setattr("rmq._admin.ages._check_highest", be_faster)
        with pytest.raises(InvalidTopicError, match=r"max_priority of topic .* is 30 and can't be changed"):
            second.order_oldest_first(other, 40)
    assert [client.topic(each.name).max_priority for each in (topic, other)] == [30, 30]


def test_a_repeated_change_over_has_the_definition_confirmed(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = client.producer(make_topic(TopicType.PRIORITY)).topic
    confirmed: list[Topic] = []

    def define(wanted: Topic) -> Topic:
        confirmed.append(wanted)
        return wanted

    assert order_oldest_first(client._connections, topic, None, define) == 0
    assert confirmed == [topic]


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
    with pytest.raises(
        InvalidTopicError, match=r"ties of topic .* is part of its scores; `RmqClient\.order_oldest_first`"
    ):
        client.topic(topic.name).changed(ties="oldest")
    assert client.change_topic(Topic(topic.name, TopicType.PRIORITY, max_retries=3)).ties is Ties.ANY
    with pytest.raises(TopicMismatchError, match="are part of its scores"):
        client.update_topic(topic.name, lambda _: Topic(topic.name, TopicType.PRIORITY))


@pytest.mark.parametrize(
    ("kind", "settings", "rule"),
    [
        (TopicType.PRIORITY, {"ties": "newest"}, "must be oldest or any"),
        (TopicType.PRIORITY, {"max_priority": 0}, "whole number from 1 to 8388607"),
        (TopicType.PRIORITY, {"max_priority": 2**23}, "whole number from 1 to 8388607"),
        (TopicType.PRIORITY, {"ties": "any", "max_priority": 5}, "needs ties='oldest'"),
        (TopicType.FIXED_TIME, {"ties": "any"}, "ties of topic t is 'any'; only PRIORITY has it"),
        (TopicType.RANGE_MERGE, {"max_priority": 5}, "max_priority of topic t is 5; only PRIORITY has it"),
    ],
)
def test_settings_that_do_not_fit(kind: TopicType, settings: dict[str, Any], rule: str) -> None:
    with pytest.raises(InvalidTopicError, match=rule):
        Topic("t", kind, **settings)
