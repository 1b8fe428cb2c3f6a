"""Async listeners with ZooKeeper: a slot's messages run one after the other, also while slots move."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from rmq import PriorityMessage, Topic, TopicType
from rmq.aio import Delivery, DeliveryColumns, RmqClient
from rmq.aio.listener import TaskWorker
from rmq.errors import CoordinationError
from tests.conftest import Coordinate, MakeTopic
from tests.integration.aio.test_aio import in_a_loop, stats_of, until


class Watched:
    """What handlers of several workers did, slot by slot."""

    def __init__(self) -> None:
        self.running: Counter[int] = Counter()
        self.most_in_a_slot = self.most = 0
        self.handled: Counter[str] = Counter()

    def listen(self, client: RmqClient, topic: Topic) -> None:
        @client.listener(topic, concurrency=50)
        async def handle(delivery: Delivery) -> None:
            self.running[delivery.slot] += 1
            self.most_in_a_slot = max(self.most_in_a_slot, self.running[delivery.slot])
            self.most = max(self.most, self.running.total())
            await asyncio.sleep(0.003)
            self.running[delivery.slot] -= 1
            self.handled[delivery.text] += 1


@in_a_loop
async def test_a_slot_is_in_one_hand_while_slots_move(
    coordinate: Coordinate, redis_url: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=8, lease=timedelta(seconds=8))
    watched = Watched()
    workers = [RmqClient(redis_url, zookeeper=coordinate()) for _ in range(2)]
    async with RmqClient(redis_url) as sender:
        producer = await sender.producer(topic)
        for number, worker in enumerate(workers):
            watched.listen(worker, topic)
            await worker.start()
            await producer.send_many(PriorityMessage(f"m{number}:{i}", 100) for i in range(500))
        with pytest.raises(CoordinationError):
            await workers[0].consumer(topic)
        await until(lambda: len(watched.handled) > 600, 60)
        await workers[0].close()  # its slots go to the other one
        await until(lambda: len(watched.handled) == 1_000, 60)
        await workers[1].close()
        assert (watched.most_in_a_slot, set(watched.handled.values())) == (1, {1})
        assert watched.most > 2  # slots side by side
        assert (await stats_of(sender, topic)).total("acked") == 1_000


@in_a_loop
async def test_shared_handlers_keep_a_slot_in_one_hand_too(
    coordinate: Coordinate, redis_url: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=8)
    watched = Watched()
    async with RmqClient(redis_url, zookeeper=coordinate()) as worker:
        watched.listen(worker, topic)
        await worker.start(handlers=3)
        await (await worker.producer(topic)).send_many(PriorityMessage(f"m{i}", 100) for i in range(500))
        await until(lambda: len(watched.handled) == 500, 60)
        await worker.stop()
        assert (watched.most_in_a_slot, watched.most) == (1, 3)
        assert set(watched.handled.values()) == {1}


@in_a_loop
async def test_no_lane_of_an_owner_gets_more_columns_than_a_batch(
    coordinate: Coordinate, redis_url: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    async with RmqClient(redis_url, zookeeper=coordinate()) as worker:
        sizes: list[int] = []

        @worker.listener(topic, batch=20, columns=True, concurrency=3)
        async def handle(columns: DeliveryColumns) -> None:
            sizes.append(len(columns))
            await asyncio.sleep(0)

        await (await worker.producer(topic)).send_many(PriorityMessage(f"m{i}", 100) for i in range(300))
        await worker.start()
        await until(lambda: sum(sizes) == 300, 60)
        await worker.stop()
    assert max(sizes) <= 20


@pytest.mark.parametrize("handlers", [None, 4])
@in_a_loop
async def test_a_worker_rests_while_messages_wait_behind_one_of_their_slot(
    coordinate: Coordinate,
    redis_url: str,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
    handlers: int | None,
) -> None:
    """It began a lane for them, which found nothing to begin and ended, thousands of times a second."""
    topic = make_topic(TopicType.PRIORITY, slots=1)
    begun, may_end, rounds, run = list[str](), asyncio.Event(), 0, TaskWorker.start_waiting

    def counted(self: TaskWorker) -> None:
        nonlocal rounds
        rounds += 1
        run(self)

    monkeypatch.setattr(TaskWorker, "start_waiting", counted)
    async with RmqClient(redis_url, zookeeper=coordinate()) as worker:

        @worker.listener(topic, concurrency=4)
        async def handle(delivery: Delivery) -> None:
            begun.append(delivery.text)
            await may_end.wait()

        await (await worker.producer(topic)).send_many(PriorityMessage(f"m{i}", 100) for i in range(8))
        await worker.start(handlers=handlers)
        await until(lambda: len(begun) == 1, 60)
        before = rounds
        await asyncio.sleep(2)
        passed = rounds - before
        may_end.set()
        await until(lambda: len(set(begun)) == 8, 60)
        await worker.stop()
        assert passed < 100
        assert len(begun) == 8
        assert (await stats_of(worker, topic)).total("acked") == 8
