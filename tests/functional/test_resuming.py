"""A process that is killed and comes back under its old name, as a pod of a StatefulSet does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rmq import RmqClient, StreamMessage, Topic, TopicType
from tests.conftest import MakeTopic
from tests.support.slots import forget_topic
from tests.support.streams import check_stream
from tests.support.waiting import wait_until

PULLS = """
import os, sys, time
from rmq import RmqClient
url, topic, ledger, hold = sys.argv[1:]
with RmqClient(url) as client:
    with client.consumer(client.topic(topic), group="g", start="all", resume_as="pod-0") as consumer:
        while True:
            for delivery in consumer.poll(10, 1.0):
                with open(ledger, "a") as file:
                    file.write(f"{delivery.text} {delivery.attempt}\\n")
                time.sleep(float(hold))
                delivery.ack()
"""

LISTENS = """
import sys, time
from rmq import RmqClient
url, topic, ledger, hold = sys.argv[1:]
client = RmqClient(url)

@client.listener(client.topic(topic), group="g", start="all", resume_as="pod-0")
def handle(delivery):
    with open(ledger, "a") as file:
        file.write(f"{delivery.text} {delivery.attempt}\\n")
    time.sleep(float(hold))

client.run()
"""

LISTENS_IN_A_LOOP = """
import asyncio, sys
from rmq import RmqClient as Plain
from rmq.aio import RmqClient
url, topic, ledger, hold = sys.argv[1:]
with Plain(url) as plain:
    topic = plain.topic(topic)
client = RmqClient(url)

@client.listener(topic, group="g", start="all", resume_as="pod-0")
async def handle(delivery):
    with open(ledger, "a") as file:
        file.write(f"{delivery.text} {delivery.attempt}\\n")
    await asyncio.sleep(float(hold))

asyncio.run(client.run())
"""

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def topic(make_topic: MakeTopic, redis_client: Any, redis_url: str) -> Iterator[Topic]:
    """A topic on which nobody would see the end of a lease."""
    made = make_topic(TopicType.STREAM, checked=False, lease=timedelta(minutes=5))
    yield made
    try:
        with RmqClient(redis_url) as client:
            check_stream(client, redis_client, made)
    finally:
        forget_topic(redis_client, made.name)


@pytest.mark.parametrize("program", [PULLS, LISTENS, LISTENS_IN_A_LOOP], ids=["pulls", "listens", "asyncio"])
def test_a_killed_process_goes_on_at_once_under_its_old_name(
    program: str, topic: Topic, redis_url: str, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    ledger.touch()

    def begun() -> set[str]:
        return set(ledger.read_text().splitlines())

    with ExitStack() as ended, RmqClient(redis_url) as client:

        def start(hold_s: float) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-c", program, redis_url, topic.name, str(ledger), str(hold_s)]
            process = ended.enter_context(subprocess.Popen(command))
            ended.callback(process.kill)
            return process

        client.producer(topic).send(StreamMessage("a"))
        killed = start(60)
        wait_until(lambda: begun() == {"a 1"})
        killed.kill()
        killed.wait()
        start(0)
        wait_until(lambda: client.stream(topic).group("g").total("acked") == 1)
    assert begun() == {"a 1", "a 2"}
