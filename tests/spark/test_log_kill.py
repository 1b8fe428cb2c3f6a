"""Drivers of a query that follows a STREAM topic, killed with their JVM: batches come back identical, and only once."""

from __future__ import annotations

import os
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from rmq import Retention, RmqClient, StreamMessage, Topic, TopicType
from tests.spark.test_source_kill import Killed

pytestmark = pytest.mark.spark_long

numbers = count(1)
OPTIONS = {"options": {"maxMessagesPerTrigger": 1_000, "group": "files", "start": "all"}}


@pytest.fixture
def killed(spark_client: RmqClient, tmp_path: Path) -> Killed:
    killed = Killed(spark_client, tmp_path)
    retention = Retention(max_length=0, approximate=False)
    killed.topic = Topic(f"log{os.getpid()}-{next(numbers)}", TopicType.STREAM, slots=2, retention=retention)
    spark_client.producer(killed.topic).send_many(StreamMessage(content) for content in killed.sent)
    return killed


@pytest.mark.parametrize("stall", ["read", "written", "committed"])
def test_a_kill_loses_nothing_and_repeats_nothing(killed: Killed, stall: str) -> None:
    stream = killed.client.stream(killed.topic)
    word = {"read": "stalled 0", "written": "written 0", "committed": "committed 0"}[stall]
    killed.kill_at(word, stall=stall, trigger="1 hour", **OPTIONS)
    before = Counter(killed.written(0))
    assert before.total() == (0 if stall == "read" else 1_000)
    stream.trim()
    # the next trigger, and with it the move of the group, is an hour away
    assert stream.stats().length == 2_500, "a clean-up leaves what the group has not"
    killed.client.producer(killed.topic).send(StreamMessage("later"))
    killed.finish(**OPTIONS)
    if before:
        assert Counter(killed.written(0)) == before
    assert Counter(killed.written()) == Counter([*killed.sent, "later"]), "nothing lost, no duplicates"
    assert stream.group("files").lag == 0
    stream.trim()
    assert stream.stats().length == 0
