"""What only the asyncio side has: cancellation, many handlers at once, event loops. The rest runs over both sides."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from rmq import (
    Adaptive,
    ImmediateRetry,
    Observer,
    PriorityMessage,
    RangeMergeMessage,
    SendResult,
    StreamMessage,
    Topic,
    TopicStats,
    TopicType,
)
from rmq._io.wire import Wire
from rmq.aio import DelayedQueue, Delivery, DeliveryColumns, RmqClient
from rmq.aio.backend import async_wire_factory, call_semaphore
from rmq.aio.greenlets import TaskGroup
from rmq.errors import ClientClosedError, InvalidValueError, RmqError, TopicMismatchError
from tests.conftest import MakeTopic
from tests.support.clients import limits_of
from tests.support.core import MOST_BATCHED, MOST_PREFETCHED, PrefetchSize
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

Test = Callable[..., Coroutine[Any, Any, None]]


def in_a_loop(test: Test) -> Callable[..., None]:
    """Run an async test in an event loop of its own, which has to be left without tasks."""

    @functools.wraps(test)
    def run(*args: Any, **options: Any) -> None:
        async def alone() -> None:
            await test(*args, **options)
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            assert left == []

        asyncio.run(alone())

    return run


async def until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


async def until_in_flight(client: RmqClient, topic: Topic, most: int, begun: Callable[[], object]) -> None:
    """Wait until no more than `most` messages of a topic are in flight, from when `begun` holds."""
    view = await client.inspect(topic)
    async with asyncio.timeout(60):
        while not begun() or (await view.stats()).in_flight > most:
            await asyncio.sleep(0.05)


async def stats_of(client: RmqClient, topic: Topic) -> TopicStats:
    stats = await (await client.inspect(topic)).stats()
    assert stats.unaccounted == 0, stats
    return stats


async def until_settled(client: RmqClient, topic: Topic) -> TopicStats:
    """Wait until nothing is in flight, long before a lease ends."""
    view = await client.inspect(topic)
    async with asyncio.timeout(30):
        while (stats := await view.stats()).in_flight:
            await asyncio.sleep(0.01)
    assert stats.unaccounted == 0, stats
    return stats


# --- cancellation: pitfall 4


def test_a_cancellation_counts_in_whichever_turn_of_the_loop_a_connection_is_being_made(
    redis_server: RedisServer,
) -> None:
    """`asyncio.run` cancels every task once and waits for all: one that goes on waits for ever."""

    def connecting(wires: list[Wire]) -> None:
        wires.append(make())
        wires[0].connect()

    async def cancelled_after(turns: int) -> bool:
        """Cancel all that runs after so many turns; return whether the connection was made before."""
        wires: list[Wire] = []
        task = asyncio.create_task(TaskGroup(call_semaphore).run(connecting, wires))
        for _ in range(turns):
            await asyncio.sleep(0)
        made = task.done()
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for each in running:
            each.cancel()
        await asyncio.wait({task})
        for wire in wires:
            wire.close()
        assert task.cancelled() or made, f"cancelled after {turns} turns it went on"
        return made

    make = async_wire_factory(redis_server.url, 5.0)
    turns = 0
    while not asyncio.run(cancelled_after(turns)):
        turns += 1
    assert turns > 5


@in_a_loop
async def test_a_cancelled_call_leaves_no_reply_behind(redis_server: RedisServer, make_topic: MakeTopic) -> None:
    topics = [make_topic(TopicType.PRIORITY, slots=slots) for slots in (1, 2, 4)]
    with Proxy(redis_server.port) as proxy:
        async with RmqClient(proxy.url) as client:
            for topic in topics:
                await client.producer(topic)
            proxy.delay_replies(0.02)
            for number in range(60):
                topic = topics[number % 3]
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(random.Random(number).uniform(0.0, 0.04)):
                        assert await client.topic(topic.name) == topic
            assert [await client.topic(topic.name) for topic in topics] == topics


@in_a_loop
async def test_what_a_cancelled_poll_had_claimed_goes_back_at_once(
    redis_server: RedisServer, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2)
    with Proxy(redis_server.port) as proxy:
        async with RmqClient(proxy.url) as client:
            await (await client.producer(topic)).send_many(PriorityMessage(f"m{i}", 100) for i in range(20))
            async with await client.consumer(topic) as consumer:
                proxy.delay_replies(0.3, command="EVALSHA")
                cancelled = 0
                for wait_s in (0.1, 0.4, 0.5):  # while it looks, while it claims, while it claims once more
                    try:
                        found = await asyncio.wait_for(consumer.poll(100, timeout=20), wait_s)
                    except TimeoutError:
                        cancelled += 1
                    else:  # where the scripts are loaded and nothing has to be looked for, one claim is enough
                        await consumer.release(found)
                assert cancelled >= 1
                proxy.normal()
                assert (await until_settled(client, topic)).backlog == 20
                found = await consumer.poll(100, timeout=20)
                assert (len(found), {delivery.attempt for delivery in found}) == (20, {1})
                assert await consumer.ack(found) == []


@in_a_loop
async def test_a_cancelled_ack_is_carried_out(redis_server: RedisServer, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    with Proxy(redis_server.port) as proxy:
        async with RmqClient(proxy.url) as client:
            await (await client.producer(topic)).send_many(PriorityMessage(c, 100) for c in "abc")
            async with await client.consumer(topic) as consumer:
                one, *others = await consumer.poll(10, timeout=50)
                proxy.delay_replies(0.2, command="EVALSHA")
                for call in (one.ack(), consumer.ack(others)):
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(call, 0.05)
            proxy.normal()
            assert (await until_settled(client, topic)).total("acked") == 3


@in_a_loop
async def test_an_idle_poll_ends_when_it_is_cancelled(redis_url: str, make_topic: MakeTopic) -> None:
    async with RmqClient(redis_url) as client:
        async with await client.consumer(make_topic(TopicType.PRIORITY)) as consumer:
            for _ in range(3):
                polling = asyncio.create_task(consumer.poll(timeout=3_600))
                await asyncio.sleep(0.05)
                polling.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await polling
            assert await consumer.poll(timeout=0.01) == []  # it need not wait for those


@in_a_loop
async def test_a_close_ends_what_waits_for_news(redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2)
    client = RmqClient(redis_url)
    consumer = await client.consumer(topic)
    queue = await DelayedQueue(client, make_topic(TopicType.FIXED_TIME).name).open()
    waiting = [
        asyncio.create_task(work) for work in (consumer.poll(timeout=600), consumer.poll(timeout=600), queue.take())
    ]
    await asyncio.sleep(0.1)
    async with asyncio.timeout(60):  # of 600
        await client.close()
        ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(end) for end in ends] == [ClientClosedError] * 3


@in_a_loop
async def test_a_cancelled_take_loses_no_value(redis_server: RedisServer, make_topic: MakeTopic) -> None:
    name = make_topic(TopicType.FIXED_TIME).name
    with Proxy(redis_server.port) as proxy:
        async with RmqClient(proxy.url) as client, DelayedQueue(client, name) as queue:
            values = {str(number).encode() for number in range(30)}
            for value in values:
                await queue.offer(value, "0s")
            proxy.delay_replies(0.0, 0.05, seed=1, command="EVALSHA")
            chance, taken = random.Random(2), Counter[bytes]()
            for _ in range(60):
                taking = queue.taking()
                with contextlib.suppress(TimeoutError):
                    if chance.random() < 0.5:
                        taken[await asyncio.wait_for(queue.take(), chance.uniform(0.0, 0.1))] += 1
                    else:
                        value = await asyncio.wait_for(taking.__aenter__(), chance.uniform(0.0, 0.1))
                        await taking.__aexit__(None, None, None)
                        taken[value] += 1
            proxy.normal()
            async with asyncio.timeout(60):
                while taken.keys() < values:
                    taken[await queue.take()] += 1
            assert taken.keys() == values


class Traffic:
    """Tasks that send and consume through a slow line, each of their calls cancelled at a random moment."""

    def __init__(self, topic: Topic, seed: int) -> None:
        self.topic = topic
        self.group = "g" if topic.type is TopicType.STREAM else None
        self.stored: set[str] = set()
        self.handled: Counter[str] = Counter()
        self._chance = random.Random(seed)
        self._ended = False

    async def run(self, client: RmqClient, seconds: float = 0.2) -> None:
        await client.consumer(self.topic, group=self.group, start="all")
        consumers = [asyncio.create_task(self._consume(client)) for _ in range(4)]
        await asyncio.gather(*(self._send(client, number) for number in range(4)))
        await asyncio.sleep(seconds)
        self._ended = True
        await asyncio.gather(*consumers)

    async def consume_rest(self, client: RmqClient) -> None:
        async with await client.consumer(self.topic, group=self.group) as consumer:
            while found := await consumer.poll(1_000, timeout=1.0):
                self.handled.update(delivery.text for delivery in found)
                assert await consumer.ack(found) == []

    async def _send(self, client: RmqClient, number: int) -> None:
        producer = await client.producer(self.topic)
        for part in itertools.count():
            if part >= 40 and self.stored:  # on a busy machine each of forty may have been cancelled
                return
            texts = [f"{number}:{part}:{i}" for i in range(self._chance.choice((1, 5, 50)))]
            if (result := await self._soon(producer.send_many(map(self._message, texts)))) is not None:
                assert result.accepted == len(texts)  # this reply, and no other
                self.stored.update(texts)

    async def _consume(self, client: RmqClient) -> None:
        async with await client.consumer(self.topic, group=self.group) as consumer:
            while not self._ended:
                most = self._chance.choice((1, 10, 100))
                for delivery in await self._soon(consumer.poll(most, timeout=0.02)) or []:
                    self.handled[delivery.text] += 1
                    await self._soon(delivery.ack() if self._chance.random() < 0.8 else delivery.release())

    async def _soon(self, call: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await asyncio.wait_for(call, self._chance.uniform(0.0, 0.03))
        except TimeoutError:
            return None

    def _message(self, text: str) -> Any:
        return StreamMessage(text) if self.group else PriorityMessage(text, 100)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("type", [TopicType.PRIORITY, TopicType.STREAM])
@in_a_loop
async def test_tasks_cancelled_at_random_lose_nothing(
    seed: int, type: TopicType, redis_server: RedisServer, make_topic: MakeTopic
) -> None:
    topic = make_topic(type, slots=4, checked=type is not TopicType.STREAM)
    traffic = Traffic(topic, seed)
    with Proxy(redis_server.port) as proxy:
        async with RmqClient(proxy.url) as client:
            proxy.delay_replies(0.0, 0.02, seed=seed, command="EVALSHA")
            await traffic.run(client)
            proxy.normal()
            await traffic.consume_rest(client)
            if traffic.group is None:
                stats = await stats_of(client, topic)
                assert (stats.backlog, stats.in_flight, stats.dead) == (0, 0, 0)
            else:
                group = await (await client.stream(topic)).group(traffic.group)
                assert (group.unaccounted, group.pending, group.lag) == (0, 0, 0)
    assert traffic.stored
    assert traffic.stored <= traffic.handled.keys()


# --- listeners


@in_a_loop
async def test_a_thousand_handlers_wait_at_once(redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    async with RmqClient(redis_url) as client:
        together, waiting, done = asyncio.Event(), set[str](), Counter[str]()

        @client.listener(topic, concurrency=1_000)
        async def handle(delivery: Delivery) -> None:
            waiting.add(delivery.text)
            if len(waiting) == 1_000:
                together.set()
            await asyncio.wait_for(together.wait(), 60)
            done[delivery.text] += 1

        await client.start()
        await (await client.producer(topic)).send_many(PriorityMessage(f"m{i}", 100) for i in range(1_500))
        await until(lambda: len(done) == 1_500, 60)
        assert await client.stop() == []
        assert set(done.values()) == {1}
        stats = await stats_of(client, topic)
        assert (stats.total("acked"), stats.total("delivered")) == (1_500, 1_500)


@in_a_loop
async def test_a_thousand_calls_at_once_share_some_connections(
    redis_server: RedisServer, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    with Proxy(redis_server.port) as proxy:
        async with RmqClient(proxy.url) as client:
            producer, consumer = await client.producer(topic), await client.consumer(topic)
            await asyncio.gather(*(producer.send(PriorityMessage(f"m{i}", 100)) for i in range(1_000)))
            got: list[Delivery] = []
            async with asyncio.timeout(30):
                while len(got) < 1_000:
                    got += await consumer.poll(1_000, timeout=1.0)
            assert all(await asyncio.gather(*(delivery.ack() for delivery in got)))
            assert (await stats_of(client, topic)).total("acked") == 1_000
        assert proxy.accepted <= 70


@in_a_loop
async def test_many_calls_of_many_messages_at_once_share_some_connections(
    redis_server: RedisServer, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    with Proxy(redis_server.port) as proxy:
        async with RmqClient(proxy.url) as client:

            async def send(call: int) -> None:
                producer = await client.producer(topic)  # one for each call, as in a handler of requests
                if call % 2:
                    await producer.send_columns([f"m{call}-{i}" for i in range(20)], priorities=1)
                else:
                    await producer.send_many(PriorityMessage(f"m{call}-{i}", 100) for i in range(20))

            await asyncio.gather(*(send(call) for call in range(500)))
            assert (await stats_of(client, topic)).backlog == 10_000
        assert proxy.accepted <= 140


@in_a_loop
async def test_many_offers_at_once_share_some_connections(redis_server: RedisServer, topic_name: str) -> None:
    with Proxy(redis_server.port) as proxy:
        async with RmqClient(proxy.url) as client, DelayedQueue(client, topic_name) as queue:
            await asyncio.gather(*(queue.offer(f"v{i}", "0s") for i in range(500)))
            await asyncio.gather(*(queue.offer_many([(f"w{i}", "0s"), (f"x{i}", "0s")]) for i in range(500)))
            assert await queue.size() == 1_500
        assert proxy.accepted <= 140


@in_a_loop
async def test_calls_that_wait_for_their_iterable_hold_up_no_others(
    redis_server: RedisServer, make_topic: MakeTopic
) -> None:
    """Also where it waits for one of those others, or the call is cancelled while it waits."""
    topic = make_topic(TopicType.PRIORITY, slots=4)
    sent, arrived = asyncio.Event(), 0

    async def waiting(call: int) -> AsyncIterator[PriorityMessage]:
        for i in range(3_000):  # so many that calls are under way
            yield PriorityMessage(f"a{call}-{i}", 100)
        nonlocal arrived
        arrived += 1
        await sent.wait()
        yield PriorityMessage(f"b{call}", 100)

    with Proxy(redis_server.port) as proxy:
        async with RmqClient(proxy.url) as client:
            producer = await client.producer(topic)
            tasks = [asyncio.create_task(producer.send_many(waiting(call))) for call in range(80)]
            await until(lambda: arrived == 80, 60)
            for task in tasks[:70]:
                task.cancel()
            await asyncio.gather(*tasks[:70], return_exceptions=True)
            async with asyncio.timeout(60):
                await asyncio.gather(*(producer.send_many([PriorityMessage(f"c{i}", 100)]) for i in range(200)))
            sent.set()
            assert [result.accepted for result in await asyncio.gather(*tasks[70:])] == [3_001] * 10
        assert proxy.accepted <= 140  # 70 at once, and one for each that a cancelled call has closed; else 280


@in_a_loop
async def test_no_more_handlers_run_than_asked_for(redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=8)
    async with RmqClient(redis_url) as client:
        running = most = done = 0

        @client.listener(topic, concurrency=7)
        async def handle(delivery: Delivery) -> None:
            nonlocal running, most, done
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.002)
            running -= 1
            done += 1

        await (await client.producer(topic)).send_many(PriorityMessage(f"m{i}", 100) for i in range(500))
        await client.start()
        await until(lambda: done == 500)
        assert await client.stop() == []
        assert most == 7


@in_a_loop
async def test_an_ack_does_not_wait_for_handlers_that_keep_all_lanes_busy(
    redis_url: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.aio.listener.LOOK_EVERY_S", 30.0)
    topic = make_topic(TopicType.PRIORITY, slots=4)
    bases = {topic.slot_of(f"{i}".encode()): f"{i}" for i in range(100)}
    async with RmqClient(redis_url) as client:
        begun: list[str] = []
        let_go = asyncio.Event()

        @client.listener(topic, batch=1, concurrency=2)
        async def handle(deliveries: list[Delivery]) -> None:
            begun.append(deliveries[0].text)
            if deliveries[0].text != "quick":
                await let_go.wait()

        names = enumerate(("quick", "slow", "slower"))
        await (await client.producer(topic)).send_many(
            PriorityMessage(name, 100, slot_basis=bases[slot]) for slot, name in names
        )
        await client.start()
        await until(lambda: len(begun) == 3)
        view = await client.inspect(topic)
        async with asyncio.timeout(10):
            while (await view.stats()).total("acked") < 1:
                await asyncio.sleep(0.01)
        let_go.set()
        await until_settled(client, topic)


@in_a_loop
async def test_small_batches_of_a_quick_handler_are_claimed_together(
    redis_url: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = limits_of(monkeypatch)
    topic = make_topic(TopicType.PRIORITY, slots=4)
    async with RmqClient(redis_url) as client:
        sizes: list[int] = []

        @client.listener(topic, batch=5, concurrency=2)
        async def handle(deliveries: list[Delivery]) -> None:
            sizes.append(len(deliveries))

        await (await client.producer(topic)).send_many(PriorityMessage(f"m{i}", 100) for i in range(800))
        await client.start()
        await until(lambda: sum(sizes) == 800, 60)
        await until_settled(client, topic)
    assert max(sizes) == 5
    assert limits[0] == 10  # one for each lane: nothing is known of the handler yet
    assert 50 <= max(limits) <= MOST_BATCHED


@in_a_loop
async def test_what_waits_behind_handlers_that_hang_goes_back_and_is_not_claimed_again(
    redis_url: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrefetchSize, "messages", lambda self, _=0.0: MOST_PREFETCHED if self.is_known else 1)
    topic = make_topic(TopicType.PRIORITY)
    async with RmqClient(redis_url) as client:
        let_go = asyncio.Event()
        handled = 0

        @client.listener(topic, batch=10, concurrency=2)
        async def handle(deliveries: list[Delivery]) -> None:
            nonlocal handled
            if handled >= 100:
                await let_go.wait()
            handled += len(deliveries)

        await (await client.producer(topic)).send_many(PriorityMessage(f"m{i}", 100) for i in range(3_000))
        await client.start()
        await until_in_flight(client, topic, 20, lambda: handled >= 100)
        view = await client.inspect(topic)
        for _ in range(5):
            await asyncio.sleep(0.5)
            assert (await view.stats()).in_flight <= 20
        let_go.set()
        await until_settled(client, topic)
    assert handled == 3_000


@in_a_loop
async def test_all_that_waits_behind_a_handler_that_has_become_slow_goes_back_at_once(
    redis_url: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call takes 64 of them back at most: the next call must not wait for the next look."""

    def messages(self: PrefetchSize, within_s: float = 0.0) -> int:
        del within_s
        return MOST_PREFETCHED if self.is_known and self.takes_s(1) < 0.05 else 1

    monkeypatch.setattr(PrefetchSize, "messages", messages)
    monkeypatch.setattr("rmq.aio.listener.LOOK_EVERY_S", 600.0)
    topic = make_topic(TopicType.PRIORITY)
    async with RmqClient(redis_url) as client:
        let_go, begun = asyncio.Event(), 0

        @client.listener(topic)
        async def handle(delivery: Delivery) -> None:
            nonlocal begun
            del delivery
            begun += 1
            if begun == 100:
                await asyncio.sleep(0.3)  # less than what lets the watcher give back
            elif begun > 100:
                await let_go.wait()

        await (await client.producer(topic)).send_many(PriorityMessage(f"m{i}", 100) for i in range(1_000))
        await client.start()
        await until_in_flight(client, topic, 1, lambda: begun > 100)
        let_go.set()
        await until_settled(client, topic)
    assert begun == 1_000


@in_a_loop
async def test_what_is_claimed_while_others_go_back_is_handled(
    redis_url: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With bounds so low that something goes back all the time: else workers claim and give back until leases end."""
    monkeypatch.setattr("rmq.aio.listener.SLOW_S", 0.01)
    monkeypatch.setattr("rmq._listening.worker.SLOW_S", 0.01)
    monkeypatch.setattr("rmq._listening.worker.PREFETCH_S", 0.005)
    topic, handled, draw = make_topic(TopicType.STREAM, slots=4, checked=False), Counter[str](), random.Random(1)

    async with contextlib.AsyncExitStack() as clients:
        for group in ("a", "b", "c") * 4:
            client = await clients.enter_async_context(RmqClient(redis_url))

            @client.listener(topic, group=group, start="all", batch=100)
            async def handle(deliveries: list[Delivery], group: str = group) -> None:
                handled[group] += len(deliveries)
                if draw.random() < 0.25:
                    await asyncio.sleep(0.4 * draw.random())

            await client.start()
        await (await client.producer(topic)).send_many(StreamMessage(f"m{i}") for i in range(12_000))
        await until(lambda: min(handled[group] for group in ("a", "b", "c")) >= 12_000, 50)


@in_a_loop
async def test_a_handler_that_outlasts_the_drain_is_cancelled_by_close(redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    begun, cancelled = asyncio.Event(), asyncio.Event()
    async with RmqClient(redis_url) as client:

        @client.listener(topic)
        async def handle(delivery: Delivery) -> None:
            begun.set()
            try:
                await asyncio.sleep(3_600)
            finally:
                cancelled.set()

        await (await client.producer(topic)).send(PriorityMessage("a", 100))
        await client.start()
        await begun.wait()
        [left] = await client.stop(drain_s=0.2)
        assert (left.text, cancelled.is_set()) == ("a", False)
        with pytest.raises(RmqError, match="already running"):
            client.listener(topic)(handle)
    assert cancelled.is_set()


@in_a_loop
async def test_an_idle_listener_with_a_limit_asks_redis_as_seldom_as_others(
    redis_url: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    async with RmqClient(redis_url) as client:

        @client.listener(topic, concurrency=8, adaptive=Adaptive(window_s=0.05, longest_pause_s=0.4))
        async def handle(delivery: Delivery) -> None: ...

        await (await client.producer(topic)).send_many(PriorityMessage(f"m{i}", 2_000) for i in range(10))
        await client.start()
        async with asyncio.timeout(60):
            while (await stats_of(client, topic)).total("acked") < 10:
                await asyncio.sleep(0.02)
        assert client._opened is not None  # pyright: ignore[reportPrivateUsage]
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


# --- the rest


@in_a_loop
async def test_messages_of_an_async_iterable(redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, slots=4)

    async def messages() -> AsyncIterator[RangeMergeMessage]:
        for number in range(3_000):
            if number % 100 == 0:
                await asyncio.sleep(0)
            yield RangeMergeMessage(f"m{number % 2_000}", time_range_ms=60_000)

    async def broken() -> AsyncIterator[RangeMergeMessage]:
        yield RangeMergeMessage("one more", time_range_ms=60_000)
        raise ZeroDivisionError

    async with RmqClient(redis_url) as client:
        producer = await client.producer(topic)
        result = await producer.send_many(messages())
        assert (result.new, result.merged) == (2_000, 1_000)
        with pytest.raises(ZeroDivisionError):
            await producer.send_many(broken())


def test_what_is_wrong_is_refused(redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client = RmqClient(redis_url)
    with pytest.raises(InvalidValueError, match="not an async function"):
        client.listener(topic)(lambda delivery: None)  # pyright: ignore
    with pytest.raises(InvalidValueError, match="1,000"):
        client.listener(topic, concurrency=1_001)

    async def use() -> None:
        with pytest.raises(RmqError, match="no listener"):
            await client.start()
        with pytest.raises(TopicMismatchError):
            await client.producer(Topic((await client.producer(topic)).topic.name, TopicType.STREAM))

    async def elsewhere() -> None:
        with pytest.raises(RmqError, match="another event loop"):
            await client.topics()

    async def closed() -> None:
        await client.close()
        with pytest.raises(ClientClosedError):
            await client.topics()

    async def main() -> None:
        await use()
        await asyncio.to_thread(asyncio.run, elsewhere())
        await closed()

    asyncio.run(main())


def test_an_embedded_redis_of_its_own() -> None:
    async def main() -> None:
        async with RmqClient("embedded://") as client:
            producer = await client.producer(Topic("a", TopicType.PRIORITY))
            assert (await producer.send(PriorityMessage("x", 100))).new == 1

    asyncio.run(main())


@in_a_loop
async def test_large_bodies_and_cut_connections(redis_server: RedisServer, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    with Proxy(redis_server.port) as proxy:
        async with RmqClient(proxy.url) as client:
            producer = await client.producer(topic)
            async with await client.consumer(topic) as consumer:
                proxy.cut_after_bytes(40)
                bodies = {f"m{i}": bytes([i]) * 200_000 for i in range(100)}
                await producer.send_many(PriorityMessage(name, 100, body=body) for name, body in bodies.items())
                proxy.cut_now()  # the next call finds dead connections, and makes new ones
                found: dict[str, bytes | None] = {}
                while deliveries := await consumer.poll(30, timeout=1.0):
                    found |= {delivery.text: delivery.body for delivery in deliveries}
                    assert await consumer.ack(deliveries) == []
                assert found == bodies
        assert proxy.cuts > 1


@in_a_loop
async def test_columns(redis_server: RedisServer, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, retry=ImmediateRetry())
    async with RmqClient(redis_server.url) as client:
        producer = await client.producer(topic)
        contents = [b"%d" % number for number in range(60)]
        assert await producer.send_columns(contents, priorities=5) == SendResult(60, 0)
        async with await client.consumer(topic) as consumer:
            columns = await consumer.poll_columns(20)
            assert (len(columns), columns.attempts) == (20, [1] * 20)
            assert await columns.nack([0]) == []
            assert await columns.deliveries[1].ack()
            assert await columns.ack() == []
            acked = set(columns.contents[1:])
        got: list[bytes] = []
        done = asyncio.Event()

        @client.listener(topic, batch=20, columns=True, concurrency=2)
        async def handle(columns: DeliveryColumns) -> None:
            assert columns.topic == topic
            got.extend(columns.contents)
            if len(got) == 41:
                done.set()

        await client.start()
        await asyncio.wait_for(done.wait(), 30)
        assert await client.stop() == []
        assert sorted(got) == sorted(set(contents) - acked)


# --- ends: of a handler that goes on, from within a handler, in another event loop


@pytest.mark.parametrize("swallowed", [asyncio.CancelledError, BaseException])
@in_a_loop
async def test_a_handler_that_swallows_its_cancellation_does_not_hold_up_a_close(
    swallowed: type[BaseException],
    redis_server: RedisServer,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    monkeypatch.setattr("rmq.aio.backend.CANCELLED_S", 0.1)
    monkeypatch.setattr("rmq.aio.client.DRAIN_S", 0.1)
    swallows, begun, cleaned_up = [True], asyncio.Event(), []
    client = RmqClient(redis_server.url)

    @client.listener(topic)
    async def handle(delivery: Delivery) -> None:
        begun.set()
        try:
            while swallows:
                try:
                    await asyncio.sleep(3600)
                except swallowed:
                    pass
        finally:
            cleaned_up.append(delivery.text)

    await (await client.producer(topic)).send(PriorityMessage("x", 1))
    await client.start()
    await begun.wait()
    await client.stop(drain_s=0)
    async with asyncio.timeout(30):
        await client.close()
    swallows.clear()
    assert "ignored its cancellation" in caplog.text
    assert cleaned_up == (["x"] if swallowed is asyncio.CancelledError else [])


@pytest.mark.parametrize("way", ["awaited", "task", "closed"])
@in_a_loop
async def test_a_handler_may_stop_its_client(way: str, redis_server: RedisServer, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, checked=way != "closed")
    ended: list[str] = []
    both, others_end = asyncio.Event(), asyncio.Event()
    client = RmqClient(redis_server.url)

    @client.listener(topic, concurrency=2)
    async def handle(delivery: Delivery) -> None:
        if delivery.text == "other":
            both.set()
            await others_end.wait()
            await asyncio.sleep(0.01)
            ended.append("other")
            return
        await both.wait()
        others_end.set()
        async with asyncio.timeout(25):
            if way == "closed":
                await client.close()
            elif way == "task":
                await asyncio.create_task(client.stop())
            else:
                assert [each.text for each in await client.stop()] == ["stops"]
        ended.append("stops")

    await (await client.producer(topic)).send_many([PriorityMessage("stops", 1), PriorityMessage("other", 1)])
    await client.start()
    await until(lambda: len(ended) == 2)
    assert ended == ["other", "stops"]  # it waits for the others
    if way != "closed":
        await until_settled(client, topic)
    await client.close()
    await until(lambda: len(asyncio.all_tasks()) == 1)


def test_a_close_in_another_event_loop(
    redis_server: RedisServer, redis_client: Redis, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client, embedded = RmqClient(redis_server.url + "?client_name=elsewhere"), RmqClient(f"embedded://{tmp_path}")

    def connections() -> int:
        return sum(each["name"] == "elsewhere" for each in redis_client.client_list())

    @client.listener(topic)
    async def handle(delivery: Delivery) -> None:
        del delivery

    async def use() -> None:
        await (await client.producer(topic)).send(PriorityMessage("x", 1))
        await client.start()
        await (await embedded.producer(topic)).send(PriorityMessage("x", 1))
        assert connections() > 0
        with pytest.raises(RmqError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, client.close())
        assert await client.topics()

    async def close() -> None:
        await client.close()
        await client.close()
        await embedded.close()
        with pytest.raises(ClientClosedError):
            await client.topics()

    asyncio.run(use())
    pid = int((tmp_path / "redis.pid").read_text()) if (tmp_path / "redis.pid").exists() else 0
    asyncio.run(close())
    wait_until(lambda: not connections())
    assert not pid or not Path(f"/proc/{pid}").exists()


def test_nothing_of_a_client_works_in_another_event_loop(redis_url: str, make_topic: MakeTopic) -> None:
    """A send waited there for ever, and the next one in the client's own event loop did, too."""
    topic = make_topic(TopicType.PRIORITY)

    async def elsewhere(*calls: Callable[[], Awaitable[object]]) -> None:
        for call in calls:
            with pytest.raises(RmqError, match="another event loop"):
                await asyncio.wait_for(call(), 60)

    async def main() -> None:
        async with RmqClient(redis_url) as client:
            producer, consumer = await client.producer(topic), await client.consumer(topic)
            await producer.send_many([PriorityMessage(content, 1) for content in ("a", "b")])
            (delivery,) = await consumer.poll(1)
            calls = [
                lambda: producer.send(PriorityMessage("c", 1)),
                lambda: producer.send_many([PriorityMessage("c", 1)]),
                lambda: consumer.poll(timeout=0),
                delivery.ack,
                (await client.inspect(topic)).stats,
                client.topics,
            ]
            await asyncio.to_thread(asyncio.run, elsewhere(*calls))
            await asyncio.wait_for(producer.send(PriorityMessage("c", 1)), 60)
            assert await delivery.ack()

    asyncio.run(main())


def eagerly(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    """Make a task whose first step runs at once, as `asyncio.eager_task_factory` of Python 3.12 does."""
    begun: list[Any] = []
    loop.call_soon = lambda step, *_args, **_options: begun.append(step)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        task = asyncio.tasks._PyTask(coro, loop=loop, **options)  # pyright: ignore[reportAttributeAccessIssue]
    finally:
        del loop.call_soon
    outer = asyncio.current_task(loop)
    if outer is not None:
        asyncio.tasks._leave_task(loop, outer)
    try:
        begun[0]()
    finally:
        if outer is not None:
            asyncio.tasks._enter_task(loop, outer)
    return task


@in_a_loop
async def test_a_task_factory_that_begins_at_once(redis_server: RedisServer, make_topic: MakeTopic) -> None:
    asyncio.get_running_loop().set_task_factory(getattr(asyncio, "eager_task_factory", eagerly))
    topic = make_topic(TopicType.PRIORITY, slots=4)
    handled: list[str] = []
    async with RmqClient(redis_server.url) as client:
        producer = await client.producer(topic)

        @client.listener(topic, concurrency=5)
        async def handle(delivery: Delivery) -> None:
            await asyncio.create_task(asyncio.sleep(0.001))
            handled.append(delivery.text)
            if len(handled) <= 50:
                await asyncio.gather(
                    producer.send(PriorityMessage(f"{delivery.text}-", 1)), client.topics(), client.workers()
                )

        await client.start()
        await asyncio.gather(*(producer.send(PriorityMessage(f"m{number}", 1)) for number in range(50)))
        await until(lambda: len(handled) == 100)
        assert (await until_settled(client, topic)).total("acked") == 100


@in_a_loop
async def test_a_task_that_plain_logic_begins_at_once(redis_server: RedisServer, make_topic: MakeTopic) -> None:
    asyncio.get_running_loop().set_task_factory(getattr(asyncio, "eager_task_factory", eagerly))
    topic = make_topic(TopicType.PRIORITY)
    sent: list[asyncio.Task[Any]] = []
    async with RmqClient(redis_server.url) as client:
        producer = await client.producer(topic)

        class Sending(Observer):
            def settled(self, deliveries: Any) -> None:
                if deliveries[0].text == "first":
                    sent.append(asyncio.create_task(producer.send(PriorityMessage("second", 1))))

        client.observers.all.append(Sending())

        @client.listener(topic)
        async def handle(delivery: Delivery) -> None:
            del delivery

        await client.start()
        await producer.send(PriorityMessage("first", 1))
        await until(lambda: sent)
        assert (await sent[0]).new == 1
        view = await client.inspect(topic)
        async with asyncio.timeout(30):
            while (await view.stats()).total("acked") < 2:
                await asyncio.sleep(0.01)
