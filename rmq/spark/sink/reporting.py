"""Metrics of the sinks for each batch, stored in Redis: Spark's progress reports include none of Python sinks."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict

from rmq._admin.spark_queries import SparkQueries
from rmq.errors import RmqError
from rmq.spark.options import Options
from rmq.spark.sink.sender import Counts

log = logging.getLogger("rmq.spark")

REPORT_DEADLINE_S = 2.0
"""Timeout of a report, seconds. The batch is already written and should not wait longer."""


def report_batch(options: Options, role: str, name: str, batch: int, topics: Iterable[tuple[str, Counts]]) -> None:
    """Add a written batch to the metrics of its query, which the dashboard and Prometheus read.

    Args:
        options: The options of the write, with the address of Redis.
        role: `sink` or `write`.
        name: Identity of the query, or the `txnAppId` of the write.
        batch: Number of the batch.
        topics: Topic and counts of each task that wrote to it.
    """
    sums: dict[str, Counts] = {}
    for topic, counts in topics:
        sums[topic] = Counts.total([sums.get(topic, Counts()), counts])
    try:
        with closing(options.connections(most_s=REPORT_DEADLINE_S)) as connections:
            for topic, counts in sums.items():
                totals = asdict(counts)
                redis_s = totals.pop("redis_us") / 1_000_000
                SparkQueries(connections, topic).add(role, name, batch, totals, redis_s)
    except RmqError as error:
        log.info("the metrics of batch %d of %s %s could not be stored: %s", batch, role, name, error)
