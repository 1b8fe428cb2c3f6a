"""Topic definitions: registered at first use, agreed on by every process."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import redis

from rmq import Fixed, ImmediateRetry, LadderRetry, Max, Merge, Producer, RmqClient, Sliding, Sum, Topic, TopicType
from rmq.errors import InvalidTopicError, InvalidValueError, RmqError, TopicMismatchError, UnknownTopicError
from tests.conftest import MakeTopic
from tests.support.core import TOPICS_KEY


def test_the_first_definition_rules(client: RmqClient, redis_url: str, make_topic: MakeTopic) -> None:
    lease, retry = timedelta(seconds=7), LadderRetry(("1s", "2s"))
    topic = make_topic(TopicType.PRIORITY, slots=4, max_retries=3, lease=lease, retry=retry)
    assert client.producer(topic).topic == topic
    with RmqClient(redis_url) as other:
        changed = Topic(topic.name, TopicType.PRIORITY, slots=4, max_retries=9, retry=ImmediateRetry())
        assert other.consumer(changed).topic == topic
        assert other.topic(topic.name) == topic
        assert topic in other.topics()


@pytest.mark.parametrize("other", [{"slots": 8}, {"type": TopicType.RANGE_MERGE}])
def test_another_type_or_number_of_slots_is_refused(
    client: RmqClient, make_topic: MakeTopic, other: dict[str, object]
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    client.producer(topic)
    definition = {"type": topic.type, "slots": topic.slots, **other}
    with pytest.raises(TopicMismatchError, match="is registered as PRIORITY with 4 slots") as caught:
        client.consumer(Topic(topic.name, **definition))  # pyright: ignore[reportArgumentType]
    assert caught.value.topic == topic.name
    with pytest.raises(TopicMismatchError, match="can't be changed"):
        client.change_topic(Topic(topic.name, **definition))  # pyright: ignore[reportArgumentType]


SUMS = Merge(Sum(), Fixed("5s"))


@pytest.mark.parametrize(("merge", "other"), [(SUMS, None), (None, SUMS), (SUMS, Merge(Max(), Fixed("5s")))])
def test_another_way_of_merging_is_refused(
    client: RmqClient, make_topic: MakeTopic, merge: Merge | None, other: Merge | None
) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, merge=merge)
    client.producer(topic)
    with pytest.raises(TopicMismatchError, match=r"is registered with merge=.*; only its window, max_count \(except"):
        client.consumer(Topic(topic.name, topic.type, merge=other))
    with pytest.raises(TopicMismatchError, match=r"is registered with merge=.*; only its window, max_count \(except"):
        client.change_topic(Topic(topic.name, topic.type, merge=other))
    assert client.topic(topic.name) == topic


def test_windows_and_bounds_of_merging_are_changed(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, merge=SUMS)
    client.producer(topic)
    sliding = Merge(Sum(), Sliding("1s", max_wait="9s"), max_count=7)
    assert client.producer(Topic(topic.name, topic.type, merge=sliding)).topic == topic
    assert client.change_topic(topic.changed(merge=sliding)).merge == sliding
    assert client.topic(topic.name).merge == sliding


def test_settings_are_changed_on_purpose(client: RmqClient, redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    with pytest.raises(UnknownTopicError, match="not registered"):
        client.change_topic(topic)
    client.producer(topic)
    changed = topic.changed(max_retries=2)
    assert client.change_topic(changed) == changed
    assert client.producer(topic).topic == changed
    with RmqClient(redis_url) as other:
        assert other.producer(topic).topic == changed


def test_unknown_topics(client: RmqClient) -> None:
    for use in (client.topic, client.inspect, client.dead):
        with pytest.raises(UnknownTopicError, match="nobody-knows-it"):
            use("nobody-knows-it")
    with pytest.raises(InvalidValueError, match="is not a Topic"):
        client.producer("a name")  # pyright: ignore[reportArgumentType]


def test_of_many_first_users_one_wins(redis_url: str, make_topic: MakeTopic) -> None:
    name = make_topic(TopicType.PRIORITY).name
    producers: list[Producer] = []

    def use(retries: int) -> None:
        with RmqClient(redis_url) as client:
            producers.append(client.producer(Topic(name, TopicType.PRIORITY, max_retries=retries)))

    threads = [threading.Thread(target=use, args=(retries,)) for retries in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(producers) == 8
    assert len({producer.topic for producer in producers}) == 1


def test_a_definition_that_cannot_be_read(client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis) -> None:
    topic = make_topic(TopicType.PRIORITY)
    redis_client.hset(TOPICS_KEY, topic.name, '{"name": "x"}')
    with pytest.raises(InvalidTopicError, match="cannot be read"):
        client.producer(topic)


def test_a_refusal_is_passed_on(client: RmqClient, redis_url: str, redis_client: redis.Redis) -> None:
    redis_client.execute_command("ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@all", "-@write")
    try:
        with RmqClient(redis_url.replace("unix://", "unix://reader:pw@")) as reader:
            with pytest.raises(RmqError, match="NOPERM"):
                reader.producer(Topic("refused", TopicType.PRIORITY))
            with pytest.raises(UnknownTopicError):
                reader.topic("refused")
    finally:
        redis_client.execute_command("ACL", "DELUSER", "reader")
