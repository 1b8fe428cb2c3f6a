"""Small Spark sessions for tests."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from rmq.spark import register
from tests.support.unmeasured import unmeasured


def make_session(master: str = "local[2,3]") -> SparkSession:
    """Return a session with little memory; unless told, with two cores and three tries for a task."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master(master)
        .appName("rmq-tests")
        .config("spark.driver.memory", "700m")
        .config("spark.ui.enabled", "false")
        # Spark makes this folder where a program runs, once SQL looks for a table
        .config("spark.sql.warehouse.dir", str(Path(tempfile.gettempdir(), "rmq-tests-warehouse")))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
    )
    with unmeasured():  # the JVM starts here, and later the Python workers in its environment
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def stream_of(spark: SparkSession, url: str, topic: str, **options: object) -> DataFrame:
    """Return a stream of a topic."""
    reader = spark.readStream.format("rmq").option("url", url).option("topic", topic)
    for name, value in options.items():
        reader = reader.option(name, str(value).lower() if isinstance(value, bool) else str(value))
    return reader.load()
