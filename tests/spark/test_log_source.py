"""A query that follows a STREAM topic, in a real Spark."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rmq import Retention, RmqClient, StreamMessage, Topic, TopicType
from tests.spark.sessions import stream_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

LIMIT_S = 120
numbers = count(1)


def test_a_stream_goes_into_files_and_is_trimmed_behind_the_query(
    spark: SparkSession, spark_client: RmqClient, tmp_path: Path
) -> None:
    log = Topic(f"log-{next(numbers)}", TopicType.STREAM, slots=4, retention=Retention(max_length=0, approximate=False))
    producer, view = spark_client.producer(log), spark_client.stream(log)
    producer.send_many(StreamMessage(f"e{n}", body=b"b") for n in range(2_500))
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    options = {"group": "files", "start": "all", "maxMessagesPerTrigger": 1_000}
    frame = stream_of(spark, spark_client.url, log.name, **options).selectExpr(
        "slot", "id", "cast(content as string) content", "cast(fields['body'] as string) body", "sent"
    )
    writer = frame.writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint)
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        wait_until(lambda: view.group("files").lag == 0 if "files" in view.stats().groups else False, LIMIT_S)
        view.trim()
        assert view.stats().length == 0
        producer.send(StreamMessage("later"))
        wait_until(lambda: view.group("files").total("acked") == 2_501, LIMIT_S)
        reported = [json.loads(each["sources"][0]["latestOffset"]) for each in query.recentProgress]
        assert {"topic": log.name, "group": "files", "behind": 1_500}.items() <= reported[0].items()
    finally:
        query.stop()
    rows = spark.read.parquet(out)
    assert rows.count() == rows.select("slot", "id").distinct().count() == 2_501
    assert sorted(row["content"] for row in rows.where("body = 'b'").collect()) == sorted(f"e{n}" for n in range(2_500))
    assert rows.where("sent > '2020-01-01'").count() == 2_501

    producer.send_many(StreamMessage(f"f{n}") for n in range(10))
    again = writer.trigger(availableNow=True).start()
    assert again.awaitTermination(LIMIT_S)
    assert spark.read.parquet(out).count() == 2_511
    view.trim()
    assert (view.group("files").lag, view.stats().length) == (0, 0)
