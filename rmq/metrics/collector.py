"""Metrics of all topics, read from Redis at each scrape, with a short cache."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rmq import ListenerInfo, RmqClient, SparkQuery, Topic, TopicStats, TopicType, WorkerInfo
from rmq.errors import RedisUnavailableError, RmqError
from rmq.spi import TOTALS, monotonic_s

T = TypeVar("T")
log = logging.getLogger("rmq.metrics")

KEEP_S = 2.0
"""Time within which scrapes share one reading of Redis, seconds."""


class TopicsCollector(Collector):
    """Exports all topics of a client's Redis: sizes, lateness, totals, owners and memory.

    A reading costs one short script call per slot of each topic. The scripts scan no data.

    Args:
        client: The client to use.
        keep_s: Seconds for which a reading is reused.

    Examples:
        >>> from prometheus_client import CollectorRegistry
        >>> from rmq.metrics import TopicsCollector
        >>> registry = CollectorRegistry()
        >>> registry.register(TopicsCollector(client))
    """

    def __init__(self, client: RmqClient, keep_s: float = KEEP_S) -> None:
        self._client = client
        self._keep_s = keep_s
        self._lock = threading.Lock()
        self._metrics: list[Metric] = []
        self._until_s = 0.0
        self._unavailable = False  # a part of the last reading

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the metric families depend on the topics."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return all metrics that can be read.

        `rmq_unread` is 1 for each part that could not be read (definitions, workers or memory), and
        `rmq_topic_unreadable` for each such topic. If Redis did not answer for one of them, `rmq_up` is 0.
        """
        with self._lock:
            if monotonic_s() >= self._until_s:
                self._metrics = self._read()
                self._until_s = monotonic_s() + self._keep_s
            return list(self._metrics)

    def _read(self) -> list[Metric]:
        figures, self._unavailable = Figures(), False
        definitions = self._part(figures, "definitions", self._client.definitions)
        if definitions is not None:
            figures.unreadable.add_metric([], len(definitions.unreadable))
            workers = self._part(figures, "workers", self._client.workers)
            if workers is not None:
                workers = [worker for worker in workers if not worker.stale]
                figures.workers.add_metric([], len(workers))
                take_listeners(figures, [each for worker in workers for each in worker.listeners])
            for topic in definitions.topics:
                self._read_topic(figures, topic, workers)
            self._part(figures, "memory", lambda: self._read_memory(figures))
        figures.up.add_metric([], 0 if self._unavailable else 1)
        return figures.all

    def _part(self, figures: Figures, part: str, read: Callable[[], T]) -> T | None:
        """Read a part; log an error and return `None` if it fails, since the servers of other parts may answer."""
        try:
            return read()
        except RmqError as error:
            log.warning("metrics are incomplete; cannot read %s: %s", part, error)
            figures.unread.add_metric([part], 1)
            self._unavailable = self._unavailable or isinstance(error, RedisUnavailableError) or part != "workers"
            return None

    def _read_topic(self, figures: Figures, topic: Topic, workers: Iterable[WorkerInfo] | None) -> None:
        try:
            if topic.type is TopicType.STREAM:
                self._read_stream(figures, topic)
            else:
                view = self._client.inspect(topic)
                stats = view.stats()
                figures.take(stats)
                if workers is not None:
                    count_unowned(figures, stats, workers)
                take_queries(figures, topic.name, view.spark_queries())
        except RmqError as error:
            log.warning("cannot read metrics of topic %s: %s", topic.name, error)
            figures.errors.add_metric([topic.name], 1)
            self._unavailable = self._unavailable or isinstance(error, RedisUnavailableError)

    def _read_stream(self, figures: Figures, topic: Topic) -> None:
        view = self._client.stream(topic)
        stats, groups = view.with_groups()
        figures.length.add_metric([topic.name], stats.length)
        figures.total.add_metric([topic.name, "accepted"], stats.total("accepted"))
        for group in groups:
            labels = [topic.name, group.group]
            if group.lag is not None:
                figures.lag.add_metric(labels, group.lag)
            figures.group_in_flight.add_metric(labels, group.in_flight)
            figures.group_waiting.add_metric(labels, group.waiting)
            figures.group_dead.add_metric(labels, group.dead)
        take_queries(figures, topic.name, view.spark_queries())

    def _read_memory(self, figures: Figures) -> None:
        for address, info in self._client.server_memory().items():
            figures.memory_used.add_metric([address], info.used_bytes)
            figures.memory_limit.add_metric([address], info.limit_bytes)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"rmq_{name}", text, labels=labels)


class Figures:
    """The metric families of one reading of Redis."""

    def __init__(self) -> None:
        self.up = _gauge("up", "1 if Redis answered all requests, else 0.")
        self.unread = _gauge("unread", "1 for a part that could not be read: definitions, workers or memory.", "part")
        self.errors = _gauge("topic_unreadable", "1 for a topic that could not be read.", "topic")
        self.unreadable = _gauge(
            "definitions_unreadable", "Registered definitions that this version of RMQ cannot read."
        )
        self.backlog = _gauge("backlog", "Messages in the backlog.", "topic")
        self.due = _gauge("due", "Messages in the backlog that may be delivered now.", "topic")
        self.in_flight = _gauge("in_flight", "Messages in flight.", "topic")
        self.waiting = _gauge("waiting", "Failed messages that wait for a retry.", "topic")
        self.dead = _gauge("dead", "Dead messages.", "topic")
        late = "Seconds since the oldest due message became due; not for PRIORITY topics."
        self.late = _gauge("oldest_due_age_seconds", late, "topic")
        happened = "Events of messages since the topic was created."
        self.total = CounterMetricFamily("rmq_messages", happened, labels=["topic", "event"])
        self.merged = _gauge("merged_ratio", "Share of sends that merged since the topic was created, 0 to 1.", "topic")
        self.slots = _gauge("slots", "Slots of the topic.", "topic")
        self.paused = _gauge("slots_paused", "Paused slots.", "topic")
        unowned = "Slots that had an owner before and have no active owner now."
        self.unowned = _gauge("slots_unowned", unowned, "topic")
        self.unaccounted = _gauge(
            "unaccounted", "Messages lost or duplicated, by the topic's counters; 0 unless there is an error.", "topic"
        )
        self.workers = _gauge("workers", "Processes with running listeners.")
        allowed = "Handlers that all workers together may run in parallel now; Adaptive and pauses reduce it."
        self.allowed = _gauge("handlers_allowed", allowed, "topic")
        throttled = "Workers whose claims the topic's rate limit has delayed recently."
        self.throttled = _gauge("workers_throttled", throttled, "topic")
        longest = "Run time of the longest running handler, by the workers' last reports; 0 if none runs."
        self.longest = _gauge("longest_handler_seconds", longest, "topic")
        hung = "Handlers that have run longer than their listener's timeout and were abandoned."
        self.hung = _gauge("handlers_hung", hung, "topic")
        self.length = _gauge("stream_length", "Entries of a stream topic.", "topic")
        self.lag = _gauge("group_lag", "Entries that a group has not read yet.", "topic", "group")
        self.group_in_flight = _gauge("group_in_flight", "Entries in flight.", "topic", "group")
        self.group_waiting = _gauge("group_waiting", "Entries that wait for a retry.", "topic", "group")
        self.group_dead = _gauge("group_dead", "Dead entries.", "topic", "group")
        query = ("topic", "role", "query")
        spark = "Events of Spark queries on the topic."
        self.spark = CounterMetricFamily("rmq_spark", spark, labels=[*query, "event"])
        waited = "Time that Spark queries have spent in calls to Redis."
        self.spark_redis = CounterMetricFamily("rmq_spark_redis_seconds", waited, labels=query)
        behind = "Due messages that are not in a batch of the query yet."
        self.spark_behind = _gauge("spark_behind", behind, *query)
        left = "Time until the leases of the query's batch expire."
        self.spark_lease = _gauge("spark_lease_left_seconds", left, *query)
        self.spark_silent = _gauge("spark_report_age_seconds", "Time since the query's last report.", *query)
        self.memory_used = _gauge("redis_memory_used_bytes", "Memory that Redis uses.", "server")
        self.memory_limit = _gauge("redis_memory_limit_bytes", "Redis' maxmemory; 0 for none.", "server")

    @property
    def all(self) -> list[Metric]:
        """All metric families, in the order of their definition."""
        families: list[Any] = list(vars(self).values())
        return families

    def take(self, stats: TopicStats) -> None:
        """Add the figures of a topic."""
        name = [stats.topic.name]
        self.backlog.add_metric(name, stats.backlog)
        self.due.add_metric(name, stats.due_now)
        self.in_flight.add_metric(name, stats.in_flight)
        self.waiting.add_metric(name, stats.waiting)
        self.dead.add_metric(name, stats.dead)
        self.slots.add_metric(name, len(stats.slots))
        self.paused.add_metric(name, sum(slot.paused for slot in stats.slots))
        self.unaccounted.add_metric(name, stats.unaccounted)
        if stats.topic.type.timed:
            self.late.add_metric(name, stats.lateness_ms / 1000)
        self.merged.add_metric(name, stats.merged_ratio)
        for event in TOTALS:
            self.total.add_metric([*name, event], stats.total(event))


def take_queries(figures: Figures, topic: str, queries: Iterable[SparkQuery]) -> None:
    """Add the reports of Spark queries on a topic."""
    for query in queries:
        labels = [topic, query.role, query.name]
        for event, number in query.totals.items():
            figures.spark.add_metric([*labels, event], number)
        figures.spark_redis.add_metric(labels, query.redis_s)
        figures.spark_silent.add_metric(labels, query.silent_ms / 1_000)
        if query.behind is not None:
            figures.spark_behind.add_metric(labels, query.behind)
        if query.lease_left_now_s is not None:
            figures.spark_lease.add_metric(labels, query.lease_left_now_s)


def take_listeners(figures: Figures, listeners: Iterable[ListenerInfo]) -> None:
    """Add the workers' reports of their listeners, by topic."""
    by_topic: defaultdict[str, list[ListenerInfo]] = defaultdict(list)
    for listener in listeners:
        by_topic[listener.topic].append(listener)
    for topic, of_topic in by_topic.items():
        figures.allowed.add_metric([topic], sum(listener.allowed for listener in of_topic))
        figures.throttled.add_metric([topic], sum(listener.throttled for listener in of_topic))
        running = [one for listener in of_topic for one in listener.running]
        figures.longest.add_metric([topic], max((one.running_ms for one in running), default=0) / 1000)
        figures.hung.add_metric([topic], sum(one.hung for one in running))


def count_unowned(figures: Figures, stats: TopicStats, workers: Iterable[WorkerInfo]) -> None:
    """Count unowned slots of a topic whose slots have owners."""
    if any(slot.epoch for slot in stats.slots):  # then all slots have owners, even those without an epoch yet
        here = {slot for worker in workers for listener in worker.listeners
                if listener.topic == stats.topic.name for slot in listener.slots}  # fmt: skip
        figures.unowned.add_metric([stats.topic.name], len({slot.slot for slot in stats.slots} - here))
