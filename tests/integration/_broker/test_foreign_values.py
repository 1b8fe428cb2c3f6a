"""Values that another version, another tenant or an accident has left beside ours: each hides only itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from rmq import ImmediateRetry, PriorityMessage, RmqClient, StreamMessage, Topic, TopicType
from rmq.errors import ScriptFailedError
from rmq.metrics import render
from tests.conftest import MakeTopic
from tests.support.cli import bury
from tests.support.core import WORKER_INFOS_KEY, WORKERS_KEY, history_key, slot_keys
from tests.support.dashboard import served
from tests.support.waiting import wait_until

GARBAGE = b"garbage", b"[]", b"7", b"\xff", b"[" * 10_000, b'{"type":7,"first_ms":{}}', b"null", b'"text"', b""


@pytest.fixture
def workers(redis_client: redis.Redis) -> Iterator[None]:
    redis_client.delete(WORKERS_KEY, WORKER_INFOS_KEY)
    yield
    redis_client.delete(WORKERS_KEY, WORKER_INFOS_KEY, history_key(None))


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_failure_that_cannot_be_read_stops_no_retry_and_no_death(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis, garbage: bytes
) -> None:
    topic = make_topic(TopicType.PRIORITY, max_retries=2, retry=ImmediateRetry())
    client.producer(topic).send_many(PriorityMessage(name, 100) for name in ("bad", "good"))
    keys = slot_keys(topic.name, 0)
    with client.consumer(topic) as consumer:
        for attempt in range(3):
            found = consumer.poll(10, timeout=50)
            assert {each.text for each in found} == {"bad", "good"}
            redis_client.hset(keys.error, "bad", garbage)
            assert client.inspect(topic).find("bad").failure is not None
            for each in found:
                assert each.nack(error=ValueError(f"attempt {attempt}"))
    assert {each.text: each.error_type for each in client.dead(topic).list()} == {
        "bad": "ValueError",
        "good": "ValueError",
    }


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_reason_that_cannot_be_read_hides_no_other_dead(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis, garbage: bytes
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic).send_many(PriorityMessage(name, 100) for name in ("bad", "good"))
    bury(client, topic, 2)
    redis_client.hset(slot_keys(topic.name, 0).reason, "bad", garbage)
    dead = {each.text: each for each in client.dead(topic).list()}
    assert dead.keys() == {"bad", "good"}
    assert dead["good"].error_message
    assert dead["bad"].first_failed_ms == dead["bad"].died_ms
    assert len(client.inspect(topic).search("*", places=("dead",)).messages) == 2
    assert client.inspect(topic).dead_reasons().total == 2
    assert client.inspect(topic).find("bad").dead is not None
    assert client.dead(topic).redrive().redriven == 2


def test_a_stream_buries_over_a_failure_that_cannot_be_read(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    topic = make_topic(TopicType.STREAM, checked=False, max_retries=0)
    client.stream(client.producer(topic).topic).add_group("g", "all")
    client.producer(topic).send(StreamMessage("a"))
    with client.consumer(topic, group="g") as consumer:
        [delivery] = consumer.poll(10, timeout=50)
        redis_client.hset(f"error:g{{{topic.name}_0}}", delivery.name, "garbage")
        assert delivery.nack(error=ValueError("no"))
    assert [each.text for each in client.stream(topic.name).dead("g").list()] == ["a"]


def test_a_strangers_line_in_the_audit_hides_no_other(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic)
    redis_client.xadd(slot_keys(topic.name, 0).audit, {"stranger": "x"})
    client.control(topic).pause()
    client.control(topic).resume()
    assert [line.action for line in client.inspect(topic).audit()] == ["resume", "pause", ""]


def test_reports_of_strangers_hide_no_worker(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis, workers: None
) -> None:
    topic = make_topic(TopicType.PRIORITY)

    @client.listener(topic)
    def handle(delivery: object) -> None:
        del delivery

    client.start()
    try:
        name = _first(redis_client)
        good = json.loads(redis_client.hget(WORKER_INFOS_KEY, name) or "")  # pyright: ignore[reportArgumentType]
        huge = json.loads(json.dumps(good))
        huge["listeners"][0]["slots"] = "0-9999999999999"
        strangers = {
            b"bytes\xff\x1b": b"garbage", b"huge": json.dumps(huge).encode(), b"long": b"x" * 2_000_000,
            b"newer": json.dumps({**good, "min_reader": 99, "version": 99}).encode(), b"deep": b"[" * 100_000,
        }  # fmt: skip
        redis_client.hset(WORKER_INFOS_KEY, mapping=strangers)  # pyright: ignore[reportArgumentType]
        now_ms = int(redis_client.time()[0]) * 1000  # pyright: ignore
        redis_client.zadd(WORKERS_KEY, dict.fromkeys(strangers, now_ms))
        redis_client.zadd(WORKERS_KEY, {b"huge": now_ms + 0.5, b"inf": float("inf")})
        redis_client.hset(WORKER_INFOS_KEY, "inf", json.dumps(good))
        for _ in range(2):
            assert [worker.name for worker in client.workers()] == [name.decode()]
    finally:
        client.stop()


def _first(server: redis.Redis) -> bytes:
    wait_until(lambda: server.hlen(WORKER_INFOS_KEY) == 1)
    names: Any = server.hkeys(WORKER_INFOS_KEY)
    return names[0]


def test_shared_keys_of_a_foreign_type_hide_no_topic(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis, workers: None
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic).send(PriorityMessage("a", 100))
    for key in (WORKERS_KEY, WORKER_INFOS_KEY, history_key(None)):
        redis_client.delete(key)
        redis_client.set(key, "foreign")
    with served(client) as address, httpx.Client(base_url=address, trust_env=False, timeout=60) as browser:
        for path in ("/", f"/topic/{topic.name}", f"/topic/{topic.name}/slot/0", "/workers"):
            answer = browser.get(path)
            assert answer.status_code == 200, path
            assert path == "/workers" or topic.name in answer.text
    families = {family.name: family.samples for family in text_string_to_metric_families(render(client))}
    assert families["rmq_up"][0].value == 1
    assert topic.name in [sample.labels["topic"] for sample in families["rmq_backlog"]]
    assert not families["rmq_workers"]


def test_a_record_of_a_stranger_in_the_history_is_left_out(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis, workers: None
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic)
    for record in (b"9" * 4_000, b"29000000 " + b"9" * 400, b"\xff", b"29000001" + b" 5" * 11, b"29000002 5"):
        redis_client.rpush(history_key(topic.name), record)
    assert [each.minute for each in client.history().last(topic.name)] == [29_000_001]


def test_a_total_that_is_no_number_hides_only_its_topic(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis
) -> None:
    topic: Topic = make_topic(TopicType.PRIORITY, checked=False)
    client.producer(topic).send(PriorityMessage("a", 100))
    redis_client.hset(slot_keys(topic.name, 0).meta, "merged", "garbage")
    with pytest.raises(ScriptFailedError, match=f"slot 0 of topic {topic.name} has a value that RMQ cannot read"):
        client.inspect(topic).stats()
    families = {family.name: family.samples for family in text_string_to_metric_families(render(client))}
    assert families["rmq_up"][0].value == 1
    assert [sample.labels["topic"] for sample in families["rmq_topic_unreadable"]] == [topic.name]
