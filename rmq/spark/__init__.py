"""RMQ in Apache Spark: `format("rmq")`. Needs `rmq[spark]` on a cluster, `rmq[spark-local]` on one machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("rmq")` known to a session.

    Raises:
        ImportError: pyspark or pyarrow is missing.
    """
    try:
        from rmq.spark.datasource import RmqDataSource
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{error}; install rmq[spark-local], or on a cluster, which brings pyspark, rmq[spark]"
        ) from error
    spark.dataSource.register(RmqDataSource)
