"""Numbers, times to wait and ids that cannot be: refused in plain words, or taken for what they come to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from rmq import DelayedQueue, PriorityMessage, RmqClient, StreamMessage, TopicType
from rmq.errors import InvalidValueError
from tests.conftest import MakeTopic
from tests.support.sides import SIDES, Side

pytestmark = pytest.mark.parametrize("side", SIDES, indirect=True)

NO_TIMES: list[Any] = [math.nan, -math.inf, -1, -0.001, -(10**400), timedelta.min, True, "5", None]
FOR_EVER: list[Any] = [math.inf, timedelta.max, 10**30, 10**400, 1e300]
NO_BOUNDS: list[Any] = [math.inf, math.nan, -1, -(10**400), 2.5, True, "5", timedelta(1)]
NO_IDS: list[Any] = [
    "\u0661",
    "1-\u0662",
    "1-",
    "-1",
    "",
    "1-2-3",
    f"{2**64}",
    f"1-{2**64}",
    "9" * 20,
    " 1",
    "1\n",
    1.5,
]


def gone_through(entries: Iterator[Any]) -> list[Any]:
    return list(entries)


def test_times_to_wait(client: RmqClient, side: Side, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    producer = client.producer(topic)
    with client.consumer(topic) as consumer, side.queue(client, make_topic(TopicType.FIXED_TIME).name) as queue:
        for time in NO_TIMES:
            waits: list[Callable[[Any], object]] = [queue.poll, lambda time: consumer.poll(1, time)]
            for wait in waits:
                if time is None and wait is waits[0]:
                    continue  # for ever
                with pytest.raises(InvalidValueError, match="timeout"):
                    wait(time)
        for number, time in enumerate(FOR_EVER):
            producer.send(PriorityMessage(f"m{number}", 100))
            assert consumer.ack(consumer.poll(1, time)) == []
            queue.offer(str(number), "0s")
            assert queue.take(time) == str(number).encode()


def test_a_wait_for_ever_for_what_comes_later(client: RmqClient, side: Side, make_topic: MakeTopic) -> None:
    queue: DelayedQueue
    with side.queue(client, make_topic(TopicType.FIXED_TIME).name) as queue:
        for time in FOR_EVER:
            queue.offer("a", "50ms")
            with queue.taking(time) as value:
                assert value == b"a"


def test_a_client_and_its_stop(redis_url: str, side: Side, make_topic: MakeTopic) -> None:
    for option in ("timeout_s", "deadline_s"):
        for time in [*NO_TIMES, *FOR_EVER]:
            with pytest.raises(InvalidValueError, match=option):
                side.client(redis_url, **{option: time})
    topic = make_topic(TopicType.PRIORITY)
    with side.client(redis_url) as client:
        client.listener(topic)(print)
        client.start()
        with pytest.raises(InvalidValueError, match="drain_s"):
            client.stop(math.nan)
        assert client.stop(math.inf) == []


def test_bounds(client: RmqClient, make_topic: MakeTopic) -> None:
    topic, stream = make_topic(TopicType.PRIORITY), make_topic(TopicType.STREAM, checked=False)
    client.producer(topic)
    client.producer(stream).send(StreamMessage("a"))
    view = client.stream(stream)
    view.add_group("g", "all")
    dead, group_dead, look = client.dead(topic), view.dead("g"), client.inspect(topic)
    bounded: list[Callable[[Any], object]] = [
        lambda n: gone_through(dead.list(limit=n)), lambda n: dead.redrive(limit=n), lambda n: dead.purge(limit=n),
        lambda n: gone_through(group_dead.list(limit=n)), lambda n: group_dead.redrive(limit=n),
        lambda n: group_dead.purge(limit=n), lambda n: gone_through(view.range(limit=n)),
        lambda n: gone_through(view.unread("g", limit=n)), lambda n: gone_through(look.pages(0, "store", start=n)),
    ]  # fmt: skip
    for bound in bounded:
        for number in NO_BOUNDS:
            with pytest.raises(InvalidValueError, match="whole number of 0 or more"):
                bound(number)
        for number in (0, 1, 2**64):
            bound(number)
    for number in [*NO_BOUNDS, 0, 2**64]:
        with pytest.raises(InvalidValueError, match="whole number from 1"):
            gone_through(look.pages(0, "store", number))
        with pytest.raises(InvalidValueError, match="whole number from 1"):
            view.audit(number)
    for rate in (math.inf, math.nan, 0, -1, 10**400, True, "5"):
        with pytest.raises(InvalidValueError, match="per_second"):
            dead.redrive(per_second=rate)  # pyright: ignore[reportArgumentType]
    assert dead.redrive(per_second=1e-300).redriven == 0
    for idle in (math.nan, -1, True):
        with pytest.raises(InvalidValueError, match="idle_s"):
            view.remove_gone_consumers("g", idle)
    assert view.remove_gone_consumers("g", math.inf) == []


def test_ids(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.STREAM, checked=False)
    client.producer(topic).send(StreamMessage("a"))
    view = client.stream(topic)
    asked: list[Callable[[Any], object]] = [
        view.get, view.delete, lambda id: gone_through(view.range(id)), lambda id: gone_through(view.range(None, id)),
        lambda id: view.tail(id, 0.1), lambda id: view.add_group("h", id),
        lambda id: client.consumer(topic, group="h", start=id),
        lambda id: client.listener(topic, group="h", start=id),
    ]  # fmt: skip
    for ask in asked:
        for wrong in NO_IDS:
            if wrong == 1.5 and ask in (asked[0], *asked[2:5]):
                continue  # a time
            with pytest.raises(InvalidValueError):
                ask(wrong)
    assert view.get(f"{2**64 - 1}-{2**64 - 1}") is None
    assert view.delete(f"{2**64 - 1}") == 0
