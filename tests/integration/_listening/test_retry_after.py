"""A handler that holds its topic back: one delivery, batches, columns, streams; on threads and in an event loop."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from rmq import (
    Adaptive,
    Delivery,
    DeliveryColumns,
    ListenerInfo,
    PriorityMessage,
    RetryAfterError,
    RmqClient,
    StreamMessage,
    Topic,
    TopicType,
)
from rmq.errors import InvalidValueError
from tests.conftest import MakeTopic
from tests.support.sides import Side
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("frequent_reports")

KINDS: dict[str, dict[str, Any]] = {
    "one": {},
    "batch": {"batch": 3},
    "columns": {"batch": 3, "columns": True},
    "adaptive": {"adaptive": Adaptive()},
}


@pytest.mark.parametrize("delay", [30, 30.0, None, "soon", "", "25h", timedelta(seconds=-1), timedelta(days=2)])
def test_a_delay_is_a_duration_of_up_to_a_day(delay: Any) -> None:
    with pytest.raises(InvalidValueError, match="delay is "):
        RetryAfterError(delay)


def test_it_says_how_long_and_why() -> None:
    assert [RetryAfterError(delay).delay_ms for delay in ("1m30s", "0", timedelta(days=1))] == [90_000, 0, 86_400_000]
    assert str(RetryAfterError("30s", "429")) == "429"
    assert str(RetryAfterError("30s")) == "retry after 30 s"


def info_of(client: RmqClient, topic: Topic) -> ListenerInfo | None:
    found = (each for worker in client.workers() for each in worker.listeners if each.topic == topic.name)
    return next(found, None)


@pytest.mark.parametrize("kind", KINDS)
def test_its_messages_go_to_other_processes_as_they_were_and_no_other_topic_waits(
    kind: str, redis_url: str, side: Side, make_topic: MakeTopic
) -> None:
    topic, other = make_topic(TopicType.PRIORITY, slots=2), make_topic(TopicType.PRIORITY)
    calls, seen, attempts = list[str](), list[str](), list[int]()
    with side.client(redis_url) as client, RmqClient(redis_url) as second:

        def handle(given: Any) -> None:
            calls.append("call")
            raise RetryAfterError("1h", "429 Too Many Requests")

        client.listener(topic, **KINDS[kind])(handle)

        @client.listener(other)
        def go_on(delivery: Delivery) -> None:
            seen.append(delivery.text)

        client.producer(topic).send_many(PriorityMessage(f"m{number}", 5) for number in range(20))
        client.start()
        stats = client.inspect(topic).stats
        wait_until(lambda: calls and (stats().backlog, stats().in_flight, stats().waiting) == (20, 0, 0))
        info = wait_until(lambda: (each := info_of(client, topic)) is not None and each.paused_ms > 0 and each)
        assert isinstance(info, ListenerInfo)
        assert (info.allowed, info.handled, info.failed) == (0, 0, 0)
        client.producer(other).send(PriorityMessage("elsewhere", 5))
        wait_until(lambda: seen == ["elsewhere"])
        client.producer(topic).send(PriorityMessage("later", 5))

        @second.listener(topic)
        def take(delivery: Delivery) -> None:
            attempts.append(delivery.attempt)

        second.start()
        wait_until(lambda: stats().total("acked") == 21)
        assert attempts == [1] * 21
        assert len(calls) == 1
        second.stop()
        client.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_after_the_time_and_what_was_settled_before_stays_so(
    kind: str, redis_url: str, side: Side, make_topic: MakeTopic
) -> None:
    topic, calls = make_topic(TopicType.PRIORITY), list[int]()
    with side.client(redis_url) as client:

        def handle(given: Any) -> None:
            calls.append(1)
            if len(calls) == 1:
                if kind == "batch":
                    given[0].ack()
                elif type(given) is DeliveryColumns:  # its acks are awaited in an event loop
                    given.ack([0])
                raise RetryAfterError(timedelta(milliseconds=300))

        client.listener(topic, threads=2, **KINDS[kind])(handle)
        client.producer(topic).send_many(PriorityMessage(f"m{number}", 5) for number in range(9))
        client.start()
        stats = client.inspect(topic).stats
        wait_until(lambda: stats().total("acked") == 9)
        assert (stats().total("retried"), stats().total("buried")) == (0, 0)
        client.stop()


def test_a_group_of_a_stream_gets_its_entries_again(redis_url: str, side: Side, make_topic: MakeTopic) -> None:
    topic, seen, held = make_topic(TopicType.STREAM, slots=1, checked=False), list[str](), threading.Event()
    with side.client(redis_url) as client:

        @client.listener(topic, group="g", start="all")
        def handle(delivery: Delivery) -> None:
            if delivery.text == "m3" and not held.is_set():
                held.set()
                raise RetryAfterError("300ms")
            seen.append(delivery.text)

        client.producer(topic).send_many(StreamMessage(f"m{number}") for number in range(8))
        client.start()
        wait_until(lambda: len(seen) == 8)
        assert sorted(seen) == [f"m{number}" for number in range(8)]  # without owners in any order
        client.stop()
