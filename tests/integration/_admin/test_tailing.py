"""One tail over several stream topics: all that arrives, each entry once, and nothing is left open behind it."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable

import pytest
import redis

from rmq import RmqClient, StreamEntry, StreamMessage, Topic, TopicType, aio, tail_all
from rmq.errors import InvalidValueError
from tests.conftest import MakeTopic
from tests.support.waiting import wait_until

Tail = Callable[[str, list[Topic], object, float], list[StreamEntry]]


@pytest.fixture
def topics(make_topic: MakeTopic, client: RmqClient) -> list[Topic]:
    return [client.producer(make_topic(TopicType.STREAM, checked=False, slots=slots)).topic for slots in (1, 2, 4)]


def send(client: RmqClient, topic: Topic, first: int, number: int) -> None:
    client.producer(topic).send_many(StreamMessage(f"{topic.name} {each}") for each in range(first, first + number))


def tailed(url: str, topics: list[Topic], start: object, timeout: float) -> list[StreamEntry]:
    with RmqClient(url) as client:
        return list(tail_all([client.stream(topic.name) for topic in topics], start, timeout))  # pyright: ignore


def tailed_by_asyncio(url: str, topics: list[Topic], start: object, timeout: float) -> list[StreamEntry]:
    async def tail() -> list[StreamEntry]:
        async with aio.RmqClient(url) as client:
            streams = [await client.stream(topic.name) for topic in topics]
            return [entry async for entry in await aio.tail_all(streams, start, timeout)]  # pyright: ignore

    return asyncio.run(tail())


both = pytest.mark.parametrize("tail", [tailed, tailed_by_asyncio], ids=["threads", "asyncio"])


def check(found: list[StreamEntry], topics: list[Topic], number: int) -> None:
    """Check that each entry came once, and those of a slot in their order."""
    assert sorted(each.text for each in found) == sorted(f"{topic.name} {n}" for topic in topics for n in range(number))
    places: dict[tuple[str, int], list[tuple[int, ...]]] = defaultdict(list)
    for entry in found:
        places[entry.topic, entry.slot].append(tuple(map(int, entry.id.split("-"))))
    assert all(ids == sorted(ids) for ids in places.values())


@both
def test_what_is_there_comes_once_and_in_order(
    client: RmqClient, topics: list[Topic], tail: Tail, redis_url: str
) -> None:
    for topic in topics:
        send(client, topic, 0, 1_200)  # several pages
    found = tail(redis_url, topics, 1, 0.0)
    check(found, topics, 1_200)
    assert [each.text for each in tail(redis_url, topics[:1], found[-1].time_ms + 60_000, 0.0)] == []


def test_a_look_is_bounded_and_all_comes(
    client: RmqClient, topics: list[Topic], redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq._admin.stream_topic.TRIP", 2)
    monkeypatch.setattr("rmq._admin.stream_topic.LOOK_BYTES", 100)
    for topic in topics:
        send(client, topic, 0, 1_200)
    check(tailed(redis_url, topics, 1, 0.0), topics, 1_200)


@both
def test_what_arrives_meanwhile_comes(client: RmqClient, topics: list[Topic], tail: Tail, redis_url: str) -> None:
    found: list[StreamEntry] = []
    send(client, topics[0], 0, 1)
    follow = threading.Thread(target=lambda: found.extend(tail(redis_url, topics, 1, 5.0)))
    follow.start()
    for first in range(0, 50, 10):
        for topic in topics:
            number = 1 if topic is topics[0] and not first else 0
            send(client, topic, first + number, 10 - number)
    follow.join()
    check(found, topics, 50)


def test_from_now_on(client: RmqClient, topics: list[Topic]) -> None:
    send(client, topics[0], 0, 10)
    follow = tail_all((client.stream(topic) for topic in topics), timeout=60)
    send(client, topics[1], 10, 1)
    assert next(follow).text == f"{topics[1].name} 10"
    send(client, topics[2], 11, 1)
    assert next(follow).text == f"{topics[2].name} 11"
    follow.close()  # pyright: ignore[reportAttributeAccessIssue]


def subscribers(redis_client: redis.Redis) -> int:
    return len(redis_client.client_list(_type="pubsub"))


def test_all_topics_share_a_connection_that_closes_with_the_tail(
    client: RmqClient, topics: list[Topic], redis_client: redis.Redis
) -> None:
    before = subscribers(redis_client)
    send(client, topics[0], 0, 1)
    with RmqClient(client.url) as other:
        follow = tail_all([other.stream(topic) for topic in topics], start=1)
        next(follow)
        wait_until(lambda: subscribers(redis_client) == before + 1)
        follow.close()  # pyright: ignore[reportAttributeAccessIssue]
        wait_until(lambda: subscribers(redis_client) == before)

    async def left() -> None:
        async with aio.RmqClient(client.url) as other:
            streams = [await other.stream(topic.name) for topic in topics]
            follow = await aio.tail_all(streams, 1)
            await anext(follow)
            task = asyncio.ensure_future(anext(follow))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await follow.aclose()  # pyright: ignore[reportAttributeAccessIssue]

    asyncio.run(left())
    wait_until(lambda: subscribers(redis_client) == before)


@pytest.mark.parametrize("make", [list, iter], ids=["list", "iterator"])
def test_what_cannot_be_followed_is_refused(
    client: RmqClient, topics: list[Topic], redis_url: str, make: Callable[[Iterable[object]], Iterable[object]]
) -> None:
    with RmqClient(redis_url) as other:
        wrong: list[tuple[list[object], str]] = [
            ([], "streams is empty"),
            ([topics[0]], "all must be results of `RmqClient.stream`"),
            ([client.stream(topics[0]), other.stream(topics[1])], "different clients"),
        ]
        for streams, says in wrong:
            with pytest.raises(InvalidValueError, match=says):
                tail_all(make(streams))  # pyright: ignore[reportArgumentType]
    for start in ("soon", "new", -1):
        with pytest.raises(InvalidValueError, match="start"):
            tail_all([client.stream(topics[0])], start)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidValueError, match="timeout"):
        tail_all([client.stream(topics[0])], timeout=-1)

    async def refused() -> None:
        for streams in ([], [client.stream(topics[0])]):
            with pytest.raises(InvalidValueError, match="streams"):
                await aio.tail_all(streams)  # pyright: ignore[reportArgumentType]

    asyncio.run(refused())


def test_one_that_is_named_twice_is_followed_once(client: RmqClient, topics: list[Topic]) -> None:
    send(client, topics[0], 0, 3)
    view = client.stream(topics[0])
    assert len(list(tail_all([view, view], 1, 0))) == 3
    assert len(list(tail_all([view, client.stream(topics[0].name)], 1, 0))) == 3
