"""Several topics in one source, in a real Spark."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from rmq import FixedTimeMessage, PriorityMessage, RmqClient, Topic, TopicType
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

LIMIT_S = 120


def test_a_pattern_is_drained_in_batches_that_come_back_after_a_failure(
    spark: SparkSession, spark_client: RmqClient, tmp_path: Path
) -> None:
    jobs, mails = Topic("many-jobs", TopicType.PRIORITY, slots=4), Topic("many-mails", TopicType.FIXED_TIME, slots=2)
    spark_client.producer(jobs).send_many(PriorityMessage(f"m{n}", 1_000, body="b") for n in range(300))
    soon_ms = int(time.time() * 1_000) + 3_000
    spark_client.producer(mails).send_many(FixedTimeMessage(f"m{n}", fixed_time_ms=soon_ms) for n in range(100))
    wait_until(lambda: spark_client.inspect(mails).stats().due_now == 100, LIMIT_S)
    runs: list[tuple[int, list[tuple[str, str]]]] = []

    def run(frame: DataFrame, batch: int) -> None:
        rows = frame.selectExpr("topic", "cast(content as string) content").collect()
        runs.append((batch, sorted((row.topic, row.content) for row in rows)))
        if len(runs) == 2:
            raise RuntimeError("stopped by the test")

    reader = spark.readStream.format("rmq").options(url=spark_client.url, topicPattern="many-.*")
    stream = reader.option("maxMessagesPerTrigger", 200).option("columns", "topic, content").load()
    writer = stream.writeStream.foreachBatch(run).option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(StreamingQueryException, match="stopped by the test"):
        writer.trigger(availableNow=True).start().awaitTermination(LIMIT_S)
    assert writer.trigger(availableNow=True).start().awaitTermination(LIMIT_S)
    assert [batch for batch, _ in runs] == [0, 1, 1]
    assert runs[1] == runs[2]
    names = {jobs.name: 300, mails.name: 100}
    assert sorted(runs[0][1] + runs[1][1]) == sorted((name, f"m{n}") for name in names for n in range(names[name]))
    assert [name for name, _ in runs[0][1]].count(jobs.name) == 150
    for topic in (jobs, mails):
        stats = spark_client.inspect(topic).stats()
        assert (stats.backlog, stats.in_flight, stats.total("acked")) == (0, 0, names[topic.name])
    spark_client.producer(jobs).send(PriorityMessage("late", 1_000))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(LIMIT_S)
    assert runs[3] == (2, [(jobs.name, "late")])
    told = json.loads(query.recentProgress[0]["sources"][0]["latestOffset"])
    assert [each["topic"] for each in told["topics"]] == [jobs.name, mails.name]
    assert told["behind"] == 0


def test_dead_of_several_topics_in_one_frame(spark: SparkSession, spark_client: RmqClient) -> None:
    for name, number in (("morgue-a", 3), ("morgue-b", 5)):
        topic = Topic(name, TopicType.PRIORITY, slots=2)
        spark_client.producer(topic).send_many(PriorityMessage(f"m{n}", 1_000) for n in range(number))
        with spark_client.consumer(topic) as consumer:
            buried = 0
            while buried < number:
                for delivery in consumer.poll(max_messages=10, timeout=5):
                    buried += delivery.bury("bad")
    frame = spark.read.format("rmq").options(url=spark_client.url, topics="morgue-a,morgue-b", queue="dead").load()
    counts = {row.topic: row["count"] for row in frame.groupBy("topic").count().collect()}
    assert counts == {"morgue-a": 3, "morgue-b": 5}
