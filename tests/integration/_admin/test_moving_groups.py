"""A group of a stream topic is moved: what it reads next, what stays as it is, and that nothing is counted wrongly."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from rmq import Consumer, RmqClient, StreamMessage, Topic
from rmq.errors import InvalidValueError, RmqError
from tests.integration.conftest import MakeStream


@pytest.fixture
def topic(make_stream: MakeStream) -> Topic:
    return make_stream(max_retries=2)


def send(client: RmqClient, topic: Topic, text: str) -> list[str]:
    """Send entries of one letter each; the first one's id is 10-1, the next one's 20-1, and so on."""
    messages = [StreamMessage(letter, id=f"{10 * number}-1") for number, letter in enumerate(text, 1)]
    return list(client.producer(topic).send_many(messages, outcomes=True).ids)


def drain(consumer: Consumer) -> str:
    """Ack all that is left; return it in order."""
    found = ""
    while deliveries := consumer.poll(timeout=0.05):
        found += "".join(delivery.text for delivery in deliveries)
        assert all(delivery.ack() for delivery in deliveries)
    return found


def lag(client: RmqClient, topic: Topic) -> int | None:
    stats = client.stream(topic).group("g")
    assert stats.unaccounted == 0, stats
    return stats.lag


@pytest.mark.parametrize("acked", [1, 3, 5])
@pytest.mark.parametrize(
    ("start", "left"),
    [
        ("new", ""),
        ("all", "abcde"),
        ("20-1", "cde"),
        ("20", "bcde"),
        ("25-7", "cde"),
        ("50-1", ""),
        ("9999-18446744073709551615", ""),
        (20, "bcde"),
        (21, "cde"),
        (datetime.fromtimestamp(0.05, UTC), "e"),
        (51, ""),
        (1, "abcde"),
    ],
)
def test_where_a_group_stands_after_a_move(start: Any, left: str, acked: int, client: RmqClient, topic: Topic) -> None:
    send(client, topic, "abcde")
    stream = client.stream(topic)
    with client.consumer(topic, group="g", start="all") as consumer:
        assert all(delivery.ack() for delivery in consumer.poll(acked))
        for _ in range(2):
            stream.move_group("g", start)
            assert lag(client, topic) == len(left)
        client.producer(topic).send(StreamMessage("f", id="60-1"))
        assert lag(client, topic) == len(left) + 1
        assert drain(consumer) == left + "f"
        assert lag(client, topic) == 0
        client.producer(topic).send(StreamMessage("g", id="70-1"))
        assert (lag(client, topic), drain(consumer), lag(client, topic)) == (1, "g", 0)


def test_what_is_in_flight_waiting_or_dead_stays(client: RmqClient, topic: Topic, redis_client: Any) -> None:
    send(client, topic, "abcdef")
    stream = client.stream(topic)
    with (
        client.consumer(topic, group="g", start="all") as one,
        client.consumer(topic, group="g", start="all") as other,
    ):
        a, b, c, d, e = one.poll(5)
        assert b.ack()
        assert c.bury("no")
        assert d.nack(delay="1h")
        assert e.ack()
        stream.move_group("g", "all")
        assert [entry.id for entry in stream.pending("g")] == ["10-1", "40-1"]
        assert drain(other) == "bef"
        assert stream.group("g").waiting == stream.group("g").dead == 1
        assert lag(client, topic) == 0
        assert a.ack()
        assert stream.dead("g").redrive().redriven == 1
        assert drain(other) == "c"
        stream.move_group("g", "all")
        assert drain(other) == "abcef"  # d waits
        assert lag(client, topic) == 0
        assert redis_client.hget(f"group:g{{{topic.name}_0}}", "again") is None


def test_a_group_moves_back_twice_and_forward_past_what_it_holds(client: RmqClient, topic: Topic) -> None:
    send(client, topic, "abcdef")
    stream = client.stream(topic)
    with client.consumer(topic, group="g", start="all") as consumer:
        held = consumer.poll(4)
        stream.move_group("g", "all")
        stream.move_group("g", "20-1")
        assert drain(consumer) == "ef"
        stream.move_group("g", "all")
        stream.move_group("g", "new")
        assert (drain(consumer), lag(client, topic)) == ("", 0)
        stream.move_group("g", "30-1")
        assert drain(consumer) == "ef"
        assert all(delivery.ack() for delivery in held)
        assert lag(client, topic) == 0


def test_a_thousand_held_entries_are_passed_over(client: RmqClient, topic: Topic) -> None:
    client.producer(topic).send_many(StreamMessage(f"{number}") for number in range(1_500))
    with client.consumer(topic, group="g", start="all") as consumer:
        held = consumer.poll(1_200)
        client.stream(topic).move_group("g", "all")
        with client.consumer(topic, group="g") as other:
            found = []
            while deliveries := other.poll(1_000, timeout=0.05):
                found += [delivery.text for delivery in deliveries]
                assert all(delivery.ack() for delivery in deliveries)
        assert sorted(found, key=int) == [str(number) for number in range(len(held), 1_500)]
        assert all(delivery.ack() for delivery in held)
        assert lag(client, topic) == 0


def test_a_paused_group_can_be_moved_and_the_move_is_in_the_audit(client: RmqClient, topic: Topic) -> None:
    send(client, topic, "ab")
    stream = client.stream(topic)
    with client.consumer(topic, group="g") as consumer:
        stream.pause("g")
        stream.move_group("g", "all", actor="ann")
        assert consumer.poll(timeout=0) == []
        stream.resume("g")
        assert drain(consumer) == "ab"
    lines = [(line.actor, line.detail, line.outcome) for line in stream.audit() if line.action == "move group"]
    assert lines == [("ann", "group g: all", "moved on 1 slot"), ("ann", "group g: all", "begun")]


def test_what_is_refused(client: RmqClient, topic: Topic, redis_client: Any) -> None:
    stream = client.stream(client.producer(topic).topic)
    with pytest.raises(InvalidValueError, match="no group g"):
        stream.move_group("g", "all")
    stream.add_group("g")
    for wrong in ("soon", "", None, datetime(2026, 1, 1)):
        with pytest.raises(InvalidValueError, match="start"):
            stream.move_group("g", wrong)  # pyright: ignore[reportArgumentType]
    redis_client.hset(f"group:g{{{topic.name}_0}}", "driver", "q:1")
    with pytest.raises(RmqError, match="Spark query"):
        stream.move_group("g", "all")
