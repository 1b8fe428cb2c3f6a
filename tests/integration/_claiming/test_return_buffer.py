"""What a consumer has claimed and no poll has returned: it waits for the next poll, and goes back if none comes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from rmq import Consumer, PriorityMessage, RmqClient, StreamMessage, Topic, TopicType
from rmq.errors import ClientClosedError, RmqError
from tests.support.core import Fetcher, ReturnBuffer, monotonic_s, select, slot_keys
from tests.support.servers import RedisServer
from tests.support.sides import SIDES, Side
from tests.support.slots import forget_topic
from tests.support.topologies import RedisClusterServers
from tests.support.waiting import wait_until

LEASE, SENT = timedelta(minutes=5), 40
_numbers = count(1)


def new_topic(cluster: RedisClusterServers, type_: TopicType = TopicType.PRIORITY) -> tuple[Topic, RedisServer]:
    """Return a topic of which slots 0 and 2 are on different nodes, and the node of slot 2."""
    while True:
        topic = Topic(f"left{os.getpid()}-{next(_numbers)}", type_, slots=4, lease=LEASE)
        first, second = (cluster.owner(slot_keys(topic.name, slot).store) for slot in (0, 2))
        if first is not second:
            return topic, second


def claim_late(client: RmqClient, consumer: Consumer, topic: Topic, victim: RedisServer) -> list[str]:
    """Have a poll claim from a node that answers only after it; return what a poll of one more has returned."""
    basis = next(f"b{index}" for index in range(1_000) if topic.slot_of(f"b{index}".encode()) == 2)
    kind = StreamMessage if topic.type is TopicType.STREAM else lambda text, **rest: PriorityMessage(text, 100, **rest)
    other = next(f"b{index}" for index in range(1_000) if topic.slot_of(f"b{index}".encode()) == 0)
    assert consumer.poll(1, 0.3) == []  # connects, looks, and listens to hints
    client.producer(topic).send_many(kind(f"m{index}", slot_basis=basis) for index in range(SENT))  # type: ignore
    client.producer(topic).send(kind("quick", slot_basis=other))  # type: ignore
    time.sleep(0.1)  # the hints arrive
    victim.pause()
    try:
        (quick,) = consumer.poll(100, 1.0)  # the other node's answer is owed
        assert (quick.text, quick.ack()) == ("quick", True)
    finally:
        victim.resume()
    found: list[Any] = []
    wait_until(lambda: found.extend(consumer.poll(1, 0.2)) or found)
    assert found[0].ack() is True
    return [found[0].text]


def check_rest(client: RmqClient, topic: Topic, done: list[str]) -> None:
    """The rest is there at once, and none of it counts as delivered before."""
    group = {} if topic.type is not TopicType.STREAM else {"group": "g"}
    with client.consumer(topic, **group) as consumer:  # type: ignore[arg-type]
        found = consumer.poll(100, 50)
        found += consumer.poll(100)
        assert sorted([each.text for each in found] + done) == sorted(f"m{index}" for index in range(SENT))
        assert {each.attempt for each in found} == {1}
        assert consumer.ack(found) == []


@pytest.mark.parametrize("type_", [TopicType.PRIORITY, TopicType.STREAM])
@pytest.mark.parametrize("closed", ["consumer", "client"])
@pytest.mark.parametrize("side", SIDES, indirect=True)
def test_a_close_gives_back_what_no_poll_has_returned(
    cluster: RedisClusterServers, side: Side, closed: str, type_: TopicType
) -> None:
    topic, victim = new_topic(cluster, type_)
    with side.client(cluster.url) as client:
        with side.client(cluster.url) as other:
            options = {"group": "g", "start": "all"} if type_ is TopicType.STREAM else {}
            consumer = other.consumer(topic, **options)  # type: ignore[arg-type]
            done = claim_late(client, consumer, topic, victim)
            if closed == "consumer":
                consumer.close()
                with pytest.raises(ClientClosedError):
                    consumer.poll()
                check_rest(client, topic, done)
        if closed == "client":
            check_rest(client, topic, done)


@pytest.mark.parametrize("side", SIDES, indirect=True)
def test_a_close_gives_back_what_a_server_owed(cluster: RedisClusterServers, side: Side) -> None:
    topic, victim = new_topic(cluster)
    with side.client(cluster.url) as client:
        consumer = client.consumer(topic)
        basis = next(f"b{index}" for index in range(1_000) if topic.slot_of(f"b{index}".encode()) == 2)
        assert consumer.poll(1, 0.3) == []  # connects, looks, and listens to hints
        client.producer(topic).send_many(PriorityMessage(f"m{index}", 100, slot_basis=basis) for index in range(SENT))
        time.sleep(0.1)  # the hints arrive
        victim.pause()
        with suppress(RmqError):
            assert consumer.poll(100, 0.5) == []
        victim.resume()
        time.sleep(0.5)  # the answer arrives, and nobody reads it
        consumer.close()
        check_rest(client, topic, [])


ENDS = """
import os, sys
from rmq import RmqClient
from tests.integration._claiming.test_return_buffer import keep_some
url, topic, way = sys.argv[1:]
client = RmqClient(url)
consumer = client.consumer(client.topic(topic))
keep_some(consumer)
if way == "forked":
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os._exit(0)
    sys.exit()
"""

ENDS_IN_A_LOOP = """
import asyncio, sys
from rmq.aio import RmqClient
from tests.integration._claiming.test_return_buffer import keep_some
url, topic, way = sys.argv[1:]

async def main():
    client = RmqClient(url)
    consumer = await client.consumer(await client.topic(topic))
    await consumer._tasks.run(keep_some, consumer._plain)
    globals()["kept"] = client, consumer

asyncio.run(main())
"""


def keep_some(consumer: Consumer) -> None:
    """Let a consumer have what no poll has returned, as after a claim that a slow node has answered."""
    found = consumer.poll(SENT)
    assert len(found) == SENT
    consumer._return_buffer.keep(select(found))  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("program", "way"), [(ENDS, "ends"), (ENDS_IN_A_LOOP, "ends"), (ENDS, "forked")], ids=["plain", "asyncio", "fork"]
)
def test_a_program_that_ends_gives_back_what_no_poll_has_returned(
    client: RmqClient, make_topic: Any, redis_url: str, redis_client: Any, program: str, way: str
) -> None:
    topic = make_topic(TopicType.PRIORITY, checked=False, lease=LEASE)
    client.producer(topic).send_many(PriorityMessage(f"m{index}", 100) for index in range(SENT))
    command = [sys.executable, "-c", program, redis_url, topic.name, way]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    if way == "forked":  # the child has nothing to give back, and the parent was ended by force
        assert client.inspect(topic).stats().in_flight == SENT
        forget_topic(redis_client, topic.name)
    else:
        check_rest(client, topic, [])


def test_without_more_threads_it_goes_back_at_once(
    client: RmqClient, make_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would look after it, neither in half a lease nor when the program ends."""
    topic = make_topic(TopicType.PRIORITY, lease=LEASE)
    client.producer(topic).send_many(PriorityMessage(f"m{index}", 100) for index in range(SENT))

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with client.consumer(topic) as consumer:
        found = consumer.poll(SENT)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            consumer._return_buffer.keep(select(found))  # pyright: ignore[reportPrivateUsage]
        stats = client.inspect(topic).stats()
        assert (stats.backlog, stats.in_flight) == (SENT, 0)
        again = consumer.poll(SENT)
        assert len(again) == SENT
        assert consumer.ack(again) == []


def test_what_is_kept_when_the_program_ends_goes_back_whenever_that_is(client: RmqClient, make_topic: Any) -> None:
    """The end may come right after the job has looked, and found that nothing has to go yet."""
    topic = make_topic(TopicType.PRIORITY, lease=LEASE)
    client.producer(topic).send_many(PriorityMessage(f"m{index}", 100) for index in range(SENT))
    with client.consumer(topic) as consumer:
        care = consumer._return_buffer  # pyright: ignore[reportPrivateUsage]
        tidy, looked = care._flush, threading.Event()  # pyright: ignore[reportPrivateUsage]

        def end_then(everything: bool) -> None:
            try:
                tidy(everything)
            finally:
                if not looked.is_set():
                    looked.set()
                    care.ending.set()

        care._flush = end_then  # pyright: ignore[reportPrivateUsage]
        consumer._return_buffer.keep(select(consumer.poll(SENT)))  # pyright: ignore[reportPrivateUsage]
        assert looked.wait(60)
        care.finish(monotonic_s() + 60)
        assert client.inspect(topic).stats().in_flight == 0
    check_rest(client, topic, [])


def test_an_error_and_an_interruption_leave_it_for_the_next_poll(
    client: RmqClient, make_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic).send_many(PriorityMessage(f"m{index}", 100) for index in range(10))
    with client.consumer(topic) as consumer:
        consumer._return_buffer.keep(select(consumer.poll(10)))  # pyright: ignore[reportPrivateUsage]

        def fail(error: BaseException) -> None:
            def claim(*args: object, **options: object) -> None:
                raise error

            monkeypatch.setattr(Fetcher, "has_earlier", True)
            monkeypatch.setattr(Fetcher, "claim", claim)

        fail(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(3)
        fail(RmqError("no answer"))
        found = consumer.poll(3)
        assert len(found) == 3
        monkeypatch.undo()
        found += consumer.poll(100)
        assert len({each.text for each in found}) == 10
        assert consumer.ack(found) == []


def test_it_goes_back_where_no_poll_comes_and_what_has_lost_its_lease_is_not_returned(
    client: RmqClient, make_topic: Any
) -> None:
    topic = make_topic(TopicType.PRIORITY, lease=timedelta(seconds=10))
    client.producer(topic).send_many(PriorityMessage(f"m{index}", 100) for index in range(10))
    with client.consumer(topic) as idle, client.consumer(topic) as other:
        idle._return_buffer.keep(select(idle.poll(10)))  # pyright: ignore[reportPrivateUsage]
        found: list[Any] = []
        wait_until(lambda: found.extend(other.poll(10, 0.1)) or len(found) == 10)
        assert {each.attempt for each in found} == {1}
        assert other.ack(found[1:]) == []
        left = ReturnBuffer(idle._connections.runtime, topic, print)  # pyright: ignore[reportPrivateUsage]
        found[0].claim.lease_until_s = 0.0
        left.keep(select(found[:1]))
        assert left.take() == []
        left.close()
        found[0].claim.reopen([0])
        assert found[0].ack() is True
