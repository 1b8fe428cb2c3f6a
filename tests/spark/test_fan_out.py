"""Several sinks in one `foreachBatch`: what breaks off between them is made up for, and nothing is sent twice."""

from __future__ import annotations

import os
from collections import Counter
from itertools import count
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rmq import PriorityMessage, RmqClient, Topic, TopicType
from tests.spark.sessions import stream_of

pytestmark = pytest.mark.slow

LIMIT_S = 150
numbers = count(1)


def log_topic(client: RmqClient) -> Topic:
    """A STREAM topic: what is sent twice is there twice."""
    topic = Topic(f"fan-{os.getpid()}-{next(numbers)}", TopicType.STREAM, slots=2)
    client.producer(topic)
    return topic


def sent_to(client: RmqClient, topic: Topic) -> Counter[str]:
    return Counter(entry.content.decode() for entry in client.stream(topic).range())


@pytest.mark.parametrize("routed", [False, True], ids=["three sinks", "a column topic"])
def test_a_batch_that_breaks_off_between_its_sinks_sends_each_row_once(
    routed: bool, spark: SparkSession, spark_client: RmqClient, tmp_path: Path
) -> None:
    source = Topic(f"fan-source-{os.getpid()}-{next(numbers)}", TopicType.PRIORITY, slots=4)
    contents = [f"m{number}" for number in range(3_000)]
    spark_client.producer(source).send_many(PriorityMessage(content, 1_000) for content in contents)
    targets = [log_topic(spark_client) for _ in range(3)]
    options = {"url": spark_client.url, "chunkSize": "100"}
    breaks = iter([1, 2, 0])

    def fan_out(frame: DataFrame, batch: int) -> None:
        frame.persist()
        rows = frame.selectExpr("cast(content as string) content")
        last = next(breaks, 3)
        for number, target in enumerate(targets):
            if number == last:
                raise ValueError(f"the query breaks off before sink {number}")
            writer = rows.write.format("rmq").mode("append").options(**options)
            if routed:
                part = rows.selectExpr("content", f"'{target.name}' topic")
                writer = part.write.format("rmq").mode("append").options(**options)
            else:
                writer = writer.option("topic", target.name)
            writer.options(txnAppId=f"{source.name}-{number}", txnVersion=batch).save()

    def drain() -> StreamingQuery:
        stream = stream_of(spark, spark_client.url, source.name, maxMessagesPerTrigger=2_000, maxReplays=9)
        query = stream.writeStream.foreachBatch(fan_out).option("checkpointLocation", str(tmp_path / "checkpoint"))
        return query.trigger(availableNow=True).start()

    for _ in range(3):
        with pytest.raises(StreamingQueryException, match="breaks off"):
            drain().awaitTermination(LIMIT_S)
    assert drain().awaitTermination(LIMIT_S)
    assert [sent_to(spark_client, target) for target in targets] == [Counter(contents)] * 3
