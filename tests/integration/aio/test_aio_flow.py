"""Async listeners whose handlers are limited: by what their downstream bears, and by what they share."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from rmq import Adaptive, ImmediateRetry, PriorityMessage, Topic, TopicType
from rmq.aio import Delivery, RmqClient
from rmq.errors import InvalidValueError
from tests.conftest import MakeTopic
from tests.integration.aio.test_aio import in_a_loop, stats_of, until, until_settled

QUICK = Adaptive(window_s=0.05, longest_pause_s=0.4)


class Busy:
    """Counts who is in a handler."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.done: Counter[str] = Counter()

    async def work(self, name: str, seconds: float) -> None:
        self.now.update((name, "all"))
        for each in (name, "all"):
            self.most[each] = max(self.most[each], self.now[each])
        await asyncio.sleep(seconds)
        self.now.subtract((name, "all"))
        self.done[name] += 1


async def fill(client: RmqClient, topic: Topic, number: int) -> None:
    await (await client.producer(topic)).send_many(PriorityMessage(f"m{i}", 2_000) for i in range(number))


async def until_acked(client: RmqClient, topic: Topic, number: int) -> None:
    async with asyncio.timeout(60):
        while (await stats_of(client, topic)).total("acked") < number:
            await asyncio.sleep(0.02)


@in_a_loop
async def test_a_slow_downstream_is_relieved_and_gets_full_speed_back(redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    busy, takes_s = Busy(), [0.02]
    async with RmqClient(redis_url) as client:

        @client.listener(topic, concurrency=8, adaptive=QUICK)
        async def handle(delivery: Delivery) -> None:
            await busy.work("it", takes_s[0])

        await fill(client, topic, 20_000)
        await client.start()
        await until(lambda: busy.most["it"] == 8, 60)
        takes_s[0] = 0.4
        await until(lambda: busy.now["it"] <= 1, 60)
        takes_s[0], busy.most["it"] = 0.02, 0
        await until(lambda: busy.most["it"] == 8, 60)
        await client.stop()
        stats = await until_settled(client, topic)
        assert stats.total("acked") == busy.done["it"]


@pytest.mark.parametrize("healthy", [0, 500])
@in_a_loop
async def test_no_message_dies_of_a_downstream_that_fails_at_once(
    healthy: int, redis_url: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, retry=ImmediateRetry(), max_retries=3)
    running = done = refused = most_later = 0
    down = not healthy
    async with RmqClient(redis_url) as client:

        @client.listener(topic, concurrency=16, adaptive=Adaptive(window_s=0.02, longest_pause_s=0.1))
        async def handle(delivery: Delivery) -> None:
            nonlocal running, done, refused, most_later
            running += 1
            try:
                if down:
                    most_later = max(most_later, running) if refused >= 20 else 0
                    refused += 1
                    raise ConnectionError("down")
                await asyncio.sleep(0.001)
                done += 1
            finally:
                running -= 1

        await fill(client, topic, 2_000)
        await client.start()
        await until(lambda: done >= healthy, 120)
        down = True
        await until(lambda: refused >= 35, 120)
        down = False
        assert most_later <= 1
        await until_acked(client, topic, 2_000)
        stats = await stats_of(client, topic)
        assert (stats.dead, stats.total("buried"), stats.unaccounted) == (0, 0, 0)
        assert refused < 150


@in_a_loop
async def test_a_topic_that_hangs_does_not_starve_its_neighbour(redis_url: str, make_topic: MakeTopic) -> None:
    slow, quick = make_topic(TopicType.PRIORITY), make_topic(TopicType.PRIORITY)
    busy, hang = Busy(), asyncio.Event()
    async with RmqClient(redis_url) as client:

        @client.listener(slow, concurrency=8)
        async def handle_slow(delivery: Delivery) -> None:
            await busy.work("slow", 0)
            await hang.wait()

        @client.listener(quick, concurrency=8)
        async def handle_quick(delivery: Delivery) -> None:
            await busy.work("quick", 0.001)

        await fill(client, slow, 20)
        await client.start(handlers=4)
        await until(lambda: busy.done["slow"] == 3, 60)
        await fill(client, quick, 200)
        await until(lambda: busy.done["quick"] == 200, 60)
        assert busy.done["slow"] == 3
        assert (await stats_of(client, slow)).in_flight == 3  # no more is claimed than may begin
        hang.set()
        await until_acked(client, slow, 20)


@pytest.mark.parametrize("batch", [None, 7])
@in_a_loop
async def test_handlers_of_all_listeners_together_are_bounded(
    batch: int | None, redis_url: str, make_topic: MakeTopic
) -> None:
    topics = [make_topic(TopicType.PRIORITY, slots=2) for _ in range(3)]
    busy = Busy()
    async with RmqClient(redis_url) as client:
        for topic in topics:

            async def one(delivery: Delivery) -> None:
                await busy.work(delivery.topic.name, 0.002)

            async def many(deliveries: list[Delivery]) -> None:
                await busy.work(deliveries[0].topic.name, 0.002)
                busy.done[deliveries[0].topic.name] += len(deliveries) - 1

            client.listener(topic, concurrency=5, weight=2, batch=batch)(one if batch is None else many)
            await fill(client, topic, 100)
        await client.start(handlers=4)
        await until(lambda: sum(busy.done[topic.name] for topic in topics) == 300, 60)
        assert busy.most["all"] <= 4


@in_a_loop
async def test_an_idle_listener_with_a_limit_asks_redis_as_seldom_as_others(
    redis_url: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    async with RmqClient(redis_url) as client:

        @client.listener(topic, concurrency=8, adaptive=QUICK)
        async def handle(delivery: Delivery) -> None: ...

        await fill(client, topic, 10)
        await client.start()
        await until_acked(client, topic, 10)
        assert client._opened is not None
        runner = client._opened.plain._listeners.runners[0]
        rounds, round_ = [0], runner._threads[0].round

        def counted() -> bool:
            rounds[0] += 1
            return round_()

        runner._threads[0].round = counted
        began_s = time.monotonic()
        await until(lambda: time.monotonic() - began_s > 2)
        assert rounds[0] < 20 * (time.monotonic() - began_s)
        call_semaphore = runner._permits
        assert call_semaphore is not None
        assert call_semaphore.share.running == 0


@in_a_loop
async def test_a_number_of_handlers_out_of_range_is_refused(redis_url: str) -> None:
    async with RmqClient(redis_url) as client:
        with pytest.raises(InvalidValueError, match="weight"):
            client.listener(Topic("t", TopicType.PRIORITY), weight=0)

        @client.listener(Topic("flow-t", TopicType.PRIORITY))
        async def handle(delivery: Delivery) -> None: ...

        with pytest.raises(InvalidValueError, match="handlers"):
            await client.start(handlers=0)
