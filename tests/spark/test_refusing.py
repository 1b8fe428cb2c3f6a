"""Rows that a batch refuses, in a real Spark: the batch is read and run again, and only its commit ends them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rmq import PriorityMessage, RmqClient, Topic, TopicType
from rmq.errors import InvalidValueError
from rmq.spark import Refused, refuse, refuse_rows
from tests.spark.sessions import stream_of

pytestmark = pytest.mark.slow

LIMIT_S = 120


def test_what_the_run_that_is_committed_refuses_is_left_out_of_the_ack(
    spark: SparkSession, spark_client: RmqClient, tmp_path: Path
) -> None:
    topic, url = Topic("refusing", TopicType.PRIORITY, slots=4), spark_client.url
    spark_client.producer(topic).send_many(PriorityMessage(f"m{n}", 1_000) for n in range(100))
    runs: list[list[str]] = []
    found: list[Refused] = []

    def run(frame: DataFrame, _: int) -> None:
        text = frame.withColumn("content", F.col("content").cast("string"))
        odd = "1" if len(runs) == 0 else "3"
        why = F.concat(F.lit("bad number "), F.col("content"))
        found.append(refuse(text.where(F.col("content").endswith(odd)), why, url=url))
        found.append(refuse(text.where(F.col("content").endswith("5")), "not now", delay="1h", url=url))
        frame.where("content = cast('m77' as binary)").foreachPartition(
            lambda rows: print(refuse_rows((row.asDict() for row in rows), KeyError("m77"), url=url))
        )
        runs.append(sorted(row.content for row in text.select("content").collect()))
        if len(runs) == 1:
            raise RuntimeError("stopped by the test")

    stream = stream_of(spark, url, topic.name, columns="*, claim")
    writer = stream.writeStream.foreachBatch(run).option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(StreamingQueryException, match="stopped by the test"):
        writer.trigger(availableNow=True).start().awaitTermination(LIMIT_S)
    assert spark_client.inspect(topic).stats().in_flight == 100, "nothing was decided"
    assert writer.trigger(availableNow=True).start().awaitTermination(LIMIT_S)
    assert runs == [sorted(f"m{n}" for n in range(100))] * 2, "also after rows were refused"
    assert found == [Refused(10, 0)] * 4
    stats = spark_client.inspect(topic).stats()
    assert (stats.dead, stats.waiting, stats.total("acked"), stats.unaccounted) == (11, 10, 79, 0)
    dead = {each.text: each.error_message for each in spark_client.dead(topic).list(limit=100)}
    assert dead == {f"m{n}": f"bad number m{n}" for n in range(3, 100, 10)} | {"m77": "'m77'"}


def test_a_frame_without_claims_is_refused_with_a_way_out(spark: SparkSession) -> None:
    frame = spark.range(1).selectExpr("'t' topic", "0 slot", "'a' content")
    with pytest.raises(InvalidValueError, match="column claim is missing; refuse needs topic, slot, content"):
        refuse(frame, url="redis://localhost")
