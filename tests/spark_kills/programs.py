"""The programs that are killed. `python -m tests.spark_kills.programs OPTIONS`, options as JSON.

Several of them share a driver, each in a thread of its own. Each one goes on where the run before it was killed, and
works until it is killed, too. With `last` it ends by itself once all is done.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from rmq.errors import RmqError
from rmq.spark import keyed, refuse, register
from rmq.spark.jobs.archive_stream import ArchiveSettings, run, whole_stream
from tests.spark.sessions import make_session
from tests.spark_kills.words import Log

SLOW = "Python worker failed to connect back"
"""What Spark says where a Python process has not started within 10 s. No setting changes that; a query starts again."""

CHUNK = 100
"""Rows of a call of a sink: so few that a kill finds a batch half sent."""


@dataclass(frozen=True)
class Given:
    """What a program was told.

    Attributes:
        url: Where Redis is.
        folder: For checkpoints and files.
        log: Where words go.
        last: Whether to end once all is done.
        more: What only this program needs.
    """

    url: str
    folder: Path
    log: Log
    last: bool
    more: dict[str, Any]


_STARTING = threading.Lock()


class _Parts:
    """Which programs of this driver are ready: batches wait for all, and do not slow down what still starts."""

    def __init__(self) -> None:
        self._lock, self._all = threading.Lock(), threading.Event()
        self._missing: set[Path] = set()

    def expect(self, folders: Iterable[Path]) -> None:
        """Wait for the programs of these folders."""
        self._missing = set(folders)

    def ready(self, given: Given) -> None:
        """Note that a program is ready."""
        given.log.say("ready")
        with self._lock:
            self._missing.discard(given.folder)
            if not self._missing:
                self._all.set()

    def wait(self) -> None:
        """Wait until all are."""
        self._all.wait()


_parts = _Parts()

Program = Callable[[SparkSession, Given], None]


def main() -> None:
    told: dict[str, Any] = json.loads(sys.argv[1])
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    spark = make_session("local[2]")
    parts: list[tuple[Program, Given]] = []
    for part in told["parts"]:
        folder = Path(part["folder"])
        log = Log(folder / "log", told["life"])
        parts.append((PROGRAMS[part["program"]], Given(told["url"], folder, log, told["last"], part["told"])))
    _parts.expect(given.folder for _, given in parts)
    with ThreadPoolExecutor(len(parts)) as pool:
        ends = [pool.submit(_run, program, spark, given) for program, given in parts]
        for end in as_completed(ends):
            end.result()


def _run(program: Program, spark: SparkSession, given: Given) -> None:
    try:
        register(spark)  # a thread's own
        program(spark, given)
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # and not only once all others end


def end_with(parent: int) -> None:
    """End where those who started this are gone: it is in a session of its own."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def files(spark: SparkSession, given: Given) -> None:
    """Drain topics into Parquet, a folder for each batch, over what an earlier run has left of it."""

    def write(frame: DataFrame, number: int) -> None:
        _parts.wait()
        rows = frame.selectExpr("cast(content as string) content", "slot")
        rows.write.mode("overwrite").parquet(str(given.folder / f"files/batch={number}"))
        given.log.say("written", number)

    _until_the_end(given, [_started(given, "files", _stream(spark, given).writeStream.foreachBatch(write))])


def refusals(spark: SparkSession, given: Given) -> None:
    """The same, and refuse those that end with 7 for good, and those that end with 5 once."""

    def write(frame: DataFrame, number: int) -> None:
        _parts.wait()
        text = frame.persist().withColumn("text", frame.content.cast("string"))
        given.log.say("ran", number, [row.text for row in text.select("text").collect()])
        bad, early = "text like '%7'", "text like '%5' and attempt = 1"
        refuse(text.where(bad), "a bad number", url=given.url)
        refuse(text.where(early), "not yet", delay=timedelta(seconds=1), url=given.url)
        rows = text.where(f"not ({bad}) and not ({early})").selectExpr("text content", "slot")
        rows.write.mode("overwrite").parquet(str(given.folder / f"files/batch={number}"))
        given.log.say("written", number)
        frame.unpersist()

    _until_the_end(given, [_started(given, "files", _stream(spark, given).writeStream.foreachBatch(write))])


def fan_out(spark: SparkSession, given: Given) -> None:
    """Send each batch to each of several topics, as docs/guide/spark-write.md has it."""

    def write(frame: DataFrame, number: int) -> None:
        _parts.wait()
        rows = frame.persist().selectExpr("cast(content as string) content", "1 + slot as priority")
        given.log.say("ran", number, [row.content for row in rows.collect()])
        for name in given.more["targets"]:
            once = {"txnAppId": f"to-{name}", "txnVersion": number}
            writer = rows.write.format("rmq").mode("append").options(url=given.url, topic=name, chunkSize=CHUNK, **once)
            writer.save()
        given.log.say("written", number)
        frame.unpersist()

    _until_the_end(given, [_started(given, "fan-out", _stream(spark, given).writeStream.foreachBatch(write))])


def sinks(spark: SparkSession, given: Given) -> None:
    """Send a stream to several topics, a query for each."""
    queries: list[StreamingQuery] = []
    for name, columns in given.more["targets"].items():
        options = {**given.more["source"], "group": name}
        stream = spark.readStream.format("rmq").options(url=given.url, **options).load()
        rows = keyed(stream.selectExpr(*columns), 4)  # needed where each send counts
        writer = rows.writeStream.format("rmq").options(url=given.url, topic=name, chunkSize=CHUNK, idempotent=True)
        queries.append(_started(given, name, writer))
    _until_the_end(given, queries)


def once(spark: SparkSession, given: Given) -> None:
    """Write tables to a topic that sums, one after the other, each under a name of its own."""
    options = {"url": given.url, "topic": given.more["topic"], "chunkSize": CHUNK, "maxRate": given.more["rate"]}
    done = given.folder / "done"
    done.mkdir(exist_ok=True)
    _parts.ready(given)
    for job in count(len(list(done.iterdir()))):
        rows = spark.range(given.more["rows"], numPartitions=4)
        rows = rows.selectExpr(f"concat('c', id % {given.more['contents']}) content", "1.0 value")
        given.log.say("job", job)
        keyed(rows, 4).write.format("rmq").mode("append").options(**options, once=f"job-{job}").save()
        given.log.say("written", job)
        (done / str(job)).touch()
        if given.last:
            return


def archive(spark: SparkSession, given: Given) -> None:
    """Archive what is old, again and again; first look at archive and topic as one table, if told to."""
    settings = ArchiveSettings(url=given.url, out=str(given.folder / "archive"), **given.more["settings"])
    if given.more["check"]:
        table = whole_stream(spark, given.url, settings.topic, settings.out)
        found = Counter(row.text for row in table.selectExpr("cast(content as string) text").collect())
        expected = {f"{name}{n}": 1 for name, number in given.more["sent"].items() for n in range(number)}
        wrong = len(expected.keys() ^ found.keys()) + sum(times != 1 for times in found.values())
        given.log.say("looked", wrong)

    def say(step: str) -> None:
        if step.startswith("archiving"):
            _parts.ready(given)  # and again in each round
        elif step.endswith(": written"):
            given.log.say("written", int(step.split()[1].rstrip(":")))
        else:
            given.log.say(step)

    while True:
        try:
            run(spark, settings, say)
        except RmqError as error:
            if SLOW not in str(error):
                raise
            continue
        if given.last:
            return
        time.sleep(0.5)


def _stream(spark: SparkSession, given: Given) -> DataFrame:
    return spark.readStream.format("rmq").options(url=given.url, **given.more["source"]).load()


def _started(given: Given, name: str, writer: DataStreamWriter) -> StreamingQuery:
    writer = writer.option("checkpointLocation", str(given.folder / "checkpoints" / name))
    # one after the other: Spark gives a Python process 10 s to start, which many at once exceed on a busy machine
    with _STARTING:
        trigger = writer.trigger(availableNow=True) if given.last else writer.trigger(processingTime="0 seconds")
        while True:
            query = trigger.start()
            while query.isActive and query.status["message"].startswith("Initializing"):
                time.sleep(0.2)
            if SLOW not in str(query.exception()):
                return query


def _until_the_end(given: Given, queries: list[StreamingQuery]) -> None:
    _parts.ready(given)
    for query in queries:
        query.awaitTermination()


PROGRAMS: dict[str, Program] = {
    "archive": archive,
    "fan-out": fan_out,
    "files": files,
    "once": once,
    "refusals": refusals,
    "sinks": sinks,
}

if __name__ == "__main__":
    main()
