"""Streaming jobs: prices change, the changes of an item merge, and workers draw its picture once.

    python -m rmq.demo.price_stream                            # Spark on this machine
    python -m rmq.demo.price_stream spark://spark-master:7077  # on a cluster, whose Python has RMQ

Both run until SIGTERM or Ctrl-C. One query fills the topic `price-change`. The other drains it with
`readStream.format("rmq")` and sends the items to the workers of `rmq.demo.cluster`.

RMQ_URL is the URL of Redis, RMQ_CHECKPOINT the folder of the queries' checkpoints.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from datetime import timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rmq import RmqClient, Topic, TopicType
from rmq.demo.cluster import PICTURES, WINDOW
from rmq.spark.session import open_session
from rmq.spi import until_signal

CHECKPOINT_VARIABLE = "RMQ_CHECKPOINT"
CHANGES = Topic("price-change", TopicType.RANGE_MERGE, slots=4)
ROWS_PER_SECOND, ITEMS = 100, 100
"""Each item gets a new price every second, so that the changes of a window merge."""

MERGE_WINDOW = timedelta(seconds=5)

log = logging.getLogger("rmq.stream_demo")


def fill(spark: SparkSession, url: str, checkpoint: str) -> StreamingQuery:
    """Start the query that sends price changes.

    Args:
        spark: A session that knows `format("rmq")`.
        url: URL of Redis, reachable from driver and executors.
        checkpoint: Folder of the query's checkpoint.
    """
    rows = spark.readStream.format("rate").option("rowsPerSecond", ROWS_PER_SECOND).load()
    changes = rows.selectExpr(f"concat('stream-item:', value % {ITEMS}) AS content")
    return _send(changes, url, CHANGES, MERGE_WINDOW, f"{checkpoint}/changes")


def drain(spark: SparkSession, url: str, checkpoint: str) -> StreamingQuery:
    """Start the query that reads merged changes and requests a picture of each item; arguments as for `fill`."""
    merged = spark.readStream.format("rmq").options(url=url, topic=CHANGES.name).load()
    return _send(merged.select("content"), url, PICTURES, WINDOW, f"{checkpoint}/pictures")


def _send(frame: DataFrame, url: str, topic: Topic, window: timedelta, checkpoint: str) -> StreamingQuery:
    options = {"url": url, "topic": topic.name, "type": topic.type.value, "slots": str(topic.slots)}
    writer = frame.writeStream.format("rmq").options(**options, time_range=f"{window.total_seconds():g}s")
    writer = writer.queryName(topic.name).option("checkpointLocation", checkpoint)
    return writer.trigger(processingTime="1 second").start()


def main() -> None:
    """Run both queries until SIGTERM or SIGINT."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it logs every call between Python and Java
    url = os.environ["RMQ_URL"]
    master = sys.argv[1] if len(sys.argv) > 1 else "local[2]"
    checkpoint = os.environ.get(CHECKPOINT_VARIABLE) or tempfile.mkdtemp(prefix="rmq-checkpoint-")
    with RmqClient(url) as client:
        client.producer(CHANGES)  # registers the topic, which a query requires
    with until_signal() as stop, open_session("price stream", master=master) as spark:
        queries = fill(spark, url, checkpoint), drain(spark, url, checkpoint)
        while not stop.wait(1.0):
            for query in queries:
                if (failure := query.exception()) is not None:
                    raise failure
                if (progress := query.lastProgress) is not None:
                    log.info(
                        "query %s: batch %s with %s rows written",
                        query.name,
                        progress["batchId"],
                        progress["numInputRows"],
                    )
        for query in queries:
            query.stop()


if __name__ == "__main__":
    main()
