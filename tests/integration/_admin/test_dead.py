"""Dead letters: bounded, listed with their reasons, redriven, purged."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import cast

import pytest
import redis

from rmq import (
    DeadFilter,
    Delivery,
    FixedTimeMessage,
    PriorityMessage,
    RangeMergeMessage,
    RedriveResult,
    RmqClient,
    Topic,
    TopicType,
)
from rmq.errors import InvalidValueError, UnknownTopicError
from tests.conftest import MakeTopic
from tests.support.clients import drain, left_in, run_until, stats_of, texts
from tests.support.core import slot_keys
from tests.support.sides import Side

MakeDead = Callable[..., Topic]


@pytest.fixture
def make_dead(client: RmqClient, side: Side, redis_url: str, make_topic: MakeTopic) -> MakeDead:
    """Make a topic in which `number` messages m0, m1, ... have died; the even ones of a ValueError."""

    def make(number: int = 10, type: TopicType = TopicType.PRIORITY, **definition: object) -> Topic:
        topic = make_topic(type, **definition)
        producer = client.producer(topic)
        if type is TopicType.PRIORITY:
            producer.send_many(PriorityMessage(f"m{i}", 5_000 - i, body=f"body {i}") for i in range(number))
        else:
            producer.send_many(RangeMergeMessage(f"m{i}", time_range_ms=1, body=f"body {i}") for i in range(number))

        def bury(deliveries: list[Delivery]) -> None:
            for delivery in deliveries:
                index = int(delivery.text[1:])
                assert delivery.bury(KeyError("odd") if index % 2 else ValueError(f"even {index}"))

        with side.client(redis_url) as killer:
            killer.listener(topic, batch=100)(bury)
            run_until(killer, lambda: left_in(stats_of(killer, topic))[:3] == (0, 0, 0))
        return topic

    return make


def test_a_topic_nobody_has_registered(client: RmqClient) -> None:
    with pytest.raises(UnknownTopicError, match="no-such-topic"):
        client.dead("no-such-topic")


def test_nothing_is_dead(client: RmqClient, make_topic: MakeTopic) -> None:
    dead = client.dead(make_topic(TopicType.PRIORITY, slots=2))
    assert list(dead.list()) == []
    assert dead.count() == 0
    assert dead.redrive() == RedriveResult(0, 0, 0)
    assert dead.purge() == 0


@pytest.mark.parametrize("how", ["redrive", "purge"])
def test_who_died_before_the_clock_was_set_back_is_meant_too(
    client: RmqClient, make_dead: MakeDead, redis_client: redis.Redis, how: str
) -> None:
    topic = make_dead(3)
    ahead_ms = int(time.time() * 1000) + 3_600_000
    redis_client.zadd(slot_keys(topic.name, 0).dead, {"m1": ahead_ms})
    dead = client.dead(topic)
    assert (dead.redrive().redriven if how == "redrive" else dead.purge()) == 3
    assert dead.count() == 0


def test_list_with_reasons_limit_and_filter(client: RmqClient, make_dead: MakeDead) -> None:
    topic = make_dead(600, slots=2)
    dead = client.dead(topic.name)
    found = list(dead.list())
    assert {message.text for message in found} == {f"m{i}" for i in range(600)}
    for message in found:
        index = int(message.text[1:])
        assert message.body == f"body {index}".encode()
        assert (message.attempts, message.claimed_ms) == (1, None)
        kind, text = ("KeyError", "'odd'") if index % 2 else ("ValueError", f"even {index}")
        assert (message.error_type, message.error_message) == (kind, text)
    for slot in (0, 1):  # the longest dead first
        times = [message.died_ms for message in found if message.slot == slot]
        assert times == sorted(times)
    assert len(list(dead.list(limit=7))) == 7
    assert list(dead.list(limit=0)) == []
    assert dead.count(DeadFilter(error_type="KeyError")) == 300
    assert len(list(dead.list(DeadFilter(error_type="KeyError"), limit=250))) == 250
    assert [message.text for message in dead.list(DeadFilter(frozenset({b"m17", b"absent"})))] == ["m17"]


def test_redrive_all_as_fresh_messages_with_their_bodies(client: RmqClient, make_dead: MakeDead) -> None:
    topic = make_dead(600, slots=4)
    steps: list[int] = []
    assert client.dead(topic).redrive(progress=steps.append) == RedriveResult(600, 0, 0)
    assert steps == sorted(steps)
    assert steps[-1] == 600
    with client.consumer(topic) as consumer:
        found = consumer.poll(1_000)
        assert {(delivery.text, delivery.body) for delivery in found} == {
            (f"m{i}", f"body {i}".encode()) for i in range(600)
        }
        assert {(delivery.attempt, delivery.priority) for delivery in found} == {(1, 1)}
        consumer.ack(found)
    assert left_in(stats_of(client, topic)) == (0, 0, 0, 0)


def test_redrive_some(client: RmqClient, make_dead: MakeDead) -> None:
    topic = make_dead(20)
    dead = client.dead(topic)
    assert dead.redrive(DeadFilter(error_type="ValueError"), limit=4, priority=900) == RedriveResult(4, 0, 0)
    assert dead.redrive(DeadFilter(frozenset({b"m1", b"absent"}))) == RedriveResult(1, 0, 0)
    with client.consumer(topic) as consumer:
        found = drain(consumer, 0)
    assert (len(found), found[-1]) == (5, "m1")
    assert set(found[:4]) <= {f"m{i}" for i in range(0, 20, 2)}
    assert dead.count() == 15


def test_redrive_beside_a_fresh_copy(client: RmqClient, make_dead: MakeDead) -> None:
    topic = make_dead(2)
    client.producer(topic).send(PriorityMessage("m0", 700, body="fresh"))
    client.producer(topic).send(PriorityMessage("m1", 700, body="fresh"))
    dead = client.dead(topic)
    assert dead.redrive(DeadFilter(frozenset({b"m0"}))) == RedriveResult(0, 1, 0)  # the fresh one stands
    assert dead.redrive(DeadFilter(frozenset({b"m1"})), priority=800) == RedriveResult(0, 1, 0)
    with client.consumer(topic) as consumer:
        found = consumer.poll()
        assert [(d.text, d.priority, d.body) for d in found] == [("m1", 800, b"fresh"), ("m0", 700, b"fresh")]
        consumer.ack(found)


def test_redrive_later(client: RmqClient, make_dead: MakeDead) -> None:
    topic = make_dead(2, type=TopicType.RANGE_MERGE)
    dead = client.dead(topic)
    assert dead.redrive(DeadFilter(frozenset({b"m0"})), due_in=timedelta(hours=1)).redriven == 1
    assert dead.redrive(DeadFilter(frozenset({b"m1"}))).redriven == 1
    with client.consumer(topic) as consumer:
        assert drain(consumer) == ["m1"]
    [peeked] = client.inspect(topic).peek()
    now_ms = stats_of(client, topic).slots[0].now_ms
    assert peeked.due_ms is not None
    assert 3_500_000 < peeked.due_ms - now_ms <= 3_600_000
    client.control(topic).cancel("m0")


def test_redrive_at_a_bounded_rate(client: RmqClient, make_dead: MakeDead) -> None:
    topic = make_dead(30)
    steps: list[tuple[float, int]] = []
    start = time.monotonic()
    result = client.dead(topic).redrive(
        per_second=50, progress=lambda done: steps.append((time.monotonic() - start, done))
    )
    assert result.redriven == 30
    # by the time of each step no more than the rate allows, but for the step itself
    assert all(done <= 50 * at_s + 5 for at_s, done in steps)
    with client.consumer(topic) as consumer:
        assert len(drain(consumer, 0)) == 30


@pytest.mark.parametrize("options", [
    {"due_in": 5}, {"priority": 0}, {"priority": 2**20}, {"priority": 20.5}, {"per_second": 0}, {"per_second": -1},
])  # fmt: skip
def test_options_of_redrive_on_a_priority_topic(
    client: RmqClient, make_dead: MakeDead, options: dict[str, int]
) -> None:
    dead = client.dead(make_dead(1))
    with pytest.raises(InvalidValueError):
        dead.redrive(**options)  # pyright: ignore[reportArgumentType]
    assert dead.count() == 1


def test_options_of_redrive_on_a_time_topic(client: RmqClient, make_dead: MakeDead) -> None:
    dead = client.dead(make_dead(1, type=TopicType.RANGE_MERGE))
    for options in ({"priority": 50}, {"due_in": -1}):
        with pytest.raises(InvalidValueError):
            dead.redrive(**options)  # pyright: ignore[reportArgumentType]
    assert dead.count() == 1


def test_what_dies_while_a_redrive_runs_is_left_alone(
    client: RmqClient, make_dead: MakeDead, redis_client: redis.Redis
) -> None:
    """Else a redrive of what fails at once would never end."""
    topic = make_dead(260)

    def die_again(done: int) -> None:
        if done < 260:
            time.sleep(0.005)  # later than it began
            seconds, micros = cast("tuple[int, int]", redis_client.time())
            redis_client.zadd(slot_keys(topic.name, 0).dead, {last: seconds * 1000 + micros // 1000})

    last = list(client.dead(topic).list())[-1].text
    assert client.dead(topic).redrive(progress=die_again) == RedriveResult(259, 0, 0)
    assert [message.text for message in client.dead(topic).list()] == [last]


def test_purge(client: RmqClient, make_dead: MakeDead) -> None:
    topic = make_dead(600, slots=2)
    dead = client.dead(topic)
    steps: list[int] = []
    assert dead.purge(DeadFilter(error_type="KeyError"), limit=200, progress=steps.append) == 200
    assert steps[-1] == 200
    assert dead.purge(DeadFilter(error_type="KeyError")) == 100
    assert {message.error_type for message in dead.list()} == {"ValueError"}
    assert dead.purge() == 300
    stats = stats_of(client, topic)
    assert (stats.dead, stats.total("purged")) == (0, 600)


def test_the_dead_are_bounded_by_number_and_age(client: RmqClient, make_dead: MakeDead) -> None:
    """Pitfall 36: the longest dead go first."""
    topic = make_dead(25, max_dead=10)
    stats = stats_of(client, topic)
    assert (stats.dead, stats.total("trimmed")) == (10, 15)
    assert {message.text for message in client.dead(topic).list()} <= {f"m{i}" for i in range(25)}
    old = make_dead(5, max_dead_age=timedelta(milliseconds=50))
    time.sleep(0.06)  # the age itself has to pass
    client.producer(old).send(PriorityMessage("last", 100))
    with client.consumer(old) as consumer:
        found = consumer.poll()
        assert texts(found) == ["last"]
        consumer.ack(found)
    assert (stats_of(client, old).dead, stats_of(client, old).total("trimmed")) == (0, 5)


def test_a_fixed_time_topic_redrives_at_once(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.FIXED_TIME)
    now_ms = stats_of(client, topic).slots[0].now_ms
    client.producer(topic).send(FixedTimeMessage("a", fixed_time_ms=now_ms + 300))
    with client.consumer(topic) as consumer:
        [delivery] = consumer.poll(timeout=50)
        assert delivery.bury()
        assert client.dead(topic).redrive().redriven == 1
        [again] = consumer.poll(timeout=50)
        assert again.attempt == 1
        assert again.ack()
