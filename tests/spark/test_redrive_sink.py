"""The sink with `redrive`, `trustSlot` and `maxRate`, against what the core client finds."""

from __future__ import annotations

import time
from itertools import count

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from rmq import RangeMergeMessage, RmqClient, Topic, TopicType
from rmq.errors import InvalidValueError, RmqError
from rmq.spark.jobs import plain_errors
from rmq.spark.options import parse_options
from rmq.spark.sink.redrive_writer import RedriveWriter
from rmq.spark.sink.sender import Counts
from rmq.spark.sink.writer import write_counted
from tests.spark.dead_letters import accounts, kill
from tests.spark.frames import stored

pytestmark = pytest.mark.slow

numbers = count(1)


def topic_of(kind: TopicType = TopicType.RANGE_MERGE, slots: int = 4) -> Topic:
    return Topic(f"redrive-{next(numbers)}", kind, slots=slots)


def dead_frame(spark: SparkSession, client: RmqClient, topic: Topic) -> DataFrame:
    reader = spark.read.format("rmq").option("url", client.url).option("topic", topic.name)
    return reader.option("queue", "dead").load()


def redrive(frame: DataFrame, client: RmqClient, topic: Topic, **options: object) -> None:
    writer = frame.write.format("rmq").mode("append").option("url", client.url).option("topic", topic.name)
    writer = writer.option("redrive", "true")
    for name, value in options.items():
        writer = writer.option(name, str(value))
    with plain_errors():
        writer.save()


@pytest.mark.parametrize("kind", [TopicType.RANGE_MERGE, TopicType.PRIORITY])
def test_the_dead_that_a_condition_picks_go_back_with_slot_and_body(
    spark: SparkSession, spark_client: RmqClient, kind: TopicType
) -> None:
    topic = topic_of(kind)
    kill(spark_client, topic, [f"t{i}" for i in range(300)], TimeoutError("late"))
    kill(spark_client, topic, [f"v{i}" for i in range(20)], ValueError("wrong"))
    kill(spark_client, topic, ["based"], TimeoutError("late"), basis="customer 7")
    redrive(dead_frame(spark, spark_client, topic).where("error_type = 'TimeoutError'"), spark_client, topic)
    found = stored(spark_client, topic)
    assert {name: body for name, (_, _, body) in found.items()} == {
        name: b"body of " + name for name in [*(b"t%d" % i for i in range(300)), b"based"]
    }
    assert found[b"based"][0] == topic.slot_of(b"customer 7")
    assert all(slot == topic.slot_of(name) for name, (slot, _, _) in found.items() if name != b"based")
    if kind is TopicType.PRIORITY:
        assert {score for _, score, _ in found.values()} == {1}
    stats = spark_client.inspect(topic).stats()
    assert (stats.dead, stats.total("redriven"), stats.total("accepted")) == (20, 301, 321)
    assert accounts(spark_client, topic) == (321, 321)


def test_one_that_died_again_since_it_was_read_stays(spark: SparkSession, spark_client: RmqClient) -> None:
    # pitfall 31
    topic = topic_of()
    kill(spark_client, topic, ["a", "b"], TimeoutError("once"))
    seen = spark.createDataFrame(dead_frame(spark, spark_client, topic).collect())
    spark_client.control(topic).redrive("a")
    with spark_client.consumer(topic) as consumer:
        [delivery] = consumer.poll(max_messages=1, timeout=10)
        delivery.bury(ValueError("twice"))
    options = parse_options({"url": spark_client.url, "topic": topic.name, "redrive": "true"})
    rows = seen.withColumn("slot", seen.slot.cast("int"))
    assert write_counted(rows, RedriveWriter(rows.schema, options)) == Counts(rows=2, new=1, skipped=1)
    assert [message.error_type for message in spark_client.dead(topic).list()] == ["ValueError"]
    assert write_counted(rows, RedriveWriter(rows.schema, options)) == Counts(rows=2, skipped=2), "safe to repeat"
    assert set(stored(spark_client, topic)) == {b"b"}
    assert accounts(spark_client, topic) == (3 - 1, 2)


def test_a_fresh_copy_keeps_its_body_and_its_time_unless_a_time_is_given(
    spark: SparkSession, spark_client: RmqClient
) -> None:
    topic = topic_of()
    for options, replaced in (({}, False), ({"time_range": "2h"}, True)):
        kill(spark_client, topic, ["x"], TimeoutError("late"))
        spark_client.producer(topic).send(RangeMergeMessage("x", time_range_ms=3_600_000, body="fresh"))
        redrive(dead_frame(spark, spark_client, topic), spark_client, topic, **options)
        _, due_ms, body = stored(spark_client, topic)[b"x"]
        assert body == b"fresh"
        assert (due_ms > time.time() * 1000 + 5_000_000) == replaced
        assert spark_client.inspect(topic).stats().dead == 0
        spark_client.control(topic).cancel("x")


def test_a_job_that_breaks_in_the_middle_loses_nothing_and_is_finished_by_a_second(
    spark: SparkSession, spark_client: RmqClient
) -> None:
    topic = topic_of(slots=2)
    names = [f"m{i}" for i in range(1_500)]
    kill(spark_client, topic, names, TimeoutError("late"))
    frame = dead_frame(spark, spark_client, topic)

    broken = frame.repartition(1).sortWithinPartitions("content")
    broken = broken.withColumn("slot", expr("if(content = 'm999', 100, slot)"))  # the last row that is read
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "400")
    try:
        with pytest.raises(RmqError, match="a slot from 0 to 1"):
            redrive(broken, spark_client, topic)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    stats = spark_client.inspect(topic).stats()
    assert 0 < stats.backlog < 1_500, "it broke in the middle"
    assert stats.backlog + stats.dead == 1_500
    redrive(frame, spark_client, topic)
    assert set(stored(spark_client, topic)) == {name.encode() for name in names}
    assert accounts(spark_client, topic) == (1_500, 1_500)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("slot, content", {}, "column died is missing"),
        ("slot, content, cast(died as string) died", {}, "column died is string"),
        ("slot, content, died", {"priority": "99"}, "and has due times, not priorities"),
        ("slot, content, died", {"merge": "none"}, "cannot be combined with"),
        ("slot + 100 slot, content, died", {}, "slot from 0 to 3"),
        ("'other' topic, slot, content, died", {}, "it must have no null, topic"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_moved(
    spark: SparkSession, spark_client: RmqClient, columns: str, options: dict[str, str], message: str
) -> None:
    topic = topic_of()
    kill(spark_client, topic, ["a"], TimeoutError("late"))
    rows = dead_frame(spark, spark_client, topic).selectExpr(*columns.split(", "))
    with pytest.raises(RmqError, match=message):
        redrive(rows, spark_client, topic, **options)
    assert spark_client.inspect(topic).stats().dead == 1


def test_rows_read_are_written_back_into_the_slot_they_came_from(spark: SparkSession, spark_client: RmqClient) -> None:
    source, target = topic_of(), topic_of()
    producer = spark_client.producer(source)
    producer.send_many(RangeMergeMessage(f"m{i}", time_range_ms=1, slot_basis=f"customer {i % 3}") for i in range(100))
    spark_client.producer(target)
    rows = spark.read.format("rmq").option("url", spark_client.url).option("topic", source.name).load()
    writer = rows.write.format("rmq").mode("append").option("url", spark_client.url).option("topic", target.name)
    writer = writer.option("time_range", "1ms")
    with pytest.raises(RmqError, match="slot is"), plain_errors():
        writer.save()
    assert stored(spark_client, target) == {}
    writer.option("trustSlot", True).save()
    expected = {name: slot for name, (slot, _, _) in stored(spark_client, source).items()}
    assert {name: slot for name, (slot, _, _) in stored(spark_client, target).items()} == expected
    with pytest.raises(InvalidValueError, match="trustSlot needs columns slot"), plain_errors():
        rows.drop("slot").write.format("rmq").mode("append").option("url", spark_client.url).option(
            "topic", target.name
        ).option("time_range", "1ms").option("trustSlot", True).save()


def test_a_rate_holds_over_all_tasks(spark: SparkSession, spark_client: RmqClient) -> None:
    topic = topic_of()
    spark_client.producer(topic)
    rows = spark.range(0, 300, 1, 2).selectExpr("concat('m', id) content")
    writer = rows.write.format("rmq").mode("append").option("url", spark_client.url).option("topic", topic.name)
    began_s = time.monotonic()
    writer.option("time_range", "1ms").option("maxRate", 100).save()
    # 10 pass at once; a slower machine only takes longer
    assert time.monotonic() - began_s >= 290 / 100 - 0.1
    assert len(stored(spark_client, topic)) == 300
    with pytest.raises(InvalidValueError, match="maxRate is '0'"), plain_errors():
        writer.option("maxRate", 0).save()
