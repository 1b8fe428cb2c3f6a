"""Small Spark sessions for tests."""

from __future__ import annotations

import os
import sys

from pyspark.sql import DataFrame, SparkSession

from rmq.spark import register


def make_session() -> SparkSession:
    """Return a session with two cores, three tries for a task and little memory."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2,3]")
        .appName("rmq-tests")
        .config("spark.driver.memory", "700m")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def stream_of(spark: SparkSession, url: str, topic: str, **options: object) -> DataFrame:
    """Return a stream of a topic."""
    reader = spark.readStream.format("rmq").option("url", url).option("topic", topic)
    for name, value in options.items():
        reader = reader.option(name, str(value).lower() if isinstance(value, bool) else str(value))
    return reader.load()
