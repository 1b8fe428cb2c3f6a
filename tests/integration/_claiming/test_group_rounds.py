"""Rounds of claims of a group: one call for many slots, in which a slot that fails hides none of the others."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import redis

from rmq import Delivery, Retention, RmqClient, StreamMessage, Topic, TopicType
from rmq._claiming.claim_planner import ClaimPlanner
from rmq._claiming.fetcher import Fetcher
from tests.conftest import MakeTopic
from tests.support.clients import texts
from tests.support.core import (
    ACKED,
    ClaimPart,
    Connections,
    StreamBroker,
    deliveries_of,
    group_keys,
    join_group,
    select,
)
from tests.support.holders import HolderStub

SLOTS = 4


@pytest.fixture
def topic(client: RmqClient, make_topic: MakeTopic) -> Topic:
    """A topic of four slots with three entries in each."""
    topic = make_topic(TopicType.STREAM, slots=SLOTS, checked=False, retention=Retention(max_length=None))
    bases = {topic.slot_of(f"{i}".encode()): f"{i}" for i in range(100)}
    messages = [StreamMessage(f"s{slot} m{n}", slot_basis=bases[slot]) for slot in range(SLOTS) for n in range(3)]
    client.producer(topic).send_many(messages)
    return topic


@pytest.fixture
def source(connections: Connections, topic: Topic) -> StreamBroker:
    """The topic's slots for a consumer of a group, with its script loaded."""
    source = join_group(connections, topic, "g", "all")
    connections.run(source.claim_call([ClaimPart(0, 0)]))
    return source


@pytest.fixture
def claims(connections: Connections, topic: Topic, source: StreamBroker) -> Fetcher:
    return Fetcher(ClaimPlanner(connections, topic, range(SLOTS), source=source), HolderStub())


def script_calls(client: redis.Redis) -> int:
    found: Any = client.info("commandstats")
    return found["cmdstat_evalsha"]["calls"]


def test_a_round_claims_and_settles_in_one_call(claims: Fetcher, topic: Topic, redis_client: redis.Redis) -> None:
    seen: list[str] = []
    deliveries: list[Delivery] = []
    for _ in range(3):
        before = script_calls(redis_client)
        deliveries = claims.claim(SLOTS, select(deliveries)).deliveries
        assert script_calls(redis_client) == before + 1
        assert sorted(delivery.slot for delivery in deliveries) == list(range(SLOTS)), "each slot has its share"
        seen += texts(deliveries)
        for delivery in deliveries:
            delivery.claim.settle_open(ACKED, (delivery.row,))
    before = script_calls(redis_client)
    assert claims.claim(0, select(deliveries)).unsent == []
    assert script_calls(redis_client) == before + 1
    assert sorted(seen) == sorted(f"s{slot} m{n}" for slot in range(SLOTS) for n in range(3))
    left: Any = [redis_client.xpending(f"{topic.name}_{slot}", "g") for slot in range(SLOTS)]
    assert [each["pending"] for each in left] == [0] * SLOTS


def test_a_slot_that_fails_hides_none_of_the_others(
    claims: Fetcher, topic: Topic, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    found = claims.claim(SLOTS).deliveries
    redis_client.set(group_keys(topic.name, 1, "g").retry, "someone else's")
    for delivery in found:
        delivery.claim.settle_open(ACKED, (delivery.row,))
    with caplog.at_level(logging.WARNING):
        round_ = claims.claim(3, select(found))
    assert texts(deliveries_of(round_.unsent)) == ["s1 m0"]
    assert "WRONGTYPE" in caplog.text
    assert {delivery.slot for delivery in round_.deliveries} <= {0, 2, 3}
    redis_client.delete(group_keys(topic.name, 1, "g").retry)
    assert claims.claim(0, round_.unsent).unsent == []
    left: Any = redis_client.xpending(f"{topic.name}_1", "g")
    assert left["pending"] == 0


def test_a_reply_that_cannot_be_read_is_that_of_one_slot(
    claims: Fetcher, topic: Topic, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    broken, others = 1, {0, 2, 3}
    keys = group_keys(topic.name, broken, "g")
    redis_client.xtrim(keys.store, maxlen=0)
    redis_client.zadd(keys.retry, {f"{1:020d}-{1:020d}": float("inf")})  # nothing of RMQ waits for ever
    seen: list[str] = []
    deliveries: list[Delivery] = []
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            round_ = claims.claim(SLOTS, select(deliveries))
            assert round_.lost == [], "what was acked in the call is not told as lost"
            deliveries = round_.deliveries
            seen += texts(deliveries)
            pending: Any = [redis_client.xpending(f"{topic.name}_{slot}", "g")["pending"] for slot in others]
            assert sum(pending) == len(deliveries), "nothing is claimed that is not handed over"
            for delivery in deliveries:
                delivery.claim.settle_open(ACKED, (delivery.row,))
    assert "that RMQ cannot read" in caplog.text
    assert sorted(seen) == sorted(f"s{slot} m{n}" for slot in others for n in range(3))
