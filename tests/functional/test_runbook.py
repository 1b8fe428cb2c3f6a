"""Every command of the runbook does what it says."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq import Delivery, ImmediateRetry, PriorityMessage, RmqClient, Topic, TopicType
from tests.support.cli import Cli
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

RUNBOOK = (Path(__file__).parents[2] / "docs" / "operate" / "runbook.md").read_text("utf-8")
COMMANDS = re.findall(r"^\$ rmq (.+)$", RUNBOOK, re.MULTILINE)


@pytest.fixture
def night() -> Iterator[Cli]:
    """A server of its own, where a worker hangs on one message and some have died."""
    topic = Topic("price-image", TopicType.PRIORITY, slots=4, max_retries=0, retry=ImmediateRetry())
    hanging, over = threading.Event(), threading.Event()
    with RedisServer() as server, RmqClient(server.url) as client:

        @client.listener(topic)
        def work(delivery: Delivery) -> None:
            if delivery.text.startswith("bad"):
                raise TimeoutError("no answer from shop 9 within 5 s")
            hanging.set()
            over.wait(100)

        producer = client.producer(topic)
        producer.send_many(PriorityMessage(f"bad:{i}", 500) for i in range(5))
        client.start()
        wait_until(lambda: client.inspect(topic).stats().dead == 5, 60)
        producer.send_many(PriorityMessage(f"item:{i}", 100 + i) for i in range(60))
        assert hanging.wait(60)
        wait_until(lambda: client.inspect(topic).find("item:43").stored, 60)  # not begun, and back from the worker
        wait_until(client.workers, 60)
        try:
            yield Cli(server.url)
        finally:
            over.set()


def test_there_are_ten_questions() -> None:
    assert re.findall(r"^## (\d+)\.", RUNBOOK, re.MULTILINE) == [str(number) for number in range(1, 11)]
    assert len(re.findall(r"^(?:Pages?: .*)$", RUNBOOK, re.MULTILINE)) == 10


def test_every_command_of_the_runbook_works(night: Cli) -> None:
    assert len(COMMANDS) >= 12
    said = {command: night(*shlex.split(command), env={"COLUMNS": "120"}).out for command in COMMANDS}
    for command, expected in {
        "stats price-image": "price-image", "workers": "price-image", "audit price-image": "when",
        "find price-image bad:1": "TimeoutError", "dead list price-image --limit 3": "no answer from shop 9",
        "search price-image 'item:4?' --limit 3": "item:4", "pause price-image": "4 slots paused",
        "resume price-image": "4 slots resumed", "promote price-image item:43": "promoted: item:43",
        "cancel price-image item:44": "cancelled: item:44", "purge price-image --yes": "purged",
        "dead redrive price-image --error TimeoutError --rate 100": "5 redriven",
    }.items():  # fmt: skip
        if command != "audit price-image":  # nobody had steered anything by then
            assert expected in said[command], command
    assert "cancel" in night("audit", "price-image").out
