"""A client reads a definition once, and looks now and then whether it is still registered."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from rmq import Listener, MemoryFullError, PriorityMessage, RmqClient, Topic, TopicMismatchError, TopicType
from rmq.errors import TopicDeletedError, UnknownTopicError
from tests.conftest import MakeTopic
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until


def test_a_definition_looked_up_by_name_is_not_read_again(
    redis_server: RedisServer, client: RmqClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic)
    with Proxy(redis_server.port) as proxy, RmqClient(proxy.url) as looking:
        found = looking.topic(topic.name)
        asked = proxy.commands()
        assert asked > 0
        for view in (looking.dead, looking.inspect, looking.control):
            assert view(found).topic == topic
        assert proxy.commands() == asked


def test_a_definition_that_was_changed_is_read_again(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic)
    found = client.topic(topic.name)
    client.change_topic(found.changed(max_retries=3))
    assert client.inspect(found).topic.max_retries == 3
    assert client.topic(topic.name).max_retries == 3


def test_settings_of_a_program_that_do_not_count_are_told_once(
    redis_url: str, client: RmqClient, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic)
    ours = replace(topic, max_retries=3, lease=timedelta(seconds=30), ttl=timedelta(minutes=5))
    with caplog.at_level(logging.WARNING, "rmq"):
        for _ in range(2):  # once a process, not once a client
            with RmqClient(redis_url) as other:
                assert other.producer(ours).topic == topic  # the registered ones hold
                other.producer(replace(ours, payload=None))
                other.inspect(topic)
    [record] = caplog.records
    assert (record.name, record.levelname) == ("rmq.registry", "WARNING")
    assert record.getMessage().startswith(
        f"topic {topic.name}: the registered settings apply, not those of this program: max_retries 16, not 3; "
        "lease 1 m, not 30 s; ttl none, not 5 m. `rmq topics diff MODULE`"
    )


def test_a_change_leaves_its_settings_in_the_audit(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = client.producer(make_topic(TopicType.PRIORITY)).topic
    client.change_topic(topic.changed(max_retries=3, ttl="1m"))
    client.change_topic(topic.changed(max_retries=3))  # as it is already
    lines = client.inspect(topic).audit()
    assert [line.outcome for line in lines] == ["done", "begun"]
    assert {line.detail for line in lines} == {"max_retries 16, now 3; ttl none, now 1 m"}
    assert {line.action for line in lines} == {"change topic"}


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    """A server of its own, which may forget; clients look at each call whether it did."""
    monkeypatch.setattr("rmq._registry.known_topics.LOOK_S", 0.0)
    with RedisServer() as server:
        yield server


@pytest.mark.parametrize("how", ["send", "send_many", "poll", "listen"])
def test_a_server_that_has_forgotten_learns_the_topics_of_each_process_again(hasty: RedisServer, how: str) -> None:
    topic = Topic("t", TopicType.PRIORITY, slots=2, max_retries=3)
    with RmqClient(hasty.url) as client, RmqClient(hasty.url) as other:
        if how == "listen":
            client.add(Listener(topic, lambda delivery: None))
            client.start()
        producer, consumer = client.producer(topic), client.consumer(topic)
        producer.send(PriorityMessage("a", 1))
        hasty.connect().flushall()
        assert other.topics() == []
        if how == "send":
            producer.send(PriorityMessage("b", 1))
        elif how == "send_many":
            producer.send_many([PriorityMessage("b", 1)])
        elif how == "poll":
            consumer.poll(timeout=0)
        wait_until(lambda: other.topics() == [topic])
        with pytest.raises(TopicMismatchError):
            other.producer(Topic("t", TopicType.PRIORITY, slots=8))


def test_a_topic_that_others_registered_otherwise_meanwhile_is_told(
    hasty: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with RmqClient(hasty.url) as client, RmqClient(hasty.url) as other:
        producer = client.producer(Topic("t", TopicType.PRIORITY, slots=2))
        hasty.connect().flushall()
        other.producer(Topic("t", TopicType.PRIORITY, slots=8))
        for number in range(3):
            producer.send(PriorityMessage(f"m{number}", 1))
        [told] = [record for record in caplog.records if record.levelname == "ERROR"]
        assert "topic t is registered as PRIORITY with 8 slots, not as PRIORITY with 2" in told.getMessage()
        assert "stop those with one of the two definitions" in told.getMessage()


def test_settings_that_were_changed_meanwhile_are_no_mismatch(
    hasty: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    topic = Topic("t", TopicType.PRIORITY, slots=2)
    with RmqClient(hasty.url) as client, RmqClient(hasty.url) as other:
        producer = client.producer(topic)
        other.change_topic(topic.changed(max_retries=3))
        producer.send(PriorityMessage("m", 1))
        client.change_topic(topic.changed(max_retries=4))
        hasty.connect().flushall()
        producer.send(PriorityMessage("m", 1))
        assert other.topic("t").max_retries == 4
        hasty.config_set("maxmemory", 1)
        hasty.connect().flushall()
        with pytest.raises(MemoryFullError):
            producer.send(PriorityMessage("m", 1))
        hasty.config_set("maxmemory", 0)
        producer.send(PriorityMessage("m", 1))
    assert [record.levelname for record in caplog.records if record.name == "rmq.registry"] == ["WARNING"] * 3


@pytest.mark.parametrize("forget", [False, True])
def test_who_only_looks_registers_no_topic(hasty: RedisServer, caplog: pytest.LogCaptureFixture, forget: bool) -> None:
    topic, log = Topic("t", TopicType.PRIORITY, slots=2), Topic("log", TopicType.STREAM)
    with RmqClient(hasty.url) as other, RmqClient(hasty.url) as looking:
        assert looking.inspect(topic).stats().backlog == looking.dead(topic).count() == 0
        assert looking.stream(log).groups() == []
        assert other.topics() == []
        with RmqClient(hasty.url) as client:
            client.producer(topic)
        assert looking.inspect(topic).stats().backlog == 0
        other.delete_topic("t", forget=forget)
        for view in (looking.inspect, looking.dead, looking.control):
            if forget:
                assert view(topic).topic == topic
            else:
                with pytest.raises(UnknownTopicError, match="topic t was deleted"):
                    view(topic)
        assert other.topics() == looking.topics() == []
        assert not caplog.records


def test_a_deletion_is_told_once_to_who_uses_the_topic(
    hasty: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq._registry.known_topics.WARN_EVERY_S", 0.0)
    topic = Topic("t", TopicType.PRIORITY)
    with RmqClient(hasty.url) as client, RmqClient(hasty.url) as other:
        producer = client.producer(topic)
        for deletions in (1, 2):
            other.delete_topic("t")
            for _ in range(3):
                with pytest.raises(TopicDeletedError):
                    producer.send(PriorityMessage("a", 1))
            assert [record.levelname for record in caplog.records] == ["ERROR"] * deletions
            with RmqClient(hasty.url) as third:
                third.producer(topic)


def test_a_change_that_others_made_is_registered_again(hasty: RedisServer) -> None:
    topic = Topic("t", TopicType.PRIORITY)
    with RmqClient(hasty.url) as client:
        producer = client.producer(topic)
        with RmqClient(hasty.url) as other:
            other.change_topic(topic.changed(max_retries=3))
        producer.send(PriorityMessage("m", 1))
        hasty.connect().flushall()
        producer.send(PriorityMessage("m", 1))
        assert client.topic("t").max_retries == 3


def test_a_look_waits_for_no_silent_server_and_goes_on_after_it(hasty: RedisServer) -> None:
    topic = Topic("t", TopicType.PRIORITY)
    with Proxy(hasty.port) as proxy, RmqClient(proxy.url) as client:
        producer = client.producer(topic)
        hasty.connect().flushall()
        proxy.drop_replies(1, command="HMGET")
        producer.send(PriorityMessage("m", 1))  # the look before it is given up, on a connection of its own
        assert hasty.connect().hlen("rmq:topics") == 0
        producer.send(PriorityMessage("m", 1))
        assert hasty.connect().hlen("rmq:topics") == 1


def test_a_look_that_was_broken_off_comes_again(hasty: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a cancelled task, or Ctrl-C."""
    topic = Topic("t", TopicType.PRIORITY)
    monkeypatch.setattr("rmq._transport.connections.LOOK_AGAIN_S", 0.0)
    with RmqClient(hasty.url) as client:
        producer = client.producer(topic)
        with monkeypatch.context() as broken:
            broken.setattr("rmq._servers.nodes.Node.ask_soon", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                producer.send(PriorityMessage("m", 1))
        hasty.connect().flushall()
        producer.send(PriorityMessage("m", 1))
        assert client.topics() == [topic]


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_client_of_many_topics_looks_at_them_in_turn(hasty: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq._registry.known_topics.LOOKED_AT", 2)
    with RmqClient(hasty.url) as client:
        producers = [client.producer(Topic(f"t{number}", TopicType.PRIORITY)) for number in range(5)]
        hasty.connect().flushall()
        for _ in range(4):
            producers[0].send(PriorityMessage("m", 1))
        assert len(client.topics()) == 5
