"""Deleting a topic: what refuses it, what becomes of what it holds, and of programs that go on."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import redis

from rmq import (
    Delivery,
    FixedTimeMessage,
    PriorityMessage,
    RangeMergeMessage,
    Retention,
    RmqClient,
    Schedule,
    StreamMessage,
    Sum,
    Topic,
    TopicType,
)
from rmq import Merge as MergeRule
from rmq._model.schema import Document, read_document
from rmq.errors import (
    InvalidValueError,
    RmqError,
    TopicDeletedError,
    TopicInUseError,
    TopicMismatchError,
    UnknownTopicError,
    UnreadableDocumentError,
)
from tests.conftest import MakeTopic
from tests.support.clients import left_in, stats_of, texts
from tests.support.core import TOPICS_KEY, Call, Connections, Registry, TopicDeletion, slot_keys
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

TYPES: dict[str, tuple[TopicType, dict[str, Any], Any]] = {
    "range-merge": (TopicType.RANGE_MERGE, {}, RangeMergeMessage("a", "1h")),
    "priority": (TopicType.PRIORITY, {}, PriorityMessage("a", 20)),
    "fixed-time": (TopicType.FIXED_TIME, {}, FixedTimeMessage("a", delay="1h")),
    "sum": (TopicType.RANGE_MERGE, {"merge": MergeRule(Sum())}, RangeMergeMessage("a", "1h", body=1)),
    "stream": (TopicType.STREAM, {}, StreamMessage("a")),
}


def keys_of(redis_client: redis.Redis, topic: str) -> set[str]:
    found: Any = redis_client.keys(f"*{topic}*")
    return {key.decode() for key in found}


@pytest.mark.parametrize("kind", TYPES)
def test_an_empty_topic_is_deleted_and_living_producers_are_refused(
    kind: str, client: RmqClient, redis_url: str, redis_client: redis.Redis, make_topic: MakeTopic
) -> None:
    topic_type, settings, message = TYPES[kind]
    topic = make_topic(topic_type, slots=4, checked=False, **settings)
    with RmqClient(redis_url) as living:
        producer = living.producer(topic)
        deleted = client.delete_topic(topic.name)
        assert (deleted.topic, deleted.slots, deleted.messages, deleted.schedules) == (topic.name, 4, 0, ())
        with pytest.raises(TopicDeletedError, match=f"slot . of topic {topic.name}: the topic was deleted") as caught:
            producer.send(message)
        assert caught.value.topic == topic.name
        with pytest.raises(TopicDeletedError):
            producer.send_many([message] * 3)
        with pytest.raises(UnknownTopicError, match="was deleted at 2"):
            client.topic(topic.name)
        assert topic.name not in [each.name for each in client.topics()]
        kept = {f"{topic.name}_{slot}" for slot in range(4)}
        assert keys_of(redis_client, topic.name) == kept | {slot_keys(topic.name, 0).audit}
        again = client.producer(topic)
        assert again.send(message).new == 1
        producer.send(message)  # the living one may go on
    assert topic.name in [each.name for each in client.topics()]


def test_a_topic_that_holds_messages_is_kept(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4, max_retries=0)
    producer = client.producer(topic)
    producer.send_many(PriorityMessage(f"job:{number}", 9, body="x") for number in range(10))
    with client.consumer(topic) as consumer:
        first, second, *_ = consumer.poll(2)
        first.bury("hopeless")
        with pytest.raises(TopicInUseError, match="was not deleted: it holds 10 messages"):
            client.delete_topic(topic.name)
        second.ack()
    assert left_in(stats_of(client, topic))[3] == 1
    assert client.topic(topic.name) == topic


def test_force_drops_and_counts_what_is_there(
    client: RmqClient, redis_client: redis.Redis, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4, checked=False, max_rate=100)
    client.producer(topic).send_many(PriorityMessage(f"job:{number}", 9, body="x") for number in range(10))
    with client.consumer(topic) as consumer:
        held, dead, waits = consumer.poll(3)
        dead.bury("hopeless")
        waits.nack(delay="1h")
        assert client.delete_topic(topic.name, force=True, actor="ann").messages == 10
        with pytest.raises(TopicDeletedError):
            held.ack()
    assert {key for key in keys_of(redis_client, topic.name) if not key.startswith(f"{topic.name}_")} == {
        slot_keys(topic.name, 0).audit
    }
    client.consumer(topic).close()
    lines = client.inspect(topic).audit()
    assert [(line.actor, line.action, line.outcome) for line in lines] == [
        ("ann", "delete topic", "dropped 10 messages"),
        ("ann", "delete topic", "begun"),
    ]
    assert left_in(stats_of(client, topic)) == (0, 0, 0, 0)


def test_a_stream_with_groups(client: RmqClient, redis_client: redis.Redis, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.STREAM, slots=2, checked=False, retention=Retention(max_length=1_000), max_retries=0)
    client.producer(topic).send_many(StreamMessage(f"e{number}") for number in range(20))
    for group in ("billing", "mail"):
        with client.consumer(topic, group=group, start="all") as consumer:
            deliveries = consumer.poll(20)
            deliveries[0].bury("hopeless")
            consumer.ack(deliveries[1:10])
    with pytest.raises(TopicInUseError, match="it holds 22 messages"):
        client.delete_topic(topic.name)
    assert client.delete_topic(topic.name, force=True).messages == 22
    kept = {f"{topic.name}_{slot}" for slot in range(2)} | {slot_keys(topic.name, 0).audit}
    assert keys_of(redis_client, topic.name) == kept
    with client.consumer(topic, group="billing", start="all") as consumer:
        client.producer(topic).send(StreamMessage("fresh"))
        assert texts(consumer.poll(20, 5.0)) == ["fresh"]


def test_workers_and_schedules_that_use_a_topic_keep_it(
    redis_server: RedisServer,
    client: RmqClient,
    redis_url: str,
    make_topic: MakeTopic,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4, checked=False)
    handled: list[str] = []
    with RmqClient(redis_url) as worker:

        @worker.listener(topic)
        def handle(delivery: Delivery) -> None:
            handled.append(delivery.text)

        worker.start()
        wait_until(lambda: any(each.topic == topic.name for info in client.workers() for each in info.listeners))
        client.schedules.put(Schedule(f"s-{topic.name}", topic.name, "x", every="1h", priority=20))
        with pytest.raises(TopicInUseError, match=rf"used by worker \S+; used by schedule s-{topic.name}; use force"):
            client.delete_topic(topic.name)
        with caplog.at_level(logging.WARNING, "rmq"):
            deleted = client.delete_topic(topic.name, force=True)
            assert deleted.schedules == (f"s-{topic.name}",)
            wait_until(lambda: "the topic was deleted" in caplog.text, 20)
        client.schedules.remove(f"s-{topic.name}")
        caplog.clear()
        client.producer(topic).send(PriorityMessage("later", 20))  # registers it again: the worker goes on
        wait_until(lambda: handled == ["later"], 20)


def test_what_was_interrupted_is_ended_by_a_repeat(
    client: RmqClient, redis_url: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=8, checked=False)
    client.producer(topic).send_many(PriorityMessage(f"job:{number}", 9) for number in range(40))
    run, calls = Connections.run, 0

    def dies(self: Any, call: Call[Any], *args: Any) -> Any:
        nonlocal calls
        calls += call.script == "delete_topic"
        if calls == 5:
            raise RuntimeError
        return run(self, call, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Connections, "run", dies)
        with pytest.raises(RuntimeError):
            client.delete_topic(topic.name, force=True)
    with pytest.raises(UnknownTopicError):
        client.topic(topic.name)
    with RmqClient(redis_url) as other, pytest.raises(TopicDeletedError, match="was begun at 2"):
        other.producer(topic)
    assert client.delete_topic(topic.name).messages == 40  # with force, and those of the first try, as that one
    assert client.delete_topic(topic.name).messages == 40  # a third time changes nothing
    client.producer(topic).send(PriorityMessage("new", 9))
    assert left_in(stats_of(client, topic)) == (1, 0, 0, 0)


def test_a_message_that_comes_meanwhile_undoes_the_deletion(
    client: RmqClient, redis_url: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    producer = client.producer(topic)
    content = next(f"late:{i}" for i in range(99) if topic.slot_of(f"late:{i}".encode()) == 3)

    def looks(*_: object) -> int:
        with RmqClient(redis_url) as other:
            other.producer(topic).send(PriorityMessage(content, 9))
        return 0

    monkeypatch.setattr("rmq._admin.deletion.TopicDeletion._stored", looks)
    with pytest.raises(TopicInUseError, match="slot 3 has received 1 message since the deletion began"):
        client.delete_topic(topic.name)
    assert client.topic(topic.name) == topic
    assert producer.send_many(PriorityMessage(f"job:{number}", 9) for number in range(20)).new == 20
    assert left_in(stats_of(client, topic)) == (21, 0, 0, 0)


def test_a_second_client_cannot_drop_what_was_sent_after_the_end(
    client: RmqClient, redis_url: str, make_topic: MakeTopic
) -> None:
    """A client that was stopped in the middle goes on after another one has ended the deletion."""
    topic = make_topic(TopicType.PRIORITY, slots=1)
    client.producer(topic)
    with RmqClient(redis_url) as slow:
        deletion = TopicDeletion(slow._connections, slow._known, topic.name, None)
        mark = deletion._begun("slow", force=True)
        for content in ("dropped", "new"):
            client.delete_topic(topic.name, force=True)
            client.producer(topic).send(PriorityMessage(content, 9))
        with pytest.raises(RmqError, match="another client undid or replaced the deletion"):
            deletion._drop_slots(topic, mark, lambda _: None)
    assert left_in(stats_of(client, topic)) == (1, 0, 0, 0)


def breaks_off(patch: pytest.MonkeyPatch, before: bool) -> None:
    """Let a process die before or after it removes tombstones."""
    clear = Registry.clear

    def dies(self: Any, *args: Any) -> None:
        if not before:
            clear(self, *args)
        raise RuntimeError

    patch.setattr(Registry, "clear", dies)


@pytest.mark.parametrize("before", [True, False])
def test_an_undo_that_breaks_off_is_ended_by_the_next_use(
    before: bool, client: RmqClient, redis_url: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    content = next(f"late:{i}" for i in range(99) if topic.slot_of(f"late:{i}".encode()) == 3)
    client.producer(topic).send(PriorityMessage(content, 9))
    with monkeypatch.context() as patch:
        patch.setattr(TopicDeletion, "_refuse_if_used", lambda *_: None)
        breaks_off(patch, before)
        with pytest.raises(RuntimeError):
            client.delete_topic(topic.name)
    with RmqClient(redis_url) as other:
        assert (
            other.producer(other.topic(topic.name)).send_many(PriorityMessage(f"job:{i}", 9) for i in range(20)).new
            == 20
        )
    assert client.delete_topic(topic.name, force=True).messages == 21


@pytest.mark.parametrize("before", [True, False])
def test_a_name_that_was_freed_in_part_is_freed_by_a_repeat(
    before: bool, client: RmqClient, redis_client: redis.Redis, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4, checked=False)
    client.producer(topic)
    with monkeypatch.context() as patch:
        breaks_off(patch, before)
        with pytest.raises(RuntimeError):
            client.delete_topic(topic.name, forget=True)
    assert client.delete_topic(topic.name, forget=True).messages == 0
    assert redis_client.hget(TOPICS_KEY, topic.name) is None
    assert {redis_client.type(f"{topic.name}_{slot}") for slot in range(4)} == {b"none"}


def test_a_topic_that_is_registered_while_its_name_is_freed_stays(
    client: RmqClient, redis_url: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    client.producer(topic)
    clear = Registry.clear

    def slowly(self: Registry, *args: Any) -> None:
        monkeypatch.undo()
        clear(self, *args)
        with RmqClient(redis_url) as other:
            other.producer(topic).send(PriorityMessage("new", 9))

    monkeypatch.setattr(Registry, "clear", slowly)
    with pytest.raises(RmqError, match="another client undid or replaced the deletion"):
        client.delete_topic(topic.name, forget=True)
    assert client.topic(topic.name) == topic
    assert left_in(stats_of(client, topic)) == (1, 0, 0, 0)


@pytest.mark.parametrize("kind", ["priority", "stream"])
def test_a_tombstone_that_outlived_the_registry_goes_with_a_second_deletion(
    kind: str, client: RmqClient, redis_url: str, redis_client: redis.Redis, make_topic: MakeTopic
) -> None:
    topic_type, _, message = TYPES[kind]
    topic = make_topic(topic_type, slots=2, checked=False)
    client.producer(topic)
    client.delete_topic(topic.name)
    redis_client.hdel(TOPICS_KEY, topic.name)
    with RmqClient(redis_url) as other:
        producer = other.producer(topic)
        with pytest.raises(TopicDeletedError, match=f"`rmq topics delete {topic.name}` and a restart"):
            producer.send(message)
        assert client.delete_topic(topic.name).messages == 0
        assert client.producer(topic).send(message).new == 1
        producer.send(message)


def test_a_clock_that_was_set_back_does_not_keep_a_topic(
    client: RmqClient, redis_client: redis.Redis, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=1)
    client.producer(topic)
    redis_client.hset(slot_keys(topic.name, 0).meta, "cleared", "009000000000000-ab")
    client.delete_topic(topic.name)
    assert client.producer(topic).send(PriorityMessage("new", 9)).new == 1


def test_another_shape_needs_the_name_to_be_freed(
    client: RmqClient, redis_url: str, redis_client: redis.Redis, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=8, checked=False)
    with RmqClient(redis_url) as living:
        producer = living.producer(topic)
        client.delete_topic(topic.name)
        for other in (replace(topic, slots=4), Topic(topic.name, TopicType.FIXED_TIME, slots=8)):
            with pytest.raises(TopicMismatchError, match="--forget` frees the name"):
                client.producer(other)
        assert client.delete_topic(topic.name, forget=True).messages == 0
        assert redis_client.hget(TOPICS_KEY, topic.name) is None
        kept = {key for slot in range(8) for key in redis_client.hkeys(slot_keys(topic.name, slot).meta)}
        assert kept == {b"cleared"}
        smaller = replace(topic, slots=4)
        assert client.producer(smaller).send(PriorityMessage("a", 20)).new == 1
        assert client.topic(topic.name).slots == 4
        del producer


def test_versions_that_know_no_deletion_leave_a_deleted_topic_alone(
    client: RmqClient, redis_client: redis.Redis, make_topic: MakeTopic
) -> None:
    """They listed it, changed it and sent to it, as they ignore the field that says that it is deleted."""

    def read_by_version_4() -> Document:
        text: Any = redis_client.hget(TOPICS_KEY, topic.name)
        return read_document(text, "it", 4)

    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic)
    assert read_by_version_4().min_reader == 4
    client.delete_topic(topic.name)
    with pytest.raises(UnreadableDocumentError, match="is for schema version 5 and newer"):
        read_by_version_4()
    client.producer(topic)
    assert read_by_version_4().min_reader == 4


def test_a_topic_that_is_not_there(client: RmqClient) -> None:
    with pytest.raises(UnknownTopicError, match="is not registered"):
        client.delete_topic("never-registered")
    with pytest.raises(InvalidValueError, match="cannot be deleted"):
        client.delete_topic("rmq.recurring", force=True)


def test_epochs_stamps_and_tokens_are_kept(client: RmqClient, redis_client: redis.Redis, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, checked=False)
    client.producer(topic).send(PriorityMessage("a", 20))
    meta = slot_keys(topic.name, 0).meta
    owner = {"epoch": "7", "ensemble": "zk", "token_base": "40", "stamp": "1700000000000"}
    redis_client.hset(meta, mapping=owner)  # pyright: ignore[reportArgumentType]
    client.delete_topic(topic.name, force=True)
    found: Any = redis_client.hgetall(meta)
    assert {name.decode(): value.decode() for name, value in found.items()} == owner


def test_a_full_redis_can_be_freed() -> None:
    """Deleting a topic works at maxmemory: an operator needs it then."""
    with RedisServer() as full, RmqClient(full.url) as client:
        topic = Topic("big", TopicType.PRIORITY, slots=4)
        client.producer(topic).send_many(PriorityMessage(f"job:{number}", 9, body="x" * 500) for number in range(2_000))
        full.config_set("maxmemory", 1)
        assert client.delete_topic("big", force=True).messages == 2_000
        full.config_set("maxmemory", 0)
        assert client.producer(topic).send(PriorityMessage("new", 9)).new == 1
