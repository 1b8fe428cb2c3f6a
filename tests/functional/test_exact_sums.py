"""Sums and collections stay exact: replies are cut, senders and workers are killed, Redis restarts and fails over."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rmq import (
    Collect,
    Fixed,
    ImmediateRetry,
    Merge,
    RangeMergeMessage,
    RmqClient,
    RmqError,
    Sum,
    Topic,
    TopicType,
)
from tests.support.clients import left_in, stats_of
from tests.support.core import Reducer
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer
from tests.support.topologies import SentinelServers
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]
SENDS = 10_000
KEYS = 40
COLLECT = Collect(max_items=100_000, max_bytes=1_048_576)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(("appendonly yes", "appendfsync always")) as server:
        yield server


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    with server.connect() as client:
        client.flushall()
    with Proxy(server.port) as proxy:
        yield proxy


def topic_of(reduce: Reducer, **settings: object) -> Topic:
    merge = Merge(reduce, window=Fixed("1ms"))
    return Topic("exact", TopicType.RANGE_MERGE, slots=4, merge=merge, retry=ImmediateRetry(), **settings)  # pyright: ignore[reportArgumentType]


def message(number: int, reduce: Reducer) -> RangeMergeMessage:
    """The send of a number: its key counts it, or collects it."""
    return RangeMergeMessage(f"k{number % KEYS}", body=1 if isinstance(reduce, Sum) else str(number))


def drained(client: RmqClient, topic: Topic) -> Counter[int]:
    """Handle what is there; return how often each number was handled, or of a Sum each key."""
    found: Counter[int] = Counter()
    with client.consumer(topic) as consumer:
        while deliveries := consumer.poll(100, timeout=0.5):
            for delivery in deliveries:
                assert delivery.merged == (len(delivery.items) or delivery.value)
                if delivery.items:
                    found.update(map(int, delivery.items))
                else:
                    found[int(delivery.content[1:])] += int(delivery.value)
            consumer.ack(deliveries)
    assert left_in(stats_of(client, topic)) == (0, 0, 0, 0)
    return found


def every_send_once(number: int, reduce: Reducer) -> Counter[int]:
    """What must be handled after so many sends."""
    return Counter(each % KEYS if isinstance(reduce, Sum) else each for each in range(number))


@pytest.fixture(params=[Sum(), COLLECT], ids=["sum", "collect"])
def reduce(request: pytest.FixtureRequest) -> Reducer:
    return request.param


@pytest.mark.slow
def test_replies_that_are_cut_at_random_count_nothing_twice(proxy: Proxy, server: RedisServer, reduce: Reducer) -> None:
    topic, draw, done = topic_of(reduce), random.Random(7), threading.Event()

    def cut() -> None:
        while not done.wait(0.01):
            proxy.cut_before_reply(draw.randint(1, 20), command="EVALSHA")

    with RmqClient(proxy.url, deadline_s=60.0) as client, RmqClient(server.url) as direct:
        producer = client.producer(topic)
        producer.send(message(0, reduce))
        cutter = threading.Thread(target=cut)
        cutter.start()
        try:
            for number in range(1, SENDS // 5):
                producer.send(message(number, reduce))
            for first in range(SENDS // 5, SENDS, 500):
                numbers = range(first, min(first + 500, SENDS))
                producer.send_many((message(number, reduce) for number in numbers), fold=first % 1_000 == 0)
        finally:
            done.set()
            cutter.join()
            proxy.normal()
        assert proxy.cuts > 20
        assert drained(direct, topic) == every_send_once(SENDS, reduce)


SENDER = """
import sys
from rmq import RangeMergeMessage, RmqClient
url, first = sys.argv[1], sys.argv[2]
with RmqClient(url) as client:
    producer = client.producer(client.topic("exact"))
    for number in range({sends}):
        body = 1 if first == "sum" else str(number)
        producer.send(RangeMergeMessage(f"k{{number % {keys}}}", body=body), once=f"send-{{number}}")
        print(number, flush=True)
"""


@pytest.mark.slow
def test_a_sender_that_is_killed_and_begins_again_counts_nothing_twice(
    proxy: Proxy, server: RedisServer, reduce: Reducer
) -> None:
    del proxy  # has emptied the server
    topic, sends = topic_of(reduce), 600
    with RmqClient(server.url) as client:
        client.producer(topic)
        kind = "sum" if isinstance(reduce, Sum) else "collect"
        command = [sys.executable, "-c", SENDER.format(sends=sends, keys=KEYS), server.url, kind]
        for until in (100, 350, sends - 1):
            process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY)
            assert process.stdout is not None
            for line in process.stdout:
                if int(line) == until and until < sends - 1:
                    process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
        assert drained(client, topic) == every_send_once(sends, reduce)


WORKER = """
import sys, time
from rmq import RmqClient
with RmqClient(sys.argv[1]) as client, client.consumer(client.topic("exact")) as consumer:
    print(len(consumer.poll(100, timeout=10)), flush=True)
    time.sleep(3600)
"""


@pytest.mark.slow
def test_what_a_killed_worker_held_folds_into_what_was_sent_since(
    proxy: Proxy, server: RedisServer, reduce: Reducer
) -> None:
    del proxy
    topic = topic_of(reduce, lease="1s")
    with RmqClient(server.url) as client:
        producer = client.producer(topic)
        producer.send_many(message(number, reduce) for number in range(1_000))
        for turn in range(3):
            process = subprocess.Popen(
                [sys.executable, "-c", WORKER, server.url], stdout=subprocess.PIPE, cwd=REPOSITORY
            )
            assert process.stdout is not None
            assert int(process.stdout.readline()) > 0
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
            first = 1_000 * (turn + 1)
            producer.send_many(message(number, reduce) for number in range(first, first + 1_000))
        assert wait_until(lambda: _in_flight_over(client, topic), timeout=60)
        assert drained(client, topic) == every_send_once(4_000, reduce)


def _in_flight_over(client: RmqClient, topic: Topic) -> bool:
    """Whether a sweep has put back all that was in flight."""
    with client.consumer(topic) as consumer:
        for delivery in consumer.poll(100):
            delivery.release()
    return stats_of(client, topic).in_flight == 0


def _again(step: Callable[[], object]) -> None:
    """Repeat a step until it gets through."""
    deadline_s = time.monotonic() + 120
    while True:
        try:
            step()
        except RmqError:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        else:
            return


def test_redis_is_killed_and_restarted_between(proxy: Proxy, server: RedisServer, reduce: Reducer) -> None:
    del proxy
    topic, sent = topic_of(reduce), threading.Event()
    with RmqClient(server.url, deadline_s=2.0) as client:
        producer = client.producer(topic)

        def send() -> None:
            for number in range(1_500):
                _again(lambda number=number: producer.send(message(number, reduce), once=f"restart-{number}"))
            sent.set()

        sender = threading.Thread(target=send)
        sender.start()
        for _ in range(3):
            sent.wait(0.3)
            server.kill()
            server.start()
        sender.join()
        assert drained(client, topic) == every_send_once(1_500, reduce)


@pytest.mark.slow
def test_a_failover_with_replicated_sends(reduce: Reducer) -> None:
    topic = topic_of(reduce)
    with SentinelServers() as servers:
        with RmqClient(servers.url, durability="replicated", timeout_s=5.0, deadline_s=10.0) as client:
            producer = client.producer(topic)
            servers.take_for_dead_after()

            def send(number: int) -> None:
                _again(lambda: producer.send(message(number, reduce), once=f"failover-{number}"))

            for number in range(200):
                send(number)
            old = servers.master
            old.kill()
            wait_until(lambda: servers.master is not old, timeout=60)
            old.start()
            with suppress(RmqError):
                send(199)  # a repeat of what the old master has confirmed
            for number in range(200, 400):
                send(number)
            assert drained(client, topic) == every_send_once(400, reduce)


def test_seventeen_failures_then_dead_beside_fresh_copies_and_back(
    proxy: Proxy, server: RedisServer, reduce: Reducer
) -> None:
    del proxy
    topic = topic_of(reduce)
    with RmqClient(server.url) as client:
        producer = client.producer(topic)
        number = 0

        def send(count: int) -> None:
            nonlocal number
            producer.send_many(message(KEYS * each, reduce) for each in range(number, number + count))
            number += count

        for _ in range(2):  # dies twice: the second death folds into the first
            send(5)
            with client.consumer(topic) as consumer:
                for _ in range(topic.max_retries + 1):
                    (delivery,) = consumer.poll(1, timeout=10)
                    send(1)
                    delivery.nack(delay="0s", error="no")
            assert stats_of(client, topic).dead <= 1
        client.dead(topic).redrive()
        send(3)
        found = drained(client, topic)
        assert sum(found.values()) == number
        if not isinstance(reduce, Sum):
            assert set(found.values()) == {1}
