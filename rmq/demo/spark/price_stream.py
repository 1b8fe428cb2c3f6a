"""A streaming job: every second some items have new prices, and their pictures are to be drawn.

    python -m rmq.demo.spark.price_stream            # until SIGTERM or Ctrl-C

The workers are those of `rmq.demo.cluster`. RMQ_URL says where Redis is, RMQ_CHECKPOINT where the query keeps its
place.
"""

from __future__ import annotations

import logging
import os
import tempfile

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rmq._processes.signals import until_signal
from rmq.demo.cluster import ITEMS, PICTURES, WINDOW
from rmq.spark.session import open_session

CHECKPOINT_VARIABLE = "RMQ_CHECKPOINT"
ROWS_PER_SECOND = 20

log = logging.getLogger("rmq.stream_demo")


def start(spark: SparkSession, url: str, checkpoint: str, *, rows_per_second: int = ROWS_PER_SECOND) -> StreamingQuery:
    """Start the query, and return it.

    Args:
        spark: A session that knows `format("rmq")`.
        url: Where Redis is, as driver and executors reach it.
        checkpoint: Folder in which the query keeps its place.
        rows_per_second: How many prices change.
    """
    rows = spark.readStream.format("rate").option("rowsPerSecond", rows_per_second).load()
    changes = rows.selectExpr(f"concat('stream-item:', value % {ITEMS}) AS content")
    options = {
        "url": url,
        "topic": PICTURES.name,
        "type": PICTURES.type.value,
        "slots": str(PICTURES.slots),
        "time_range": f"{WINDOW.total_seconds():g}s",
        "checkpointLocation": checkpoint,
    }
    return changes.writeStream.format("rmq").options(**options).trigger(processingTime="1 second").start()


def main() -> None:
    """Run the query until SIGTERM or SIGINT."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    checkpoint = os.environ.get(CHECKPOINT_VARIABLE) or tempfile.mkdtemp(prefix="rmq-checkpoint-")
    with until_signal() as stop, open_session("price stream", master="local[2]") as spark:
        query = start(spark, os.environ["RMQ_URL"], checkpoint)
        while not stop.wait(1.0):
            if (failure := query.exception()) is not None:
                raise failure
            if (progress := query.lastProgress) is not None:
                log.info("batch %s: %s rows", progress["batchId"], progress["numInputRows"])
        query.stop()


if __name__ == "__main__":
    main()
