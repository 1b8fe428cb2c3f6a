"""Takes that are cancelled, interrupted, or overtaken by a close or by the program's end: nothing is lost, or late."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import FrameType

import pytest
import redis

import rmq
from rmq import DelayedQueue, PriorityMessage, RmqClient, TopicType, aio
from rmq.errors import ClientClosedError
from tests.conftest import MakeTopic
from tests.support.core import slot_keys
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer
from tests.support.sides import Side
from tests.support.waiting import LIMIT_S, wait_until

SECOND = timedelta(seconds=1)
PACKAGE = str(Path(rmq.__file__).parent)


def offered(queue: DelayedQueue, count: int) -> set[bytes]:
    for number in range(count):
        queue.offer(str(number), "0s")
    return {str(number).encode() for number in range(count)}


def take_rest(queue: DelayedQueue, taken: list[bytes], values: set[bytes]) -> None:
    """Take on until all are there."""
    while {*taken} != values:
        taken.append(queue.take(LIMIT_S))


# --- cancelled, interrupted


@pytest.mark.slow
def test_a_cancelled_take_loses_nothing_though_redis_is_full_and_lines_break() -> None:
    chosen = random.Random(3)
    with RedisServer() as server, RmqClient(server.url) as client, Proxy(server.port) as proxy:
        with DelayedQueue(client, "q", lease=SECOND) as sender:
            values = offered(sender, 1_500)
        full = redis.Redis.from_url(server.url)
        taken: list[bytes] = []

        async def takers() -> None:
            async with aio.RmqClient(proxy.url, timeout_s=1.0, deadline_s=2.0) as mine:
                shared = aio.DelayedQueue(mine, "q", lease=SECOND)

                async def take() -> None:
                    taken.append(await shared.take(1.0))

                longest_s = 0.006
                for number in range(2_000):
                    if number % 100 == 0:
                        if number and not taken:  # a slow machine takes nothing in so short a time
                            longest_s = min(2 * longest_s, 1.0)
                        full.config_set("maxmemory", chosen.choice(["0", "1mb"]))
                        proxy.delay_replies(0.0, 0.004, seed=number, command="EVALSHA")
                    if number % 41 == 0:
                        proxy.cut_now()
                    task = asyncio.create_task(take())
                    await asyncio.sleep(chosen.uniform(0, longest_s))
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError, TimeoutError, rmq.RmqError):
                        await task
                full.config_set("maxmemory", "0")

        asyncio.run(takers())
        full.close()
        assert taken
        with DelayedQueue(client, "q", lease=SECOND) as queue:
            take_rest(queue, taken, values)


class Interrupted(BaseException):
    """What a signal raises."""


@pytest.fixture
def interrupts() -> Iterator[queue.Queue[float | None]]:
    """A queue of seconds after which the library's code, and only that, is interrupted; `join` waits for the last."""

    def raise_it(number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_filename.startswith(PACKAGE):  # Python's own is not made for it
            raise Interrupted

    main, wanted = threading.get_ident(), queue.Queue[float | None]()

    def send() -> None:
        while (after_s := wanted.get()) is not None:
            time.sleep(after_s)
            signal.pthread_kill(main, signal.SIGUSR1)
            wanted.task_done()

    before = signal.signal(signal.SIGUSR1, raise_it)
    sender = threading.Thread(target=send)
    sender.start()
    yield wanted
    wanted.put(None)
    sender.join()
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.slow
def test_an_interrupted_take_loses_nothing(
    client: RmqClient, make_topic: MakeTopic, interrupts: queue.Queue[float | None]
) -> None:
    chosen, taken, interrupted = random.Random(5), list[bytes](), 0
    with DelayedQueue(client, make_topic(TopicType.FIXED_TIME).name, lease=SECOND) as delayed:
        values = offered(delayed, 600)
        for _ in range(750):
            interrupts.put(chosen.uniform(0.00002, 0.001))
            try:
                value = delayed.poll(0.05)
                if value is not None:
                    taken.append(value)
            except Interrupted:
                interrupted += 1
        interrupts.join()
        take_rest(delayed, taken, values)
    assert interrupted > 10


# --- the program ends

TAKER = """
import sys
from rmq import DelayedQueue, RmqClient
client = RmqClient(sys.argv[1], timeout_s=4.0, deadline_s=3600.0)
queue = DelayedQueue(client, sys.argv[2])
for _ in range(40):
    queue.take(50.0)
"""
ASYNC_TAKER = """
import asyncio, sys
from rmq.aio import DelayedQueue, RmqClient
async def main():
    client = RmqClient(sys.argv[1])
    queue = DelayedQueue(client, sys.argv[2])
    for _ in range(40):
        await queue.take(50.0)
    await asyncio.sleep(0)
    main.kept = client, queue
asyncio.run(main())
"""
FORKING = (
    TAKER
    + """
import os
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
)
FROZEN = (
    TAKER
    + """
import os, signal
os.kill(int(sys.argv[3]), signal.SIGSTOP)
"""
)


@pytest.mark.parametrize("script", [TAKER, ASYNC_TAKER, FORKING], ids=["threads", "asyncio", "fork"])
def test_a_program_that_ends_has_acked_what_it_took_and_gives_back_the_rest(
    client: RmqClient, redis_url: str, make_topic: MakeTopic, script: str
) -> None:
    with DelayedQueue(client, make_topic(TopicType.FIXED_TIME).name) as queue:
        offered(queue, 100)
        ended = subprocess.run(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, redis_url, queue.topic.name],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (ended.returncode, ended.stderr) == (0, "")
        stats = client.inspect(queue.topic).stats()
        assert (stats.total("acked"), stats.in_flight, stats.backlog) == (40, 0, 60)


def test_a_program_ends_though_redis_does_not_answer() -> None:
    with RedisServer() as server, RmqClient(server.url) as client:
        with DelayedQueue(client, "q") as queue:
            offered(queue, 60)
        command = [sys.executable, "-c", FROZEN, server.url, "q", str(server.pid)]
        try:
            subprocess.run(command, timeout=60, check=True)  # and not the hour of its deadline
        finally:
            os.kill(server.pid, signal.SIGCONT)


# --- close


@pytest.mark.parametrize("side", ["threads", "asyncio"], indirect=True)
@pytest.mark.parametrize("what", ["queue", "client"])
def test_who_waits_for_a_value_is_told_of_the_close(
    side: Side, redis_url: str, make_topic: MakeTopic, what: str
) -> None:
    for _ in range(5):
        with side.client(redis_url) as client:
            queue = side.queue(client, make_topic(TopicType.FIXED_TIME, slots=4).name, slots=4)
            met: list[BaseException] = []

            def wait() -> None:
                try:
                    queue.take()  # noqa: B023
                except BaseException as error:
                    met.append(error)  # noqa: B023

            waiting = [threading.Thread(target=wait) for _ in range(4)]
            for thread in waiting:
                thread.start()
            time.sleep(random.Random(len(met)).uniform(0.0, 0.05))
            (queue if what == "queue" else client).close()
            for thread in waiting:
                thread.join(60)
            assert [type(error) for error in met] == [ClientClosedError] * 4, met
            if what == "queue":
                with pytest.raises(ClientClosedError):
                    queue.poll()


def test_a_consumer_may_be_closed_while_another_thread_polls(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    for pause_s in (0.0, 0.001, 0.01, 0.1, 0.3):
        consumer, met = client.consumer(topic), list[BaseException]()

        def wait() -> None:
            try:
                consumer.poll(1, 3_600.0)  # noqa: B023
            except BaseException as error:
                met.append(error)  # noqa: B023

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(pause_s)
        consumer.close()
        waiting.join(60)
        assert isinstance(met[0], ClientClosedError)


def test_a_client_closes_the_rest_whatever_one_part_raises() -> None:
    class Failing:
        def __init__(self) -> None:
            self.closed = 0

        def close(self) -> None:
            self.closed += 1
            raise LookupError("cannot close")

    client, failing = RmqClient("embedded://"), [Failing(), Failing()]
    DelayedQueue(client, "q").offer("a", "0s")
    connections, _ = client._registered(rmq.Topic("t", TopicType.PRIORITY))
    for each in failing:
        connections.close_with_us(each)
    path = client.url.removeprefix("unix://")
    assert Path(path).exists()
    with pytest.raises(LookupError):
        client.close()
    wait_until(lambda: not Path(path).exists())
    assert [each.closed for each in failing] == [1, 1]
    with pytest.raises(ClientClosedError):
        client.topics()


# --- hints


@pytest.mark.parametrize("side", ["threads", "asyncio"], indirect=True)
def test_what_is_no_hint_on_a_wake_channel_harms_nobody(
    side: Side, client: RmqClient, redis_client: redis.Redis, make_topic: MakeTopic
) -> None:
    topic, queue_topic = make_topic(TopicType.PRIORITY), make_topic(TopicType.FIXED_TIME)
    ended = threading.Event()

    def shout() -> None:
        for name in (topic.name, queue_topic.name):
            for said in (
                b"",
                b"soon",
                b"-5",
                b"1e3",
                b"9" * 400,
                b"9" * 5_000,
                "\u0663".encode(),
                b"1_0",
                b" 7",
                b"nan",
            ):
                redis_client.publish(slot_keys(name, 0).wake, said)

    def keep_shouting() -> None:
        while not ended.wait(0.02):
            shout()

    shouting = threading.Thread(target=keep_shouting)
    shouting.start()
    try:
        with client.consumer(topic) as consumer, side.queue(client, queue_topic.name) as queue:
            assert consumer.poll(1, 0.5) == []
            assert queue.poll(0.5) is None
            sender = threading.Timer(0.3, lambda: client.producer(topic).send(PriorityMessage("a", 1_000)))
            sender.start()
            [delivery] = consumer.poll(1, 20.0)
            assert delivery.ack()
            sender.join()
            queue.offer("b", "300ms")
            assert queue.take(50.0) == b"b"
    finally:
        ended.set()
        shouting.join()
