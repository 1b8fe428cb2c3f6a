"""One definition that can't be read hides only itself; changes by several clients at once lose nothing."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import redis

from rmq import LadderRetry, PriorityMessage, Retention, RmqClient, Topic, TopicType
from rmq.errors import (
    InvalidTopicError,
    RmqError,
    TopicMismatchError,
    UnknownTopicError,
    UnreadableTopicError,
)
from tests.conftest import MakeTopic
from tests.support.core import SCHEMA_VERSION, TOPICS_KEY, Registry
from tests.support.garbage import NEWER_NAME, garbage, littered


def stored(server: redis.Redis, topic: Topic) -> dict[str, Any]:
    text = server.hget(TOPICS_KEY, topic.name)
    assert isinstance(text, bytes)
    return json.loads(text)


def test_each_kind_of_garbage_hides_only_itself(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    producer = client.producer(topic)
    with littered(redis_client) as number:
        for _ in range(3):
            found = client.definitions()
            assert topic in found.topics
            assert topic in client.topics()
            assert len(found.unreadable) == number
        told = [line.getMessage() for line in caplog.records if line.getMessage().startswith("ignored: ")]
        assert len(told) <= number  # once for each, in this process
        assert all(len(each.reason) < 1_000 and each.reason.isprintable() for each in found.unreadable)
        newer = next(each for each in found.unreadable if each.name == NEWER_NAME)
        assert (newer.version, newer.min_reader) == (SCHEMA_VERSION + 7, SCHEMA_VERSION + 1)
        assert newer.reason == (
            f"the definition of topic {NEWER_NAME} is for schema version {SCHEMA_VERSION + 1} and newer "
            f"(written with version {SCHEMA_VERSION + 7}), and this RMQ has version {SCHEMA_VERSION}; upgrade this RMQ"
        )
        assert producer.send(PriorityMessage("a", 100)).new == 1
        assert client.history().record(1)
        assert [topic.name for topic in client.topics()] == sorted(topic.name for topic in client.topics())


@pytest.mark.parametrize("name", [name.decode() for name in garbage() if name.isascii() and b"{" not in name and name])
def test_using_what_cannot_be_read_says_why(client: RmqClient, redis_client: redis.Redis, name: str) -> None:
    if len(name) > 128:
        with pytest.raises(UnknownTopicError):
            client.topic(name)
        return
    with littered(redis_client):
        before = redis_client.hget(TOPICS_KEY, name)
        uses: list[Callable[[], object]] = [
            lambda: client.topic(name),
            lambda: client.inspect(name),
            lambda: client.producer(Topic(name, TopicType.PRIORITY)),
            lambda: client.consumer(Topic(name, TopicType.PRIORITY)),
            lambda: client.change_topic(Topic(name, TopicType.PRIORITY)),
        ]
        for use in uses:
            with pytest.raises(UnreadableTopicError, match=f"the definition of topic {name} ") as refused:
                use()
            assert refused.value.topic == name
            assert isinstance(refused.value, InvalidTopicError)
        assert redis_client.hget(TOPICS_KEY, name) == before


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 129, "\x00", "{a}"])
def test_what_is_no_name_is_not_registered(client: RmqClient, name: str) -> None:
    with pytest.raises(UnknownTopicError, match="is not registered"):
        client.topic(name)


@pytest.mark.parametrize("name", [7, b"jobs", "\udcff"])
def test_a_topic_is_named_by_a_text(client: RmqClient, name: Any) -> None:
    with pytest.raises(RmqError, match="must be a str that UTF-8 can encode"):
        client.topic(name)


def test_a_key_of_a_foreign_type_is_named(client: RmqClient, redis_client: redis.Redis) -> None:
    kept = redis_client.dump(TOPICS_KEY)
    redis_client.set(TOPICS_KEY, "foreign")
    try:
        for use in (client.topics, lambda: client.topic("some")):
            with pytest.raises(RmqError, match="rmq:topics is not a hash"):
                use()
    finally:
        redis_client.delete(TOPICS_KEY)
        if kept:
            redis_client.restore(TOPICS_KEY, 0, kept)


def test_a_definition_without_a_version_is_not_read(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    redis_client.hset(TOPICS_KEY, topic.name, json.dumps(topic.to_fields()))
    with pytest.raises(UnreadableTopicError, match="its version is None; it must be from 4 to"):
        client.topic(topic.name)


def test_a_change_keeps_what_a_newer_version_has_written(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    topic = make_topic(TopicType.STREAM)
    fields = topic.to_fields()
    fields["retention"]["max_bytes"] = 7
    newer = {**fields, "ordering_key": "customer", "version": SCHEMA_VERSION + 3, "min_reader": SCHEMA_VERSION}
    redis_client.hset(TOPICS_KEY, topic.name, json.dumps(newer))
    assert client.topic(topic.name) == topic
    client.change_topic(client.topic(topic.name).changed(lease=timedelta(seconds=9)))
    assert stored(redis_client, topic) == {**newer, "lease_s": 9}
    client.change_topic(Topic(topic.name, TopicType.STREAM, max_retries=1))  # a whole definition
    assert stored(redis_client, topic) == {**newer, "max_retries": 1, "lease_s": 60}


def at_once(*works: Callable[[], object]) -> None:
    start = threading.Barrier(len(works))
    errors: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        start.wait(20)
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors


def test_different_settings_changed_at_once_are_all_kept(
    client: RmqClient, redis_url: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic)
    with RmqClient(redis_url) as other, RmqClient(redis_url) as third:
        for number in range(1, 61):
            lease, steps = timedelta(seconds=number), LadderRetry((f"{number}s",))
            at_once(
                lambda lease=lease: client.change_topic(topic.changed(lease=lease)),
                lambda number=number: other.change_topic(other.topic(topic.name).changed(max_retries=number)),
                lambda steps=steps: third.update_topic(topic.name, lambda before: replace(before, retry=steps)),
            )
            found = client.topic(topic.name)
            assert (found.lease, found.max_retries, found.retry) == (lease, number, steps)


def test_a_setting_that_others_have_changed_meanwhile_stays(
    client: RmqClient, redis_url: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic)
    before = client.topic(topic.name)
    with RmqClient(redis_url) as other:
        other.change_topic(other.topic(topic.name).changed(max_retries=3, lease=timedelta(seconds=5)))
    after = client.change_topic(before.changed(lease=timedelta(seconds=9)))  # the last one wins
    assert (after.max_retries, after.lease_s) == (3, 9)
    assert after.changes == frozenset()
    with RmqClient(redis_url) as other:
        other.change_topic(other.topic(topic.name).changed(lease=timedelta(seconds=5)))
    assert client.change_topic(after.changed(max_body_bytes=7)).lease_s == 5


def test_an_update_begins_anew_where_somebody_was_faster(
    client: RmqClient, redis_url: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.STREAM)
    client._registered(topic)
    seen: list[int | None] = []

    def change(registered: Topic) -> Topic:
        retention = registered.retention or Retention()
        seen.append(retention.max_length)
        if len(seen) == 1:
            with RmqClient(redis_url) as other:
                other.change_topic(topic.changed(retention=Retention(max_length=5)))
        return registered.changed(retention=replace(retention, max_age="7s"))

    after = client.update_topic(topic.name, change).retention
    assert seen == [1_000_000, 5]
    assert after is not None
    assert (after.max_length, after.max_age_ms) == (5, 7_000)


def test_an_update_cannot_change_the_identity(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic)
    timed = replace(topic, type=TopicType.FIXED_TIME, ties=None, max_priority=None)
    for other in (replace(topic, slots=2), timed, replace(topic, name="another")):
        with pytest.raises(TopicMismatchError, match="can't be changed"):
            client.update_topic(topic.name, lambda _, other=other: other)


def test_of_two_slot_counts_registered_at_once_one_wins(redis_url: str, make_topic: MakeTopic) -> None:
    for _ in range(25):
        name = make_topic(TopicType.PRIORITY).name
        won: list[int] = []
        refused: list[int] = []

        def use(slots: int, name: str = name, won: list[int] = won, refused: list[int] = refused) -> None:
            with RmqClient(redis_url) as client:
                try:
                    won.append(client.producer(Topic(name, TopicType.PRIORITY, slots=slots)).topic.slots)
                except TopicMismatchError:
                    refused.append(slots)

        at_once(*(lambda slots=slots: use(slots) for slots in (1, 2, 4, 4)))
        assert len(set(won)) == 1
        assert sorted(won + refused) == [1, 2, 4, 4]
        assert set(won).isdisjoint(refused)


def test_a_definition_that_would_be_too_long_is_refused(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, retry=LadderRetry([f"{number}s" for number in range(1, 20_000)]))
    with pytest.raises(InvalidTopicError, match=r"takes .* bytes, more than 65536; use fewer steps"):
        client.producer(topic)


def test_only_settings_are_changed(make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    for name in ("leese", "changes"):
        with pytest.raises(
            InvalidTopicError, match=f"{name} is not a setting of a topic; changeable settings are max_retries, "
        ):
            topic.changed(**{name: 1})


def test_what_is_passed_over_is_logged_once(
    client: RmqClient, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture, make_topic: MakeTopic
) -> None:
    caplog.set_level(logging.WARNING, "rmq.registry")
    name = make_topic(TopicType.PRIORITY).name
    redis_client.hset(TOPICS_KEY, name, "garbage")
    for _ in range(3):
        client.topics()
    assert [name in line.getMessage() for line in caplog.records] == [True]


def test_a_definition_that_became_garbage_leaves_the_bucket_of_a_running_topic(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    topic = client.producer(make_topic(TopicType.PRIORITY, max_rate=5.0)).topic
    connections, _ = client._registered(topic)
    redis_client.hset(TOPICS_KEY, topic.name, "garbage")
    assert Registry(connections).restore_rate(topic) is False
    assert client.producer(topic).send(PriorityMessage("a", 100)).new == 1  # what runs goes on
