"""Cancel and reschedule by content."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rmq import ControlResult, FixedTimeMessage, PriorityMessage, RangeMergeMessage, RmqClient, TopicType
from rmq.errors import FixedTimePassedError, InvalidValueError
from tests.conftest import MakeTopic
from tests.support.clients import left_in, stats_of, texts
from tests.support.core import moment_at

DONE, IN_FLIGHT, ABSENT = ControlResult.DONE, ControlResult.IN_FLIGHT, ControlResult.ABSENT


def test_cancel_at_each_stage(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    producer = client.producer(topic)
    assert client.control(topic).cancel("a") is ABSENT
    producer.send(PriorityMessage("a", 100, body="x"))
    assert client.control(topic.name).cancel(b"a") is DONE
    assert client.control(topic).cancel("a") is ABSENT
    producer.send(PriorityMessage("a", 100))
    with client.consumer(topic) as consumer:
        [delivery] = consumer.poll()
        assert client.control(topic).cancel("a") is IN_FLIGHT
        producer.send(PriorityMessage("a", 100))
        assert client.control(topic).cancel("a") is DONE  # the fresh copy; the one in flight goes on
        assert delivery.nack(delay=timedelta(hours=1))
        assert client.control(topic).cancel("a") is DONE  # waiting for its retry
    stats = stats_of(client, topic)
    assert (left_in(stats), stats.total("cancelled")) == ((0, 0, 0, 0), 3)


def test_cancel_with_a_slot_basis(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=64)
    basis = next(f"order:{i}" for i in range(99) if topic.slot_of(f"order:{i}".encode()) != topic.slot_of(b"a"))
    client.producer(topic).send(PriorityMessage("a", 100, slot_basis=basis))
    assert client.control(topic).cancel("a") is ABSENT
    assert client.control(topic).cancel("a", slot_basis=basis) is DONE


def test_reschedule_times(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE)
    assert client.control(topic).reschedule("a", due_in="0s") is ABSENT
    client.producer(topic).send(RangeMergeMessage("a", timedelta(hours=1), body="x"))
    now_ms = stats_of(client, topic).slots[0].now_ms
    assert client.control(topic).reschedule("a", fixed_time=moment_at(now_ms + 7_200_000)) is DONE
    assert client.inspect(topic).peek()[0].due_ms == now_ms + 7_200_000
    assert client.control(topic).reschedule("a", due_in=timedelta(0)) is DONE
    with client.consumer(topic) as consumer:
        [delivery] = consumer.poll(timeout=50)
        assert (delivery.body, delivery.attempt) == (b"x", 1)
        assert client.control(topic).reschedule("a", due_in="0s") is IN_FLIGHT
        assert delivery.nack(delay=timedelta(hours=1))
        assert client.control(topic.name).reschedule(b"a", due_in="0s") is DONE  # fresh again
        [again] = consumer.poll(timeout=50)
        assert again.attempt == 1
        assert again.ack()


def test_reschedule_priority(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic).send_many([PriorityMessage("a", 100), PriorityMessage("b", 200)])
    assert client.control(topic).reschedule("a", priority=300) is DONE
    with client.consumer(topic) as consumer:
        found = consumer.poll()
        assert texts(found) == ["a", "b"]
        consumer.ack(found)


def test_a_fixed_time_that_has_passed(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.FIXED_TIME)
    now_ms = stats_of(client, topic).slots[0].now_ms
    client.producer(topic).send(FixedTimeMessage("a", fixed_time_ms=now_ms + 60_000))
    with pytest.raises(FixedTimePassedError, match="is in the past"):
        client.control(topic).reschedule("a", fixed_time=moment_at(now_ms - 1))
    assert client.inspect(topic).peek()[0].due_ms == now_ms + 60_000
    client.control(topic).cancel("a")


@pytest.mark.parametrize(
    ("type", "options"),
    [
        (TopicType.PRIORITY, {}),
        (TopicType.PRIORITY, {"due_in": 5}),
        (TopicType.PRIORITY, {"fixed_time": 5}),
        (TopicType.PRIORITY, {"priority": 0}),
        (TopicType.PRIORITY, {"priority": 2**20}),
        (TopicType.PRIORITY, {"priority": 20.0}),
        (TopicType.PRIORITY, {"priority": 20, "due_in": 5}),
        (TopicType.RANGE_MERGE, {"priority": 50}),
        (TopicType.RANGE_MERGE, {"due_in": -1}),
        (TopicType.FIXED_TIME, {"fixed_time": 0}),
        (TopicType.FIXED_TIME, {"fixed_time": 5_000, "due_in": 5}),
    ],
)
def test_options_that_do_not_fit(
    client: RmqClient, make_topic: MakeTopic, type: TopicType, options: dict[str, int]
) -> None:
    with pytest.raises(InvalidValueError):
        client.control(make_topic(type)).reschedule("a", **options)  # pyright: ignore[reportArgumentType]
