"""The metrics of streaming queries and writes, for Spark's progress reports, the dashboard and Prometheus.

The dashboard and Prometheus read them from Redis. Spark's progress reports include no metrics of Python sinks.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any

from rmq import SparkQuery, Topic
from rmq.errors import RmqError
from rmq.spark.options import Options
from rmq.spark.slots import SettledBatch
from rmq.spark.source.batches import LogBatch
from rmq.spi import monotonic_s
from rmq.spi.scripts import REPORT_S, Connections, SparkQueries, parse_url

log = logging.getLogger("rmq.spark")

ROLE = "source"


REPORT_DEADLINE_S = 1.0
"""Timeout of a report, seconds: the next one follows soon."""

WRITE_DEADLINE_S = 2.0
"""Timeout of the report of a write, seconds. The batch is already written and should not wait longer."""


class Figures(ABC):
    """The metrics of a driver since its start.

    Attributes:
        batch: Number of the last finished batch.
        time: Total time that the driver waited for calls to Redis.
        totals: Numbers of messages: `acked`; `refused` by the query; `redelivered`, those of both in batches
            started by an earlier driver; `lost`, not acked by this query.
    """

    def __init__(self) -> None:
        self.batch = 0
        self.time = RedisTime()
        self.totals: dict[str, int] = {"acked": 0, "refused": 0, "redelivered": 0, "lost": 0}
        self._open = 0
        self._planned = self._again = False

    @abstractmethod
    def progress(self) -> dict[str, Any]:
        """Return the metrics for Spark's progress report."""

    def planned(self) -> None:
        """Record that the next batch was planned by this driver."""
        self._planned = True

    def opened(self, batch: int) -> bool:
        """Record that a batch is read; return whether it is a new one."""
        if batch == self._open:
            return False
        self._open, self._again, self._planned = batch, not self._planned, False
        return True

    def ended(self, batch: int, acked: int, *, lost: int = 0, refused: int = 0) -> None:
        """Add the counts of a finished batch to the totals."""
        again = acked + refused if self._again and batch == self._open else 0
        found = {"acked": acked, "refused": refused, "redelivered": again, "lost": lost}
        self.totals = {event: number + found[event] for event, number in self.totals.items()}
        self.batch = batch


class QueryFigures(Figures):
    """The metrics of a query that claims messages, and the numbers of remaining messages.

    Args:
        topic: The definition.

    Attributes:
        behind: Numbers of messages in no planned batch: due (`behind`), in the backlog, and in flight elsewhere.
    """

    def __init__(self, topic: Topic) -> None:
        super().__init__()
        self._topic = topic
        self.behind = {"behind": 0, "backlog": 0, "in_flight": 0}
        self._kept_s: float | None = None

    def kept(self, since_s: float | None) -> None:
        """Record the earliest start or renewal of the open batch's leases; `None` if no batch is open."""
        self._kept_s = since_s

    def settled(self, batch: int, settled: SettledBatch) -> None:
        """Add the counts of an acked batch to the totals."""
        ended = sum(settled.found.values()) - settled.lost - sum(settled.put_back.values())
        self.ended(batch, ended - settled.refused, lost=settled.lost, refused=settled.refused)

    @property
    def lease_left_s(self) -> float | None:
        """Remaining time of the open batch's leases, seconds; `None` if no batch is open."""
        kept_s = self._kept_s
        return None if kept_s is None else max(0.0, self._topic.lease_s - (monotonic_s() - kept_s))

    def progress(self) -> dict[str, Any]:
        """Return the metrics for Spark's progress report."""
        left_s = self.lease_left_s
        return {
            "topic": self._topic.name,
            **self.behind,
            **self.totals,
            "lease_left_s": None if left_s is None else round(left_s, 1),
            "redis_s": round(self.time.seconds, 3),
        }

    def report(self, query: str) -> SparkQuery:
        """Return the metrics in the form that is stored in Redis."""
        own = self.time.seconds, self.behind["behind"], self.lease_left_s
        return SparkQuery(ROLE, query, self.batch, 0, 0, self.totals, *own)


class LogFigures(Figures):
    """The metrics of a query on a STREAM topic, which has no leases and cannot refuse messages.

    Args:
        topic: Name of the topic.
        group: Name of its group.

    Attributes:
        lag: Slot -> number of entries after the planned batches; `None` if unknown.
    """

    def __init__(self, topic: str, group: str) -> None:
        super().__init__()
        self._topic, self._group = topic, group
        self.lag: dict[int, int | None] = {}

    @property
    def _behind(self) -> int | None:
        lags = list(self.lag.values())
        return None if None in lags else sum(lag or 0 for lag in lags)

    def committed(self, batch: LogBatch) -> None:
        """Count a committed batch, once."""
        if batch.seq > self.batch:
            spans = batch.spans.values()
            self.ended(batch.seq, sum(span.number for span in spans), lost=sum(span.missing for span in spans))

    def progress(self) -> dict[str, Any]:
        """Return the metrics for Spark's progress report."""
        own = {event: number for event, number in self.totals.items() if event != "refused"}
        named = {"topic": self._topic, "group": self._group, "behind": self._behind}
        return {**named, **own, "redis_s": round(self.time.seconds, 3)}

    def report(self) -> SparkQuery:
        """Return the metrics in the form that is stored in Redis."""
        return SparkQuery(ROLE, self._group, self.batch, 0, 0, self.totals, self.time.seconds, self._behind)


def report_task(connections: Connections, topic: str, query: str, time: RedisTime) -> None:
    """Add a task's waiting time for Redis to its query's report, ignoring errors: metrics must not fail a task."""
    with suppress(RmqError):
        SparkQueries(connections, topic).add_time(ROLE, query, time.seconds)


def report_write(options: Options, role: str, name: str, batch: int, topics: Mapping[str, Mapping[str, int]]) -> None:
    """Add a written batch to the metrics of its query, which the dashboard and Prometheus read.

    Args:
        options: The options of the write, with the address of Redis.
        role: `sink` or `write`.
        name: Identity of the query, or the `txnAppId` of the write.
        batch: Number of the batch.
        topics: Topic -> total counts of all tasks, and `redis_us`, their time in Redis.
    """
    try:
        with closing(options.connections(most_s=WRITE_DEADLINE_S)) as connections:
            for topic, counts in topics.items():
                totals = {event: number for event, number in counts.items() if event != "redis_us"}
                SparkQueries(connections, topic).add(role, name, batch, totals, counts["redis_us"] / 1_000_000)
    except RmqError as error:
        log.info("the metrics of batch %d of %s %s could not be stored: %s", batch, role, name, error)


class Reporter:
    """Keeps the report of a query in Redis up to date, in a separate thread.

    Args:
        url: URL of Redis.
        topic: Name of the topic.
        report: Returns the report.
    """

    def __init__(self, url: str, topic: str, report: Callable[[], SparkQuery]) -> None:
        self._connections = Connections(parse_url(url), deadline_s=REPORT_DEADLINE_S)
        self._reports, self._report = SparkQueries(self._connections, topic), report
        self._topic = topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rmq-spark-report", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Store a last report, and stop the thread."""
        self._stopping.set()
        self._thread.join()
        self._publish()
        self._connections.close()

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
            log.info("the metrics of the query on topic %s could not be stored: %s", self._topic, error)


class RedisTime:
    """Adds up the time that a task, or a driver with its threads, waits for calls to Redis.

    Attributes:
        seconds: Total time so far, seconds.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._lock = threading.Lock()

    @contextmanager
    def counted(self, *, waited: bool = True) -> Generator[None]:
        """Context manager that adds the time of its block; with `waited=False` it excludes it from one around it."""
        began_s = monotonic_s()
        try:
            yield
        finally:
            seconds = monotonic_s() - began_s
            with self._lock:
                self.seconds += seconds if waited else -seconds
