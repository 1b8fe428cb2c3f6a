"""A client reads a definition once."""

from __future__ import annotations

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
