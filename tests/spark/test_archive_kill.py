"""Archive jobs that are killed with their JVM, at every step: each entry stays in the table once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import count
from pathlib import Path

import pyarrow.dataset as dataset  # pyright: ignore[reportMissingTypeStubs]
import pytest
from pyspark.sql import SparkSession

from rmq import Retention, RmqClient, StreamMessage, Topic, TopicType
from rmq.spark.jobs.archive_stream import whole_stream
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark_long

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 200
HOUR_MS = 3_600_000
OLD, NEW = 3_000, 20
numbers = count(1)


class Archiving:
    """A topic with old entries of three days and some new ones, and a job in a process of its own."""

    def __init__(self, client: RmqClient, folder: Path) -> None:
        self.client, self._folder, self.out = client, folder, str(folder / "archive")
        self.topic = Topic(
            f"a{os.getpid()}-{next(numbers)}", TopicType.STREAM, slots=8, retention=Retention(max_length=None)
        )
        producer = client.producer(self.topic)
        first_ms = 1_780_000_000_000
        old = (StreamMessage(f"old{n}", id=f"{first_ms + n * 48 * HOUR_MS // OLD}-0") for n in range(OLD))
        producer.send_many(old)
        producer.send_many(StreamMessage(f"new{n}") for n in range(NEW))
        self.all = Counter([*(f"old{n}" for n in range(OLD)), *(f"new{n}" for n in range(NEW))])

    def start(self, stall: str | None = None, seconds: float = 0) -> subprocess.Popen[bytes]:
        settings = {
            "topic": self.topic.name,
            "out": self.out,
            "url": self.client.url,
            "older_than_ms": HOUR_MS,
            "batch": 1_000,
        }
        options = {"settings": settings, "log": str(self._folder / "log"), "stall": stall, "seconds": seconds}
        command = [sys.executable, "-m", "tests.spark.archiving", json.dumps(options)]
        return subprocess.Popen(command, cwd=REPOSITORY, start_new_session=True)

    def has_said(self, step: str) -> bool:
        log = self._folder / "log"
        return log.exists() and any(said.startswith(step) for said in log.read_text().splitlines())

    def kill_at(self, step: str, after_s: float) -> None:
        """Run the job until it begins a step, and kill it with all of its processes so much later."""
        process = self.start(None if after_s else step, 600)
        try:
            wait_until(lambda: self.has_said(step) or process.poll() is not None, LIMIT_S)
            assert self.has_said(step)
            time.sleep(after_s)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def stored(self) -> Counter[str]:
        """What any reader of Parquet finds in the archive, without Spark's checkpoint."""
        found = dataset.dataset(f"{self.out}/entries", partitioning="hive")
        return Counter(content.decode() for content in found.to_table(["content"])["content"].to_pylist())


@pytest.fixture
def archiving(spark_client: RmqClient, tmp_path: Path) -> Archiving:
    return Archiving(spark_client, tmp_path)


@pytest.mark.parametrize(
    ("step", "after_s"),
    [
        ("archiving entries", 0),
        ("batch 0: writing", 0),
        ("batch 1: writing", 0.3),
        ("batch 1: writing", 1.0),
        ("batch 1: written", 0),
        ("batch 2: written", 0),
        ("moving group", 0),
        ("trimming", 0),
        ("trimmed", 0),
    ],
)
def test_a_kill_loses_nothing_and_repeats_nothing(
    spark: SparkSession, archiving: Archiving, step: str, after_s: float
) -> None:
    def table() -> Counter[str]:
        frame = whole_stream(spark, archiving.client.url, archiving.topic.name, archiving.out)
        return Counter(row.text for row in frame.selectExpr("cast(content as string) text").collect())

    archiving.kill_at(step, after_s)
    assert table() == archiving.all
    assert archiving.start().wait(LIMIT_S) == 0
    assert table() == archiving.all
    old = Counter({content: 1 for content in archiving.all if content.startswith("old")})
    assert archiving.stored() == old
    assert archiving.client.stream(archiving.topic).stats().length == NEW


def test_of_two_jobs_at_once_one_works(spark: SparkSession, archiving: Archiving) -> None:
    jobs = [archiving.start("batch 1: writing", 15) for _ in range(2)]
    assert sorted(job.wait(LIMIT_S) for job in jobs) == [0, 1]
    frame = whole_stream(spark, archiving.client.url, archiving.topic.name, archiving.out)
    assert Counter(row.text for row in frame.selectExpr("cast(content as string) text").collect()) == archiving.all
    assert archiving.stored() == Counter({content: 1 for content in archiving.all if content.startswith("old")})
    assert archiving.client.stream(archiving.topic).stats().length == NEW
