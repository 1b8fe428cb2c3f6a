"""A read of a slot at one instant, on a real Redis and without Spark."""

from __future__ import annotations

import pytest
import redis

from rmq import PriorityMessage, RmqClient, TopicType
from rmq.errors import ScriptFailedError
from rmq.spark import batch_reader
from rmq.spark.batch_reader import _at_once, _scan
from tests.conftest import MakeTopic
from tests.support.core import AnyPlace, Connections, slot_keys


def test_a_read_at_once_has_what_pages_have(connections: Connections, redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=1)
    with RmqClient(redis_url) as client:
        messages = (PriorityMessage(f"m{n}", 100 + n, body=b"b%d" % n if n % 2 else None) for n in range(50))
        client.producer(topic).send_many(messages)
        with client.consumer(topic) as consumer:
            for delivery in consumer.poll(max_messages=10, timeout=10):
                delivery.bury("wrong")
            assert len(consumer.poll(max_messages=5, timeout=10)) == 5
            places: dict[AnyPlace, int] = {"store": 35, "prepare": 5, "dead": 10, "retry": 0}
            for place, number in places.items():
                page = _at_once(connections, topic, 0, place, 1_000)
                paged = [row for each in _scan(connections, topic, 0, place, 1_000) for row in each.rows]
                assert sorted(page.rows) == sorted(paged)
                assert (page.size, len(page.rows)) == (number, number)
    assert _at_once(connections, topic, 0, "store", 34) == ("", 35, [], ())


def test_a_scan_of_many_keeps_few_contents_in_memory(
    connections: Connections, redis_url: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_reader, "MOST_SEEN", 400)
    topic = make_topic(TopicType.PRIORITY, slots=1)
    with RmqClient(redis_url) as client:
        client.producer(topic).send_many(PriorityMessage(f"m{n}", 100, body=b"b%d" % n) for n in range(3_000))
    page = _at_once(connections, topic, 0, "store", 3_000)
    servers = iter([b"one", *[b"other"] * 3])
    monkeypatch.setattr(batch_reader, "_server_of", lambda *_: next(servers))  # it is gone over twice
    paged = [row for each in _scan(connections, topic, 0, "store", 300) for row in each.rows]
    assert sorted(page.rows) == sorted(paged)
    assert next(servers, None) is None


def test_a_key_of_a_foreign_type_is_named(
    connections: Connections, redis_client: redis.Redis, redis_url: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=1, checked=False)
    with RmqClient(redis_url) as client:
        client.producer(topic).send(PriorityMessage("a", 100))
    redis_client.set(slot_keys(topic.name, 0).body, "foreign")
    with pytest.raises(ScriptFailedError, match="WRONGTYPE"):
        _at_once(connections, topic, 0, "store", 10)
    redis_client.delete(slot_keys(topic.name, 0).body)
    assert _at_once(connections, topic, 0, "store", 10).size == 1, "no reply was left behind"
    with pytest.raises(ScriptFailedError, match="unknown command"):
        connections.read_at_once("t", ("ZCARD", "t"), ("NOSUCH", "t"))
    assert _at_once(connections, topic, 0, "store", 10).size == 1
