"""Writes on which each send counts, begun by some tasks and gone on with by others: each row counts once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rmq import Collect, Max, Merge, RmqClient, Sum, Topic, TopicType
from rmq.errors import InvalidValueError
from rmq.spark import keyed
from tests.spark.merging import Value, sink_of, stored
from tests.support.core import Reducer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

LIMIT_S = 200
REPOSITORY = Path(__file__).parents[2]
SCHEMA = "content string, body string, priority long"
WIDE = Collect(max_items=1_000, max_bytes=65_536)
numbers = count(1)


@pytest.fixture
def make(spark_client: RmqClient) -> Callable[..., Topic]:
    def run(reducer: Reducer, **settings: Any) -> Topic:
        topic = Topic(
            f"keyed-{os.getpid()}-{next(numbers)}", TopicType.PRIORITY, slots=2, merge=Merge(reducer), **settings
        )
        spark_client.producer(topic)
        return topic

    return run


def rows_of(spark: SparkSession, topic: Topic, partitions: int, contents: int = 300) -> DataFrame:
    """Return 3,000 rows, ten of each of 300 contents, cut into so many partitions."""
    summed = topic.merge is not None and topic.merge.kind == "S"
    body = "id body" if summed else "cast(id as string) body"
    frame = spark.range(0, 3_000, 1, partitions)
    return frame.selectExpr(f"concat('c', id % {contents}) content", body, "5000L priority")


def expected(topic: Topic) -> dict[bytes, Value]:
    found: dict[bytes, Value] = {}
    for number in range(300):
        ids = range(number, 3_000, 300)
        summed = topic.merge is not None and topic.merge.kind == "S"
        items = () if summed else tuple(sorted(b"%d" % each for each in ids))
        found[b"c%d" % number] = Value(10, sum(ids) if summed else 10, None, items)
    return found


def found_in(client: RmqClient, topic: Topic) -> dict[bytes, Value]:
    values = stored(client, topic)
    return {content: value._replace(items=tuple(sorted(value.items))) for content, value in values.items()}


@pytest.mark.parametrize("reducer", [Sum(), WIDE], ids=["sum", "collect"])
@pytest.mark.parametrize("names", [{"once": "n"}, {"txnAppId": "n", "txnVersion": 3}], ids=["once", "txnAppId"])
def test_a_write_that_broke_off_goes_on_with_other_cores_and_counts_each_row_once(
    spark: SparkSession, spark_client: RmqClient, make: Callable[..., Topic], reducer: Reducer, names: dict[str, Any]
) -> None:
    topic, url = make(reducer), spark_client.url
    begun = keyed(rows_of(spark, topic, 2), partitions=4).where("partition = 3")
    sink_of(begun, url, topic, mergeRows=20, **names).save() if "once" in names else _one_task(begun, url, topic, names)
    sent = found_in(spark_client, topic)
    assert 0 < len(sent) < 300
    chunk = 64 if reducer == WIDE else 1_000  # each row of a chunk may bring an item as large as the bound
    other = f"was started with 4 partitions, mergeRows=20 and chunkSize={chunk}, and is now run with 2"
    with pytest.raises(Exception, match=other):
        sink_of(keyed(rows_of(spark, topic, 2), partitions=2), url, topic, mergeRows=20, **names).save()
    assert found_in(spark_client, topic) == sent, "refused before the first send"
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 70)
    try:
        for partitions in (5, 1):
            sink_of(keyed(rows_of(spark, topic, partitions), 4), url, topic, mergeRows=20, **names).save()
            assert found_in(spark_client, topic) == expected(topic)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def _one_task(frame: DataFrame, url: str, topic: Topic, names: dict[str, Any]) -> None:
    """Write a version that breaks off: behind the rows is one that ends its job, once they are all sent."""
    rows = frame.count()

    def last(batches: Iterator[Any]) -> Iterator[Any]:
        with RmqClient(url) as client:
            view = client.inspect(topic)
            wait_until(lambda: view.stats().total("accepted") == rows, message="the rows before the bad one are sent")
        yield from batches

    bad = (
        frame.sparkSession.sql("select null :: string content")
        .mapInArrow(last, "content string")
        .select(
            F.col("content"),
            *(
                F.lit(None).cast(frame.schema[name].dataType).alias(name, metadata=frame.schema[name].metadata)
                for name in frame.columns[1:]
            ),
        )
    )
    with pytest.raises(Exception, match="but is in partition"):
        sink_of(frame.union(bad), url, topic, mergeRows=20, **names).save()


@pytest.mark.parametrize("reducer", [Sum(), WIDE], ids=["sum", "collect"])
def test_a_batch_of_a_stream_that_broke_off_counts_each_row_once(
    spark: SparkSession, spark_client: RmqClient, make: Callable[..., Topic], reducer: Reducer, tmp_path: Path
) -> None:
    topic, url, source, checkpoint = make(reducer), spark_client.url, str(tmp_path / "source"), tmp_path / "checkpoint"
    rows_of(spark, topic, 3).write.json(source)
    kind = "content string, body long, priority long" if isinstance(reducer, Sum) else SCHEMA

    def drain(partitions: int | None, condition: str = "true") -> None:
        stream = spark.readStream.schema(kind).json(source)
        rows = stream if partitions is None else keyed(stream, partitions).where(condition)
        writer = rows.writeStream.format("rmq").options(url=url, topic=topic.name, mergeRows="20")
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination(LIMIT_S)

    with pytest.raises(Exception, match=r"a streaming query may send rows twice.*rmq\.spark\.keyed"):
        drain(None)
    for condition in ("partition = 3", "true", "true"):
        drain(4, condition)
        found = found_in(spark_client, topic)
        assert 0 < len(found) < 300 if condition == "partition = 3" else found == expected(topic)
        for name in ("0", ".0.crc"):
            (checkpoint / "commits" / name).unlink()
        spark.conf.set("spark.sql.files.maxPartitionBytes", 20_000)
    spark.conf.unset("spark.sql.files.maxPartitionBytes")
    with pytest.raises(Exception, match="was started with 4 partitions"):
        drain(2)
    assert found_in(spark_client, topic) == expected(topic)


def test_rows_that_moved_since_are_refused(
    spark: SparkSession, spark_client: RmqClient, make: Callable[..., Topic]
) -> None:
    topic, url = make(Sum()), spark_client.url
    frame = keyed(rows_of(spark, topic, 2), 4)
    assert frame.schema["partition"].metadata == {"rmq.partitions": 4, "rmq.sorted": True}
    wrong = frame.select((F.col("partition") != F.spark_partition_id()).alias("wrong")).where("wrong").count()
    assert (frame.rdd.getNumPartitions(), wrong) == (4, 0)
    with pytest.raises(Exception, match="make keyed the last step"):
        sink_of(frame.coalesce(2), url, topic, once="moved").save()
    assert stored(spark_client, topic) == {}
    for options in ({"once": "n"}, {"txnAppId": "n", "txnVersion": 1}):
        with pytest.raises(Exception, match=r"topic keyed.*a write with .*rmq\.spark\.keyed"):
            sink_of(frame.drop("partition"), url, topic, **options).save()
    sink_of(rows_of(spark, topic, 2), url, topic).save()
    assert found_in(spark_client, topic) == expected(topic), "a write without a name sends no batch again"
    hottest = make(Max())
    sink_of(frame.drop("partition"), url, hottest, once="n").save()
    assert len(stored(spark_client, hottest)) == 300


def test_rows_that_name_their_topics_count_once_each(
    spark: SparkSession, spark_client: RmqClient, make: Callable[..., Topic]
) -> None:
    one, two = make(Sum()), make(Sum())
    names = f"if(id % 2 = 0, '{one.name}', '{two.name}') Topic"
    columns = ("concat('C', id % 50) Content", names, "1 value", "5000L priority")

    def write(partitions: int, tasks: int, condition: str = "true") -> None:
        rows = keyed(spark.range(0, 2_000, 1, partitions).selectExpr(*columns), tasks).where(condition)
        rows.write.format("rmq").mode("append").options(url=spark_client.url, once="routed", mergeRows="10").save()

    write(2, 3, "partition = 1")
    write(5, 3)
    write(1, 3)
    for topic in (one, two):
        values = stored(spark_client, topic)
        assert len(values) == 25
        assert {(value.count, value.number) for value in values.values()} == {(40, 40)}
    with pytest.raises(Exception, match="was started with 3 partitions"):
        write(2, 4)


def test_keyed_keeps_an_order_and_refuses_what_it_cannot_key(spark: SparkSession) -> None:
    frame = spark.range(100).selectExpr("'a' content", "id body", "100 - id AS Rank", "map('k', id) extra")
    rows = keyed(frame, 3, order_by="Rank").collect()
    assert [row["body"] for row in rows] == list(range(99, -1, -1))
    assert keyed(keyed(frame, 3), 2).schema["partition"].metadata["rmq.partitions"] == 2
    for partitions in (0, 16_385, True, 2.0):
        with pytest.raises(InvalidValueError, match=r"partitions is .*; it must be a whole number from 1 to 16384"):
            keyed(frame, partitions)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidValueError, match="keyed needs a column content; the columns of the frame are body"):
        keyed(frame.select("body"), 2)
    stream = spark.readStream.format("rate").load().selectExpr("cast(value as string) content")
    with pytest.raises(
        InvalidValueError, match="a streaming frame, whose rows have no order: call keyed in foreachBatch"
    ):
        keyed(stream, 2, order_by="content")


@pytest.mark.spark_long
@pytest.mark.parametrize("kind", ["once", "foreachBatch", "stream"])
def test_a_killed_job_goes_on_with_another_number_of_cores(
    kind: str, spark_client: RmqClient, make: Callable[..., Topic], tmp_path: Path
) -> None:
    topic, source = make(Sum()), tmp_path / "source.json"
    with source.open("w") as lines:
        for number in range(40_000):
            row = {"content": f"c{number % 4_000}", "body": number, "priority": 5_000}
            lines.write(json.dumps(row) + "\n")
    given = {
        "kind": kind,
        "url": spark_client.url,
        "topic": topic.name,
        "schema": "content string, body long, priority long",
        "source": str(tmp_path),
        "checkpoint": str(tmp_path / "checkpoint"),
        "partitions": 4,
    }

    def start(master: str, partitions: int = 4) -> subprocess.Popen[bytes]:
        told = json.dumps({**given, "master": master, "partitions": partitions})
        command = [sys.executable, "-m", "tests.spark.counted", told]
        return subprocess.Popen(command, cwd=REPOSITORY, start_new_session=True, stderr=subprocess.DEVNULL)

    def accepted() -> int:
        return spark_client.inspect(topic).stats().total("accepted")

    first = start("local[1]")
    try:
        wait_until(lambda: accepted() > 8_000 or first.poll() is not None, LIMIT_S)
    finally:
        workers = psutil.Process(first.pid).children(recursive=True) if first.poll() is None else []
        os.killpg(first.pid, signal.SIGKILL)
        for worker in workers:  # Spark's Python workers have a group of their own, and would send what they hold
            with suppress(psutil.NoSuchProcess):
                worker.kill()
        psutil.wait_procs(workers, LIMIT_S)
        first.wait()
    begun = accepted()
    assert 8_000 < begun < 40_000, "it was killed in the middle"
    other = start("local[2]", partitions=3)
    assert other.wait(LIMIT_S) != 0
    assert accepted() == begun, "refused before the first send"
    assert start("local[3]").wait(LIMIT_S) == 0
    values = stored(spark_client, topic)
    assert values == {b"c%d" % n: Value(10, sum(range(n, 40_000, 4_000)), None, ()) for n in range(4_000)}
    assert accepted() == 40_000
