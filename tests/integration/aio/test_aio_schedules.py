"""Schedules on the asyncio side: the same logic, run in the event loop."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from rmq import RmqClient, Schedule, SchedulePut, Topic, TopicType, aio
from rmq._schedules.schedule import RECURRING
from rmq._schedules.schedules import ScheduleRunner
from rmq.testing import Server, run_schedules, sent
from tests.support.waiting import LIMIT_S, wait_until


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


JOBS = Topic("jobs", TopicType.FIXED_TIME)


def test_started_listeners_run_schedules(server: Server) -> None:
    server.flush()

    async def main() -> list[str]:
        handled: list[str] = []
        enough = asyncio.Event()
        async with aio.RmqClient(server.url) as client:

            @client.listener(JOBS)
            async def handle(delivery: aio.Delivery) -> None:
                handled.append(delivery.text)
                if len(handled) >= 3:
                    enough.set()

            await client.start()
            assert await client.schedules.put(Schedule("s", JOBS, "{scheduled}", every="1s")) is SchedulePut.NEW
            assert await client.schedules.put(Schedule("s", JOBS, "{scheduled}", every="1s")) is SchedulePut.UNCHANGED
            async with asyncio.timeout(LIMIT_S):
                await enough.wait()
            [info] = await client.schedules.list()
            assert info == await client.schedules.get("s") or info.last != info.next
            assert await client.schedules.run_now("s")
            assert await client.schedules.remove("s")
            await client.stop()
        return handled

    handled = asyncio.run(main())
    assert len(set(handled)) >= 3
    with RmqClient(server.url) as client:
        assert client.inspect(RECURRING).stats().in_flight == 0


def test_schedules_run_on_the_clock_of_a_test(server: Server) -> None:
    server.flush()

    async def main() -> None:
        async with server.async_client() as client:
            clock = server.clock()
            await client.schedules.put(Schedule("s", JOBS, "job", every="1h"))
            clock.advance("1h")
            assert await run_schedules(client) == 1
            assert [each.text for each in await sent(client, JOBS)] == ["job"]

    asyncio.run(main())


def test_a_worker_starts_after_the_end_of_its_schedule(server: Server) -> None:
    server.flush()

    async def main() -> None:
        async with server.async_client() as client:
            until = datetime(2020, 1, 1, tzinfo=UTC)

            @client.scheduled("s", every="1h", until=until)
            async def handle(delivery: aio.Delivery) -> None:
                del delivery

            await client.start()
            assert await client.schedules.put(Schedule("s", "s", "s", every="1h", until=until)) is SchedulePut.OVER
            await client.stop()

    asyncio.run(main())


@pytest.mark.parametrize("sending", [False, True])
def test_the_event_loop_ends_without_a_close(server: Server, monkeypatch: pytest.MonkeyPatch, sending: bool) -> None:
    """`asyncio.run` cancels what still runs, and waits for it: a worker of schedules that went on kept it for ever."""
    server.flush()
    _end_without_a_close(server.url, monkeypatch if sending else None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # a connection that was being made ended with its loop
        gc.collect()


def _end_without_a_close(url: str, monkeypatch: pytest.MonkeyPatch | None) -> None:
    begun = asyncio.Event()

    def take_long(self: ScheduleRunner, *_: object) -> None:
        begun.set()
        self._connections.runtime.sleep(3_600)  # pyright: ignore[reportPrivateUsage]

    if monkeypatch:
        monkeypatch.setattr(ScheduleRunner, "_run", take_long)

    client = aio.RmqClient(url)

    @client.listener(JOBS)
    async def handle(delivery: aio.Delivery) -> None:
        del delivery

    async def main() -> None:
        await client.schedules.put(Schedule("s", JOBS, "job", every="1s" if monkeypatch else "1d"))
        await client.start()
        async with asyncio.timeout(LIMIT_S):
            while not any(RECURRING.name in task.get_name() for task in asyncio.all_tasks()):
                await asyncio.sleep(0.01)
            if monkeypatch:
                await begun.wait()

    thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    wait_until(lambda: not thread.is_alive(), message="the end of asyncio.run")
    asyncio.run(client.close())
