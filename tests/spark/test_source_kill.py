"""Drivers that are killed with their JVM, and what the next one finds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet  # pyright: ignore[reportMissingTypeStubs]
import pytest

from rmq import PriorityMessage, RmqClient, Topic, TopicType
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark_long

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 200
numbers = count(1)


class Killed:
    """A topic with messages, a query that drains it in a process of its own, and what its sink has.

    The sink writes each batch to a folder that the batch's number names, over what was there: it is idempotent.
    """

    def __init__(self, client: RmqClient, folder: Path, **settings: Any) -> None:
        self.client, self._folder = client, folder
        self.topic = Topic(f"k{os.getpid()}-{next(numbers)}", TopicType.PRIORITY, slots=2, **settings)
        self.sent = [f"m{i}" for i in range(2_500)]
        client.producer(self.topic).send_many(PriorityMessage(content, 1_000) for content in self.sent)
        self.log = folder / "log"

    def start(self, checkpoint: str = "checkpoint", **more: Any) -> subprocess.Popen[bytes]:
        options = {
            "url": self.client.url,
            "topic": self.topic.name,
            "checkpoint": str(self._folder / checkpoint),
            "out": str(self._folder / f"{checkpoint}-out"),
            "log": str(self.log),
            "options": {"maxMessagesPerTrigger": 1_000},
            **more,
        }
        command = [sys.executable, "-m", "tests.spark.drain", json.dumps(options)]
        return subprocess.Popen(command, cwd=REPOSITORY, start_new_session=True, stderr=subprocess.DEVNULL)

    def words(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def kill_at(self, word: str, **more: Any) -> None:
        """Run the query until it notes a word, and kill it then with all of its processes."""
        process = self.start(**more)
        try:
            wait_until(lambda: word in self.words() or process.poll() is not None, LIMIT_S)
            assert word in self.words()
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def finish(self, **more: Any) -> None:
        """Run the query to its end."""
        assert self.start(available_now=True, **more).wait(LIMIT_S) == 0

    def written(self, batch: int | None = None, checkpoint: str = "checkpoint") -> list[str]:
        found = self._folder.glob(f"{checkpoint}-out/batch={'*' if batch is None else batch}/*.parquet")
        return [text for path in found for text in parquet.read_table(path)["content"].to_pylist()]

    def check_empty(self) -> None:
        stats = self.client.inspect(self.topic).stats()
        assert (stats.backlog, stats.in_flight, stats.waiting, stats.dead, stats.unaccounted) == (0, 0, 0, 0, 0)


@pytest.fixture
def killed(spark_client: RmqClient, tmp_path: Path) -> Killed:
    return Killed(spark_client, tmp_path, lease=timedelta(seconds=30))


def test_after_the_sinks_write_the_batch_comes_back_identical(killed: Killed) -> None:
    killed.kill_at("written 0", stall="written")
    before = Counter(killed.written(0))
    assert before.total() == 1_000
    killed.client.producer(killed.topic).send(PriorityMessage("urgent", 9_000))
    killed.finish()
    assert Counter(killed.written(0)) == before
    assert Counter(killed.written()) == Counter([*killed.sent, "urgent"]), "nothing lost, no duplicates"
    killed.check_empty()


def test_in_the_middle_of_a_batch_with_a_competitor_after_the_lease(spark_client: RmqClient, tmp_path: Path) -> None:
    killed = Killed(spark_client, tmp_path, lease=timedelta(seconds=5))
    killed.kill_at("stalled 0", stall="read")
    wait_until(lambda: spark_client.inspect(killed.topic).stats().in_flight > 0, LIMIT_S)
    theirs: set[str] = set()
    with spark_client.consumer(killed.topic) as consumer:

        def compete() -> bool:
            for delivery in consumer.poll(max_messages=50, timeout=0.2):
                theirs.add(delivery.text)
                delivery.nack(delay=timedelta(hours=1))
            swept = spark_client.inspect(killed.topic).stats().total("expired") > 0
            return swept and len(theirs) >= 100

        wait_until(compete, LIMIT_S)
    killed.finish()
    rows = killed.written()
    assert Counter(rows) == Counter(set(killed.sent) - theirs)
    stats = spark_client.inspect(killed.topic).stats()
    assert (stats.backlog, stats.in_flight, stats.waiting, stats.unaccounted) == (0, 0, len(theirs), 0)
    assert stats.total("acked") == len(rows)


def test_between_commit_log_and_ack_and_with_a_fresh_checkpoint(spark_client: RmqClient, tmp_path: Path) -> None:
    killed = Killed(spark_client, tmp_path, lease=timedelta(seconds=5))
    # the next trigger, and with it the ack, is an hour away
    killed.kill_at("committed 0", trigger="1 hour", stall="committed")
    stats = spark_client.inspect(killed.topic).stats()
    assert (stats.in_flight, stats.total("acked")) == (1_000, 0)
    # a new query without the old one's checkpoint: what that held comes back when its leases are over
    wait_until(lambda: spark_client.inspect(killed.topic).stats().backlog == 1_500, LIMIT_S)
    killed.finish(checkpoint="other")
    first = killed.written(checkpoint="other")

    def all_back() -> bool:
        killed.finish(checkpoint="other")
        return len(killed.written(checkpoint="other")) >= 2_500

    wait_until(all_back, LIMIT_S)
    assert set(first) <= set(killed.sent)
    assert Counter(killed.written(checkpoint="other")) == Counter(killed.sent), "nothing lost"
    killed.check_empty()
    killed.finish()
    assert set(killed.written()) <= set(killed.sent)
    killed.check_empty()


def test_committed_but_not_acked_is_acked_by_the_next_run_and_not_run_again(killed: Killed) -> None:
    killed.kill_at("committed 0", trigger="1 hour", stall="committed")
    assert spark_stats(killed) == (1_500, 1_000, 0)
    killed.finish()
    assert spark_stats(killed) == (0, 0, 2_500)
    assert Counter(killed.written()) == Counter(killed.sent)
    assert killed.words().count("written 0") == 1
    killed.check_empty()


@pytest.mark.parametrize("stall", ["told", "committed"])
def test_a_rest_longer_than_the_lease_brings_nothing_twice(stall: str, spark_client: RmqClient, tmp_path: Path) -> None:
    """With an hour between two triggers, and another consumer at work before the next driver comes."""
    killed = Killed(spark_client, tmp_path, lease=timedelta(seconds=3))
    process = killed.start(trigger="1 hour", stall=stall)
    try:
        wait_until(lambda: "committed 0" in killed.words() or process.poll() is not None, LIMIT_S)
        if stall == "told":
            wait_until(lambda: spark_stats(killed)[1:] == (0, 1_000), LIMIT_S)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    theirs: list[str] = []
    with spark_client.consumer(killed.topic) as consumer:

        def compete() -> bool:
            for delivery in consumer.poll(max_messages=1, timeout=0.2):
                theirs.append(delivery.text)
                delivery.ack()
            return spark_client.inspect(killed.topic).stats().in_flight == 0

        wait_until(compete, LIMIT_S)
    killed.finish()
    rows = killed.written()
    again = set(rows) & set(theirs)
    assert Counter(rows) == Counter((set(killed.sent) - set(theirs)) | again), "nothing is lost, and no row comes twice"
    assert not again or stall == "committed", "a worker may get what nobody had acked; Spark gets it once"
    killed.check_empty()


def spark_stats(killed: Killed) -> tuple[int, int, int]:
    stats = killed.client.inspect(killed.topic).stats()
    return stats.backlog, stats.in_flight, stats.total("acked")
