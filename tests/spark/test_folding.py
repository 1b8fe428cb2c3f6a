"""Names in any case, collations and several topics: what `merged`, `keyed` and `with_slot` make of frames."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rmq import Merge, Sum, Topic, TopicType
from rmq.errors import InvalidValueError
from rmq.spark import keyed, merged, with_slot
from rmq.spark.jobs.redrive import Again
from rmq.spark.jobs.replay import open_archive

pytestmark = pytest.mark.slow

SUMS = Topic("sums", TopicType.PRIORITY, merge=Merge(Sum(), priority="highest"))


def test_capital_letters_make_no_difference(spark: SparkSession) -> None:
    frame = spark.range(10).selectExpr("concat('x', id % 5) Content", "1000L + id Time_Range", "id `odd.Name`")
    rows = merged(frame, "RANGE_MERGE").collect()
    assert sorted((row.content, row.time_range) for row in rows) == [(f"x{n}", 1_000 + n) for n in range(5)]
    last = merged(frame.withColumnRenamed("Time_Range", "Priority"), "PRIORITY", order_by="Odd.Name").collect()
    assert sorted((row.content, row["odd.name"]) for row in last) == [(f"x{n}", n + 5) for n in range(5)]
    numbers = spark.range(10).selectExpr("concat('x', id % 5) CONTENT", "id BODY", "id + 1 Weight", "5000L Priority")
    summed = merged(numbers, SUMS).collect()
    assert sorted((row.content, row.body, row.weight) for row in summed) == [
        (f"x{n}", 2 * n + 5, 2 * n + 7) for n in range(5)
    ]
    slots = with_slot(spark.sql("select 'a' Content, 'b' Slot_Basis union all select 'b', null"), 64).collect()
    assert slots[0].slot == slots[1].slot
    with pytest.raises(InvalidValueError, match="merged needs a column content; the columns of the frame are id"):
        merged(spark.range(3), "RANGE_MERGE")
    with pytest.raises(InvalidValueError, match="with_slot needs a column content; the columns of the frame are id"):
        with_slot(spark.range(3), 2)
    spark.conf.set("spark.sql.caseSensitive", True)
    try:
        with pytest.raises(InvalidValueError, match="columns content and Content differ only in upper and lower case"):
            with_slot(spark.sql("select 'a' content, 'b' Content"), 2)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_equal_contents_are_those_of_equal_bytes(spark: SparkSession) -> None:
    frame = spark.sql(
        "select collate(c, 'UTF8_LCASE') content, 1000L time_range, 1L body, 5000L priority, "
        "collate(c, 'UTF8_LCASE') slot_basis from values ('abc'), ('ABC'), ('abc') as t(c)"
    )
    assert frame.groupBy("content").count().count() == 1
    bodiless = frame.drop("body")
    assert merged(bodiless.drop("slot_basis"), "RANGE_MERGE").count() == merged(bodiless, "RANGE_MERGE").count() == 2
    assert sorted(row.body for row in merged(frame.drop("slot_basis"), SUMS).collect()) == [1, 2]
    assert keyed(frame, 64).select("partition").distinct().count() == 2


@pytest.mark.parametrize("kind", ["RANGE_MERGE", "PRIORITY", "FIXED_TIME", "Replace()"])
def test_the_newest_body_stays_and_a_row_without_one_leaves_it(spark: SparkSession, kind: str) -> None:
    column = {"PRIORITY": "priority", "FIXED_TIME": "fixed_time"}.get(kind, "time_range")
    frame = spark.sql(
        f"select content, at + 100L {column}, body, at from values "
        "('a', 1L, 'old'), ('a', 2L, 'new'), ('a', 3L, null), ('b', 4L, null), ('b', 5L, null) as t(content, at, body)"
    )
    topic = Topic("t", TopicType.RANGE_MERGE, merge=Merge()) if kind == "Replace()" else kind
    rows = {row.content: row for row in merged(frame, topic, order_by="at").collect()}
    assert {content: row.body for content, row in rows.items()} == {"a": "new", "b": None}
    last = kind in ("PRIORITY", "FIXED_TIME")
    assert {content: row[column] for content, row in rows.items()} == {
        "a": 103 if last else 101,
        "b": 105 if last else 104,
    }
    with pytest.raises(InvalidValueError, match="needs order_by"):
        merged(frame, topic)


def test_equal_contents_of_two_topics_stay_apart(spark: SparkSession) -> None:
    frame = spark.range(20).selectExpr("if(id < 10, 'a', 'b') Topic", "'same' content", "1000L time_range", "id")
    rows = merged(frame, "RANGE_MERGE", order_by="id").collect()
    assert sorted((row.topic, row.id) for row in rows) == [("a", 0), ("b", 10)]
    numbers = frame.selectExpr("topic", "content", "id body", "5000L priority")
    summed = merged(numbers, SUMS).collect()
    assert sorted((row.topic, row.body, row.weight) for row in summed) == [("a", 45, 10), ("b", 145, 10)]
    bases = spark.sql("select 'x' content, b slot_basis, 1000L time_range from values ('x'), (null), ('y') as t(b)")
    assert merged(bases, "RANGE_MERGE").count() == 2, "without a basis it is the content"


def test_an_archive_in_capital_letters_keeps_its_bodies(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "archive")
    spark.sql("select 'a' Content, 'b' Body, 7000L Priority, 5L Died_At").write.parquet(path)
    archive = open_archive(spark, path, "Died_At")
    topic = Topic("again", TopicType.PRIORITY)
    [row] = archive.messages(topic, Again(rate=1.0), None).collect()
    assert (bytes(row.content), bytes(row.body), row.priority) == (b"a", b"b", 7_000)
