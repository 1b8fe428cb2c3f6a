"""Spark as it is deployed: executors in processes of their own, one of which dies; clients that only speak Connect."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyspark
import pytest

from rmq import PriorityMessage, RmqClient, StreamMessage, Topic, TopicType
from tests.spark.frames import stored

pytestmark = pytest.mark.spark_long

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 900
NUMBER = 3_000


def run(module: str, folder: Path, **options: Any) -> dict[str, Any]:
    """Run a program of this folder with all its processes, and return its report."""
    home, report = folder / "spark", folder / "report"
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)  # executors leave their folders in SPARK_HOME/work
    options = {**options, "number": NUMBER, "folder": str(folder), "report": str(report)}
    command = [sys.executable, "-m", f"tests.spark.{module}", json.dumps(options)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env={**os.environ, "SPARK_HOME": str(home)}, stderr=log, start_new_session=True
        )
        try:
            code = process.wait(LIMIT_S)
        finally:
            with suppress(ProcessLookupError):  # all have ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert code == 0, (folder / "log").read_text()[-5_000:]
    return json.loads(report.read_text())


def test_an_executor_is_killed_in_the_middle_of_each_job(spark_client: RmqClient, tmp_path: Path) -> None:
    number = os.getpid()
    first, second, filled = (
        Topic(f"two-{number}-{name}", TopicType.PRIORITY, slots=4) for name in ("first", "second", "filled")
    )
    log = Topic(f"two-{number}-log", TopicType.STREAM, slots=4)
    sent = {f"m{i}": 1 for i in range(NUMBER)}
    for topic in (first, second):
        spark_client.producer(topic).send_many(PriorityMessage(content, 1_000) for content in sent)
    spark_client.producer(filled)
    spark_client.producer(log).send(StreamMessage(content="before"))

    names = {"first": first.name, "second": second.name, "log": log.name, "filled": filled.name}
    seen = run("executors", tmp_path, url=spark_client.url, **names)

    assert seen.pop("killed") == 3
    assert seen == {"first": sent, "again": sent}, "the tasks of the dead executor were tried again, with the same rows"
    for topic in (first, second):
        stats = spark_client.inspect(topic).stats()
        assert (stats.backlog, stats.in_flight, stats.dead, stats.unaccounted) == (0, 0, 0, 0)
        assert stats.total("acked") == NUMBER
    entries = Counter(entry.content for entry in spark_client.stream(log).range())
    assert entries == {b"before": 1} | {content.encode(): 1 for content in sent}, "idempotent: no entry came twice"
    assert set(stored(spark_client, filled)) == {content.encode() for content in sent}


def test_spark_connect(spark_client: RmqClient, tmp_path: Path) -> None:
    filled, log = f"connect-{os.getpid()}", f"connect-log-{os.getpid()}"
    saw = run("connect", tmp_path, url=spark_client.url, filled=filled, log=log)
    assert saw["connect"] == "pyspark.sql.connect.session"
    assert saw["read"] == NUMBER
    assert (saw["ended"], saw["behind"][:2]) == (True, [NUMBER // 2, 0])
    assert saw["drained"] == sorted(["last", *(f"m{i}" for i in range(NUMBER))])
    assert "no option topik; did you mean topic?" in saw["error"]
    stats = spark_client.inspect(filled).stats()
    assert (stats.backlog, stats.in_flight, stats.total("acked")) == (0, 0, NUMBER)
