"""Audits in SQL, as docs/guide/spark-read.md has them: a temporary view of a topic, and no stored table."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rmq import RmqClient, Topic, TopicType
from tests.spark.dead_letters import kill

PAGE = (Path(__file__).resolve().parents[2] / "docs/guide/spark-read.md").read_text("utf-8")


numbers = itertools.count()


@pytest.fixture
def topic(spark_client: RmqClient) -> Topic:
    """A topic of this test, registered."""
    topic = Topic(f"view-{os.getpid()}-{next(numbers)}", TopicType.RANGE_MERGE, slots=2, max_retries=3)
    spark_client.consumer(topic).close()
    return topic


@pytest.fixture
def statements(spark: SparkSession, spark_client: RmqClient, topic: Topic) -> Iterator[list[str]]:
    """The statements of the page, for the tests' Redis and a topic of this test."""
    [block] = re.findall(r"^```sql\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    named = block.replace("redis://redis1:6379", spark_client.url).replace("price-image", topic.name)
    yield [each for each in map(str.strip, named.split(";")) if each]
    spark.catalog.dropTempView("dead")


def test_the_dead_are_counted_by_error_and_day(
    spark: SparkSession, spark_client: RmqClient, topic: Topic, statements: list[str]
) -> None:
    kill(spark_client, topic, ["a", "b", "c"], TimeoutError("slow"))
    kill(spark_client, topic, ["d"], ValueError("bad"))

    *_, counted = [spark.sql(statement).collect() for statement in statements]

    today = datetime.now(UTC).date()
    assert [(row.error_type, row.dead) for row in counted] == [("TimeoutError", 3), ("ValueError", 1)]
    assert all(abs((today - row.day).days) <= 1 for row in counted)
    assert spark_client.inspect(topic).stats().dead == 4, "a view claims nothing"
    kill(spark_client, topic, ["e"], ValueError("bad"))
    assert spark.sql("SELECT count(*) dead FROM dead").first() == (5,), "a view reads anew"


def test_a_view_cannot_have_options_of_the_sinks(spark: SparkSession, statements: list[str]) -> None:
    view = statements[0].replace("queue 'dead'", "queue 'dead', mergeRows '5'")
    spark.sql(view)
    with pytest.raises(PySparkException, match="mergeRows is an option of writes"):
        spark.sql("SELECT * FROM dead").collect()


def test_a_stored_table_is_refused_with_what_works(spark: SparkSession, statements: list[str]) -> None:
    table = statements[0].replace("CREATE OR REPLACE TEMPORARY VIEW dead", "CREATE TABLE dead_letters")
    with pytest.raises(PySparkException, match=r"CREATE TEMPORARY VIEW \.\.\. USING rmq OPTIONS"):
        spark.sql(table)
