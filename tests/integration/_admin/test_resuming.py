"""A consumer of a group that comes back under its old name has at once what the process before it held."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from rmq import Delivery, RmqClient, StreamMessage, Topic, TopicType
from rmq.errors import InvalidValueError
from tests.conftest import MakeTopic
from tests.integration.conftest import MakeStream
from tests.support.core import RESUME_BATCH
from tests.support.sides import Side
from tests.support.waiting import wait_until


def send(client: RmqClient, topic: Topic, number: int) -> None:
    client.producer(topic).send_many(StreamMessage(f"m{each}", slot_basis=f"k{each}") for each in range(number))


def test_what_the_process_before_held_comes_at_once_and_counted(client: RmqClient, make_stream: MakeStream) -> None:
    topic = make_stream(slots=2)
    send(client, topic, 3 * RESUME_BATCH)  # a slot has more than one call gives back
    with client.consumer(topic, group="g", start="all", name="pod-0") as before:
        held = before.poll(10_000)
        assert len(held) == 3 * RESUME_BATCH
        with client.consumer(topic, group="g", name="pod-0") as other:  # without a word it is nobody's business
            assert other.poll(10_000) == []
        with client.consumer(topic, group="g", resume_as="pod-0") as after:
            again = after.poll(10_000)
            again += after.poll(10_000)
            assert sorted(each.text for each in again) == sorted(each.text for each in held)
            assert {each.attempt for each in again} == {2}
            # the promise was wrong: the earlier one lives, and whatever it does changes nothing
            assert before.extend(held[:1]) == held[:1]
            assert held[1].ack() is False
            assert held[2].nack() is False
            assert held[3].lost is False
            assert len(before.release(held[3:])) == len(held) - 3
            assert all(each.lost for each in held)
            assert after.ack(again) == []
    stats = client.stream(topic).group("g")
    assert (stats.total("acked"), stats.total("expired")) == (3 * RESUME_BATCH, 3 * RESUME_BATCH)


def test_only_the_named_one_is_resumed_and_only_on_the_slots_asked_for(
    client: RmqClient, make_stream: MakeStream
) -> None:
    topic = make_stream(slots=2)
    send(client, topic, 40)
    mine = client.consumer(topic, group="g", start="all", name="mine")
    other = client.consumer(topic, group="g", name="other")
    held = mine.poll(20)
    kept = other.poll(100)
    assert {each.slot for each in held} == {0, 1}
    assert len(held) + len(kept) == 40
    with client.consumer(topic, [0], group="g", resume_as="mine") as after:
        again = after.poll(100)
        assert {each.text for each in again} == {each.text for each in held if each.slot == 0}
        assert after.ack(again) == []
    assert other.ack(kept) == []
    assert mine.ack(held) == [each for each in held if each.slot == 0]
    mine.close()
    other.close()


def test_a_delivery_that_was_the_last_dies(client: RmqClient, make_stream: MakeStream) -> None:
    topic = make_stream(max_retries=1)
    send(client, topic, 1)
    view = client.stream(topic)
    with client.consumer(topic, group="g", start="all", resume_as="pod-0") as first:
        assert len(first.poll(1)) == 1
    with client.consumer(topic, group="g", resume_as="pod-0") as second:
        assert [each.attempt for each in second.poll(1)] == [2]
    with client.consumer(topic, group="g", resume_as="pod-0") as third:
        assert third.poll(1) == []
    (dead,) = view.dead("g").list()
    assert (dead.attempts, dead.error_type) == (2, "LeaseExpired")


def test_what_was_deleted_meanwhile_does_not_stick(client: RmqClient, make_stream: MakeStream) -> None:
    topic = make_stream()
    send(client, topic, 2)
    view = client.stream(topic)
    with client.consumer(topic, group="g", start="all", name="pod-0") as before:
        held = before.poll(2)
    view.delete(held[0].id)  # type: ignore[attr-defined]  # pyright: ignore
    with client.consumer(topic, group="g", resume_as="pod-0") as after:
        (again,) = after.poll(10)
        assert (again.text, again.ack()) == (held[1].text, True)
    assert list(view.pending("g")) == []


def test_a_name_is_needed_and_one_only(client: RmqClient, make_stream: MakeStream, make_topic: MakeTopic) -> None:
    topic, plain = make_stream(), make_topic(TopicType.PRIORITY)
    with pytest.raises(InvalidValueError, match="cannot be combined"):
        client.consumer(topic, group="g", name="a", resume_as="b")
    for refused in ("", "(waiting)", "a b"):
        with pytest.raises(InvalidValueError, match="consumer name"):
            client.consumer(topic, group="g", resume_as=refused)
        with pytest.raises(InvalidValueError, match="consumer name"):
            client.listener(topic, group="g", resume_as=refused)
    with pytest.raises(InvalidValueError, match="only consumers of STREAM topics take resume_as"):
        client.consumer(plain, resume_as="a")
    with pytest.raises(InvalidValueError, match="only consumers of STREAM topics take resume_as"):
        client.listener(plain, resume_as="a")


def test_a_listener_resumes_and_a_living_namesake_hears_that_it_has_lost(
    client: RmqClient, side: Side, redis_url: str, make_stream: MakeStream
) -> None:
    topic = make_stream(lease=timedelta(seconds=3))
    send(client, topic, 1)
    go, begun, lost, again = threading.Event(), threading.Event(), list[str](), list[tuple[str, int]]()
    with side.client(redis_url) as before, side.client(redis_url) as after:

        @before.listener(topic, group="g", start="all", resume_as="pod-0", on_lost=lambda each: lost.append(each.text))
        def wait_long(delivery: Delivery) -> None:
            del delivery
            begun.set()
            go.wait(100)

        @after.listener(topic, group="g", resume_as="pod-0")
        def handle(delivery: Delivery) -> None:
            again.append((delivery.text, delivery.attempt))

        try:
            before.start()
            assert begun.wait(60)
            after.start()  # the promise that it is gone is wrong
            wait_until(lambda: again == [("m0", 2)])
            wait_until(lambda: lost == ["m0"])
            wait_until(lambda: client.stream(topic).group("g").total("acked") == 1)
        finally:
            go.set()
            after.stop()
            before.stop()
    assert client.stream(topic).group("g").total("acked") == 1
