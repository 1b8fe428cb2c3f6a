"""Lanes of async listeners: those of a worker whose slots are its own, through a real ZooKeeper, too."""

from __future__ import annotations

import asyncio

import pytest

from rmq import PriorityMessage, TopicType
from rmq.aio import Delivery, DeliveryColumns, RmqClient
from rmq.aio.listener import TaskWorker
from tests.conftest import Coordinate, MakeTopic
from tests.integration.aio.test_aio import in_a_loop, stats_of, until, until_settled


@pytest.mark.parametrize("owned", [False, True])
@in_a_loop
async def test_no_lane_gets_more_columns_than_a_batch(
    coordinate: Coordinate, redis_url: str, make_topic: MakeTopic, owned: bool
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4 if owned else 1)
    async with RmqClient(redis_url, zookeeper=coordinate() if owned else None) as worker:
        sizes: list[int] = []

        @worker.listener(topic, batch=20, columns=True, concurrency=3)
        async def handle(columns: DeliveryColumns) -> None:
            sizes.append(len(columns))
            await asyncio.sleep(0)

        await (await worker.producer(topic)).send_many(PriorityMessage(f"m{i}", 100) for i in range(300))
        await worker.start()
        await until(lambda: sum(sizes) == 300, 60)
        await until_settled(worker, topic)
    assert max(sizes) <= 20 if owned else max(sizes) == 20  # few may be due in a slot that is owned


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
