"""What a streaming query reports: in Spark's progress, and to the dashboard and Prometheus through Redis."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rmq._model.spark_queries import REPORT_S, SparkQuery
from rmq._model.times import monotonic_s
from rmq._model.topics import Topic
from rmq._slots.spark_queries import SparkQueries
from rmq._transport.connections import Connections
from rmq.errors import RmqError
from rmq.spark.redis_time import RedisTime
from rmq.spark.slots import SettledBatch

log = logging.getLogger("rmq.spark")

ROLE = "source"


class QueryFigures:
    """What a driver has done since it began, and what it has left.

    Args:
        topic: The definition.

    Attributes:
        behind: What is not in the batches planned so far: messages due (`behind`), in store, and in other hands.
        acked: Messages acked.
        refused: Messages that the query has refused.
        redelivered: Of both, those of batches that an earlier driver had begun.
        lost: Messages whose leases ended while their batch ran; others have them, too.
        batch: Number of the last acked batch.
        time: How long the driver has waited for calls to Redis.
    """

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self.behind = {"behind": 0, "backlog": 0, "in_flight": 0}
        self.acked = self.refused = self.redelivered = self.lost = self.batch = 0
        self.time = RedisTime()
        self._kept_s: float | None = None

    def kept(self, since_s: float | None) -> None:
        """Note that the leases of the open batch began, or were renewed, at this time or later; `None`: no batch."""
        self._kept_s = since_s

    def settled(self, batch: int, settled: SettledBatch, *, again: bool) -> None:
        """Note an ack; `again`: of a batch that an earlier driver had begun."""
        ended = sum(settled.found.values()) - settled.lost - sum(settled.put_back.values())
        self.acked += ended - settled.refused
        self.refused += settled.refused
        self.redelivered += ended if again else 0
        self.lost += settled.lost
        self.batch = batch

    @property
    def lease_left_s(self) -> float | None:
        """For how long the leases of the open batch last without a renewal, seconds; `None` without a batch."""
        kept_s = self._kept_s
        return None if kept_s is None else max(0.0, self._topic.lease_s - (monotonic_s() - kept_s))

    @property
    def totals(self) -> dict[str, int]:
        """Messages since the driver began."""
        names = ("acked", "refused", "redelivered", "lost")
        return {name: getattr(self, name) for name in names}

    def progress(self) -> dict[str, Any]:
        """Return them for Spark's progress report."""
        left_s = self.lease_left_s
        return {
            "topic": self._topic.name,
            **self.behind,
            **self.totals,
            "lease_left_s": None if left_s is None else round(left_s, 1),
            "redis_s": round(self.time.seconds, 3),
        }

    def report(self, query: str) -> SparkQuery:
        """Return them as they are kept in Redis."""
        own = self.time.seconds, self.behind["behind"], self.lease_left_s
        return SparkQuery(ROLE, query, self.batch, 0, 0, self.totals, *own)


class Reporter:
    """Keeps the report of a query in Redis up to date, in a thread of its own.

    Args:
        connections: With a short deadline: a report that fails is left out, and the next one comes soon.
        topic: Name of the topic.
        report: Returns the report.
    """

    def __init__(self, connections: Connections, topic: str, report: Callable[[], SparkQuery]) -> None:
        self._reports, self._report = SparkQueries(connections, topic), report
        self._topic = topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rmq-spark-report", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Report once more, and end."""
        self._stopping.set()
        self._thread.join()
        self._publish()

    def _run(self) -> None:
        with suppress(RmqError):
            self._reports.forget_old()
        while True:
            self._publish()
            if self._stopping.wait(REPORT_S):
                return

    def _publish(self) -> None:
        try:
            self._reports.publish(self._report())
        except RmqError as error:
            log.info("the query on topic %s is not reported: %s", self._topic, error)
