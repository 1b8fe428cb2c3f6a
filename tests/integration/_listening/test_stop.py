"""A stop while Redis is down or frozen: it lasts no longer than its drain, and what follows it within seconds.

No bound of time here is near what it tells apart: a stop that waits for Redis would take twenty times as long.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path

import psutil
import pytest

from rmq import Delivery, PriorityMessage, RmqClient, Topic, TopicType
from tests.support.cli import Cli
from tests.support.servers import RedisServer
from tests.support.sides import Side
from tests.support.waiting import wait_until

FOR_EVER_S = 600.0
QUICK_S = 100.0

_numbers = count(1)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def topic() -> Topic:
    return Topic(f"stop{os.getpid()}-{next(_numbers)}", TopicType.PRIORITY, lease=timedelta(minutes=20))


def patient(side: Side, server: RedisServer) -> RmqClient:
    """Return a client that waits for Redis much longer than a stop may."""
    return side.client(server.url, timeout_s=FOR_EVER_S, deadline_s=FOR_EVER_S)


def take_away(server: RedisServer, how: str) -> None:
    if how == "frozen":
        server.pause()
    else:
        server.kill()


def bring_back(server: RedisServer, how: str) -> None:
    if how == "frozen":
        server.resume()
    else:
        server.start()


def listens(client: RmqClient, topic: Topic) -> bool:
    return any(each.topic == topic.name for worker in client.workers() for each in worker.listeners)


@pytest.mark.parametrize("how", ["frozen", "gone"])
def test_an_idle_process_does_not_wait_for_redis(how: str, side: Side, server: RedisServer, topic: Topic) -> None:
    with patient(side, server) as client:

        @client.listener(topic, threads=2)
        def handle(delivery: Delivery) -> None:
            del delivery

        client.start()
        wait_until(lambda: listens(client, topic))
        take_away(server, how)
        began_s = time.monotonic()
        assert client.stop(1.0) == []
        assert time.monotonic() - began_s < QUICK_S
        bring_back(server, how)


@pytest.mark.parametrize("hangs", [False, True], ids=["runs on", "hangs"])
@pytest.mark.parametrize("how", ["frozen", "gone"])
def test_no_call_to_redis_keeps_a_stop_longer_than_its_drain(
    how: str, hangs: bool, side: Side, server: RedisServer, topic: Topic
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    with patient(side, server) as client:

        def handle(deliveries: list[Delivery]) -> None:
            if not begun.is_set():
                deliveries[0].ack()  # what the stop tries to send
                begun.set()
                go_on.wait(QUICK_S)

        client.producer(topic).send_many(PriorityMessage(f"m{number}", 5) for number in range(20))
        client.listener(topic, batch=2, timeout=timedelta(seconds=1) if hangs else None)(handle)
        client.start()
        wait_until(begun.is_set)
        take_away(server, how)
        began_s = time.monotonic()
        assert client.stop(3.0)
        assert time.monotonic() - began_s < QUICK_S
        go_on.set()
        bring_back(server, how)


def test_outcomes_that_reach_no_redis_are_given_up_one_deadline_after_the_last_handler(
    side: Side, server: RedisServer, topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    with side.client(server.url, deadline_s=1.0) as client, caplog.at_level(logging.WARNING):

        @client.listener(topic)
        def handle(delivery: Delivery) -> None:
            begun.set()
            go_on.wait(QUICK_S)

        client.producer(topic).send(PriorityMessage("m", 5))
        client.start()
        wait_until(begun.is_set)
        server.kill()
        threading.Timer(1.5, go_on.set).start()  # so the stop is older than one deadline by then
        began_s = time.monotonic()
        assert client.stop(1_000.0) == []
        assert time.monotonic() - began_s < QUICK_S  # neither the drain nor the lease
        assert "1 outcome did not reach Redis before the stop" in caplog.text
        server.start()


WORKER = """
import rmq
client = rmq.RmqClient(timeout_s=600, deadline_s=600)

@client.listener(rmq.Topic({topic!r}, rmq.TopicType.PRIORITY))
def handle(delivery): ...
"""


@pytest.mark.parametrize("processes", [(), ("--processes", "2")], ids=["one", "two"])
@pytest.mark.parametrize("how", ["frozen", "gone"])
def test_a_worker_ends_on_sigterm_within_its_drain_while_redis_is_down(
    how: str, processes: tuple[str, ...], server: RedisServer, topic: Topic, tmp_path: Path
) -> None:
    (tmp_path / "jobs.py").write_text(WORKER.format(topic=topic.name))
    cli = Cli(server.url)
    with (
        RmqClient(server.url) as client,
        cli.process("worker", "jobs:client", "--drain", "20", *processes, cwd=tmp_path) as process,
    ):
        wait_until(lambda: len(client.workers()) == (2 if processes else 1), QUICK_S)
        take_away(server, how)
        try:
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=QUICK_S)
            assert (process.returncode, out) == (0, ""), err  # no supervisor had to kill one
        finally:
            for each in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []:
                each.kill()
            bring_back(server, how)
