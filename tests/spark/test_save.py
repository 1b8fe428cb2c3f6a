"""What a write says of its rows: to the program that calls `save`, and in Redis for the dashboard and Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from rmq import Merge, RmqClient, SparkQuery, Sum, Topic, TopicType
from rmq.errors import InvalidValueError, UnknownTopicError
from rmq.spark import SaveResult, save

LIMIT_S = 120
numbers = count(1)

Make = Callable[..., Topic]


@pytest.fixture
def make(spark_client: RmqClient) -> Make:
    def run(**settings: object) -> Topic:
        topic = Topic(f"save-{next(numbers)}", TopicType.PRIORITY, slots=2, **settings)  # pyright: ignore[reportArgumentType]
        return spark_client.producer(topic).topic

    return run


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    """One task with each of 60 contents five times, of which one breaks a rule."""
    return spark.range(0, 300, 1, 1).selectExpr(
        "concat('c', id % 60) content", "if(id = 299, -1L, 5000L) priority", "id"
    )


def test_save_says_what_became_of_the_rows(
    spark_client: RmqClient, make: Make, frame: DataFrame, tmp_path: Path
) -> None:
    topic, rows = make(), frame.drop("id")
    to = {"url": spark_client.url, "badRows": "collect", "badRowsPath": str(tmp_path)}
    first = save(rows, topic.name, **to)
    assert (first.rows, first.folded, first.new, first.merged, first.bad) == (300, 239, 60, 0, 1)
    assert first.sent == spark_client.inspect(topic).stats().backlog == 60
    assert 0 < first.redis_s < LIMIT_S
    again = save(rows, topic.name, merge="none", **to)
    assert (again.rows, again.folded, again.new, again.merged, again.bad) == (300, 0, 0, 299, 1)
    with pytest.raises(UnknownTopicError):
        save(rows, "nobody-knows-it", url=spark_client.url)
    with pytest.raises(InvalidValueError, match="mergeRow"):
        save(rows, topic.name, url=spark_client.url, mergeRow=5)


def test_each_row_names_its_topic_and_a_version_is_saved_once(
    spark_client: RmqClient, make: Make, frame: DataFrame
) -> None:
    one, two = make(), make()
    rows = frame.where("id < 100").selectExpr("content", "priority", f"if(id < 40, '{one.name}', '{two.name}') topic")
    first = save(rows, url=spark_client.url, txnAppId="feed", txnVersion=4)
    assert (first.rows, first.sent, first.skipped) == (100, 100, 0)
    again = save(rows, url=spark_client.url, txnAppId="feed", txnVersion=4)
    assert (again.rows, again.sent, again.skipped) == (100, 0, 100)
    save(rows.where(f"content = 'c1' and topic = '{one.name}'"), url=spark_client.url, txnAppId="feed", txnVersion=5)
    [query] = spark_client.inspect(one).spark_queries()
    assert (query.role, query.name, query.batch, query.sent) == ("write", "feed", 5, 41)
    [query] = spark_client.inspect(two).spark_queries()
    assert (query.batch, query.totals["rows"]) == (4, 60)


def test_a_topic_that_merges_counts_what_was_folded_and_keeps_no_marks_for_long(
    spark_client: RmqClient, make: Make, frame: DataFrame
) -> None:
    topic = make(merge=Merge(Sum()))
    found = save(frame.selectExpr("content", "5000L priority", "id body"), topic.name, url=spark_client.url)
    assert found == SaveResult(300, 240, 60, 0, 0, 0, found.redis_s)
    assert spark_client.inspect(topic).spark_queries() == [], "a write without a name reports to its program alone"


@pytest.mark.slow
def test_a_streaming_sink_reports_each_batch_once(
    spark: SparkSession, spark_client: RmqClient, make: Make, frame: DataFrame, tmp_path: Path
) -> None:
    topic, checkpoint, source = make(), tmp_path / "checkpoint", str(tmp_path / "source")
    frame.where("id < 299").write.json(source)

    def drain() -> SparkQuery:
        rows = spark.readStream.schema("content string, priority long, id long").json(source).drop("id")
        writer = rows.writeStream.format("rmq").option("url", spark_client.url).option("topic", topic.name)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(LIMIT_S)
        [found] = spark_client.inspect(topic).spark_queries()
        assert (found.role, found.name) == ("sink", str(query.id))
        return found

    first = drain()
    assert (first.batch, first.totals["rows"], first.totals["folded"], first.sent) == (0, 299, 239, 60)
    assert first.redis_s > 0
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    again = drain()
    assert (again.batch, again.totals) == (0, first.totals), "Spark ran the batch again, and it is one batch"
