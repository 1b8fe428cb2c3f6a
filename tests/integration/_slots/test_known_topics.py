"""A client reads a definition once."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta

import pytest

from rmq import RmqClient, TopicType
from tests.conftest import MakeTopic
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer


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
        f"topic {topic.name}: the registered settings hold, and this program has others: max_retries 16, not 3; "
        "lease 1 m, not 30 s; ttl none, not 5 m. `rmq topics diff MODULE`"
    )


def test_a_change_leaves_its_settings_in_the_audit(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = client.producer(make_topic(TopicType.PRIORITY)).topic
    client.change_topic(topic.changed(max_retries=3, ttl=60_000))
    client.change_topic(topic.changed(max_retries=3))  # as it is already
    lines = client.inspect(topic).audit()
    assert [line.outcome for line in lines] == ["done", "begun"]
    assert {line.detail for line in lines} == {"max_retries 16, now 3; ttl none, now 1 m"}
    assert {line.action for line in lines} == {"change topic"}
