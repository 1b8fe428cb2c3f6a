"""The session of a job that runs in a Python thread of its own, where Spark calls none active."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pyspark.sql import SparkSession

from rmq import RmqClient, Topic, TopicType
from rmq.spark import open_session, register
from tests.spark.frames import sink_of, stored

T = TypeVar("T")


def in_a_thread(work: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(work).result()


def test_the_session_that_another_thread_made_is_used_and_stays_open(spark: SparkSession) -> None:
    def work() -> bool:
        with open_session("not a second one") as session:
            return session is spark

    assert in_a_thread(work)
    assert spark.range(2).count() == 2


def test_a_thread_that_has_registered_the_format_can_write(spark: SparkSession, spark_client: RmqClient) -> None:
    topic = Topic("of-a-thread", TopicType.RANGE_MERGE, slots=2)
    frame = spark.range(3).selectExpr("concat('m', id) content", "5000L time_range")

    def work() -> None:
        register(spark)
        sink_of(frame, spark_client.url, topic).save()

    in_a_thread(work)
    assert set(stored(spark_client, topic)) == {b"m0", b"m1", b"m2"}
