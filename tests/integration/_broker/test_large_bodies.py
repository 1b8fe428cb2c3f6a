"""Large bodies: delivered in rounds that a server and a process can bear, and each message once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmq import Delivery, PriorityMessage, RmqClient, StreamMessage, TopicType
from tests.conftest import MakeTopic
from tests.support.clients import stats_of
from tests.support.waiting import wait_until

MIB = 1_048_576


@pytest.mark.parametrize("slots", [1, 4])
def test_a_poll_returns_what_fits_and_all_slots_have_their_turn(
    client: RmqClient, make_topic: MakeTopic, slots: int
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=slots)
    body = b"x" * MIB
    client.producer(topic).send_many(PriorityMessage(f"m{number}", 1_000 + number, body=body) for number in range(40))
    seen: list[str] = []
    order: list[int] = []
    with client.consumer(topic) as consumer:
        while len(seen) < 40:
            found = consumer.poll(10_000, timeout=50)
            assert 0 < len(found) <= 20
            assert {delivery.attempt for delivery in found} == {1}
            seen += [delivery.text for delivery in found]
            order += [delivery.slot for delivery in found]
            assert consumer.ack(found) == []
    assert sorted(seen) == sorted(f"m{number}" for number in range(40))
    assert set(order[:16]) == set(range(slots)), "the first slot does not keep the others waiting"


def test_a_listener_works_off_large_bodies_with_one_delivery_each(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2)
    attempts: list[int] = []

    @client.listener(topic)
    def work(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)

    body = b"x" * MIB
    client.producer(topic).send_many(PriorityMessage(f"m{number}", 1_000, body=body) for number in range(30))
    client.start(threads=2)
    try:
        wait_until(lambda: stats_of(client, topic).total("acked") == 30, 60)
    finally:
        client.stop()
    assert attempts == [1] * 30


def test_a_stream_is_read_and_shown_in_parts(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.STREAM, checked=False)
    body = b"x" * MIB
    with client.consumer(topic, group="g", start="all") as consumer:
        client.producer(topic).send_many(StreamMessage(f"m{number}", body=body) for number in range(30))
        seen: list[str] = []
        while len(seen) < 30:
            found = consumer.poll(10_000, timeout=50)
            assert 0 < len(found) <= 24
            seen += [delivery.text for delivery in found]
            consumer.ack(found)
    assert seen == [f"m{number}" for number in range(30)]
    assert len(list(client.stream(topic).range())) == 30


def test_peek_fills_its_page(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    body = b"x" * MIB
    client.producer(topic).send_many(PriorityMessage(f"m{number}", 1_000, body=body) for number in range(10))
    assert len(client.inspect(topic).peek(limit=9)) == 9
    assert len(list(client.inspect(topic).pages(0, "store"))) == 10


def test_a_sender_holds_back_no_more_than_fits(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4_096)
    body, bases = b"x" * 900_000, [b"%d" % number for number in range(120)]
    sent: list[int] = []

    def messages() -> Iterator[PriorityMessage]:
        for number, basis in enumerate(bases):  # each slot's batch stays below its own bound
            if number == 110:
                sent.append(redis_size())
            yield PriorityMessage(f"m{number}", 1_000, slot_basis=basis, body=body)

    def redis_size() -> int:
        return sum(
            size.backlog for size in client.inspect(topic).stats([topic.slot_of(basis) for basis in bases]).slots
        )

    assert client.producer(topic).send_many(messages()).new == 120
    assert sent[0] > 40
