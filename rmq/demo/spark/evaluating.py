"""Evaluates the customers of each batch of the audience's query."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from pyspark.sql import DataFrame

from rmq._admin.inspection import Inspection
from rmq.demo.spark.customers import customers_of, figures, with_segments
from rmq.demo.spark.order_lines import read_lines
from rmq.errors import RmqError
from rmq.spark.jobs import Say


class Evaluator:
    """Writes the segments of a batch's customers, and the time span of the evaluation.

    Args:
        lines: Path of the order lines, which are read again for each batch.
        out: Folder for `segments` and `evaluations`.
        rules: Segment -> condition.
        inspection: Inspection of the topic.
        say: Called with a line for each batch, when its customers are claimed.

    Attributes:
        begun: Set when the first customers are claimed.
        batches: Numbers of the batches done.
        evaluated: Number of customers in them, counted once per batch.
        passed_over: Number of messages whose content is not a customer.
    """

    def __init__(self, lines: str, out: str, rules: Mapping[str, str], inspection: Inspection, say: Say) -> None:
        self._lines, self._out, self._rules = lines, out, rules
        self._inspection, self._say = inspection, say
        self.begun = threading.Event()
        self._at_work, self._closed = threading.Lock(), False
        self.batches: list[int] = []
        self.evaluated = self.passed_over = 0

    def __call__(self, messages: DataFrame, number: int) -> None:
        """Evaluate a batch. Guarantee: the same batch and order lines give the same result."""
        with self._at_work:
            if self._closed:
                raise RmqError("the run was stopped")  # raise, since Spark would commit the batch after a return
            batch = messages.select("content").persist()
            try:
                claimed = batch.count()  # claims all of them
                self.begun.set()
                self._evaluate(batch, claimed, number)
            finally:
                batch.unpersist()

    def close(self) -> None:
        """Wait for the present batch, and refuse later ones before they claim messages."""
        with self._at_work:
            self._closed = True

    def _evaluate(self, batch: DataFrame, claimed: int, number: int) -> None:
        stats = self._inspection.stats()
        began_ms, behind = stats.now_ms, stats.backlog
        self._say(f"batch {number}: {claimed:,} customers; {self.evaluated:,} evaluated, {behind:,} behind")
        spark = batch.sparkSession
        customers = customers_of(batch)
        segments = with_segments(figures(read_lines(spark, self._lines), customers), self._rules)
        segments.write.mode("overwrite").parquet(f"{self._out}/segments/batch={number}")
        ended_ms = self._inspection.stats([0]).now_ms
        times = spark.sql(f"SELECT {began_ms}L began_ms, {ended_ms}L ended_ms, {claimed} messages")
        times.write.mode("overwrite").json(f"{self._out}/evaluations/batch={number}")
        evaluated = customers.count()
        self.batches.append(number)
        self.evaluated += evaluated
        self.passed_over += claimed - evaluated
