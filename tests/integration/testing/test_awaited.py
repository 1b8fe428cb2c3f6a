"""The same helpers, awaited, with clients of the asyncio side."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

import pytest

from rmq import PriorityMessage, Topic, TopicType, aio
from rmq.testing import Ran, Server, assert_not_sent, assert_sent, run_at_most, run_until_empty, sent

JOBS = Topic("jobs", TopicType.PRIORITY)


@dataclass(frozen=True)
class Price:
    item: str
    pence: int


PRICES = Topic("prices", TopicType.RANGE_MERGE, payload=Price)


def test_handlers_run_in_the_callers_task(server: Server) -> None:
    async def main() -> None:
        drawn: list[Price] = []
        async with server.async_client() as client:

            @client.listener(PRICES)
            async def draw(price: Price, delivery: aio.Delivery[Price]) -> None:
                await asyncio.sleep(0)
                drawn.append(price)
                await delivery.ack()

            producer = await client.producer(PRICES)
            await producer.send(PRICES.message("item:mug", Price("mug", 399), time_range=timedelta(hours=1)))
            found = await assert_sent(client, PRICES, "item:mug", payload=Price("mug", 399))
            assert found.due == clock.now + timedelta(hours=1)
            assert await run_until_empty(client) == Ran()
            clock.advance(timedelta(hours=1))
            assert await run_until_empty(client) == Ran(acked=1)
            assert drawn == [Price("mug", 399)]
            await assert_not_sent(client, PRICES)

    server.flush()
    clock = server.clock()
    asyncio.run(main())


def test_handlers_send_while_they_run(server: Server) -> None:
    async def main() -> None:
        async with server.async_client() as client:
            producer = await client.producer(JOBS)

            @client.listener(JOBS, batch=2)
            async def again(deliveries: list[aio.Delivery]) -> None:
                sends = [
                    producer.send(PriorityMessage(each.text + "+", 5)) for each in deliveries if len(each.text) < 3
                ]
                await asyncio.gather(*sends)

            await producer.send_many(PriorityMessage(text, 5) for text in "ab")
            assert await run_until_empty(client) == Ran(acked=6)

    server.flush()
    asyncio.run(main())


def test_errors_are_raised_and_counted(server: Server) -> None:
    async def main() -> None:
        async with server.async_client() as client:

            @client.listener(JOBS)
            async def fail(delivery: aio.Delivery) -> None:
                raise ValueError(delivery.text)

            await (await client.producer(JOBS)).send(PriorityMessage("a", 5))
            with pytest.raises(ValueError, match="a"):
                await run_at_most(client, 1)
            clock.advance(timedelta(days=1))
            ran = await run_at_most(client, 1, raises=False)
            assert (ran.nacked, [str(error) for error in ran.errors]) == (1, ["a"])
            assert await sent(client, JOBS) == []
            with pytest.raises(AssertionError, match="topic jobs, which is empty"):
                await assert_sent(client, JOBS)

    server.flush()
    clock = server.clock()
    asyncio.run(main())
