"""The figures for Prometheus: of all topics, as Redis has them, and of the handlers of this worker.

The latter are durations, number running, outcomes, and sends per delivery.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from rmq import Delivery, ListenerInfo, Observer, RmqClient, SparkQuery, Topic, TopicStats, TopicType, Verb, WorkerInfo
from rmq.errors import RedisUnavailableError, RmqError
from rmq.spi import TOTALS, monotonic_s

T = TypeVar("T")
log = logging.getLogger("rmq.metrics")

KEEP_S = 2.0
"""Time within which scrapes share one reading of Redis, seconds."""

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
SENDS_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 10_000, 100_000)


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


class _Distribution:
    """A Prometheus histogram with values by labels. Thread-safe.

    Args:
        name: Name of the metric family.
        text: Help text of the metric family.
        labels: Names of the labels.
        bounds: Upper bounds of the buckets, ascending; the last bucket has none.
    """

    def __init__(self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self._family = name, text, labels
        self._bounds = bounds
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}

    def observe(self, value: float, *labels: str) -> None:
        """Count a value in the bucket of its labels."""
        with self._lock:
            counts = self._counts.setdefault(labels, [0] * (len(self._bounds) + 1))
            counts[bisect_left(self._bounds, value)] += 1
            self._sums[labels] = self._sums.get(labels, 0.0) + value

    def family(self) -> Metric:
        """Return the counts so far as a Prometheus metric family."""
        name, text, names = self._family
        family = HistogramMetricFamily(name, text, labels=names)
        ends = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        with self._lock:
            for labels, counts in self._counts.items():
                family.add_metric(labels, list(zip(ends, accumulate(counts), strict=True)), self._sums[labels])
        return family


class Handlers(Observer, Collector):
    """Measures the handlers of a client. Add it to `client.observers.all` before listeners start.

    The metrics cover this process only, even if `PROMETHEUS_MULTIPROC_DIR` is set, since a worker can have inherited
    the variable from a web server.

    Args:
        registry: Registry of the metrics.

    Examples:
        >>> from prometheus_client import CollectorRegistry
        >>> from rmq.metrics import Handlers
        >>> client.observers.all.append(Handlers(CollectorRegistry()))
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = "topic", "outcome"
        self._seconds = _Distribution("rmq_handler_seconds", "Duration of handler calls.", labels, BUCKETS)
        stood_for = "Sends merged into a delivery, on topics with merge; redeliveries count again."
        self._sends = _Distribution("rmq_delivery_sends", stood_for, ("topic",), SENDS_BUCKETS)
        self._lock = threading.Lock()
        self._running: Counter[str] = Counter()
        self._settled: Counter[tuple[str, str]] = Counter()
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of the handlers of this process."""
        running = GaugeMetricFamily("rmq_handlers_running", "Running handler calls.", labels=["topic"])
        text = "Deliveries whose outcome is stored in Redis."
        settled = CounterMetricFamily("rmq_deliveries_settled", text, labels=["topic", "outcome"])
        with self._lock:
            for topic, number in self._running.items():
                running.add_metric([topic], number)
            for labels, number in self._settled.items():
                settled.add_metric(labels, number)
        return [self._seconds.family(), running, settled, self._sends.family()]

    @contextmanager
    def handling(self, deliveries: Sequence[Delivery]) -> Generator[None]:
        """Measure the duration of a handler call; with `merge=`, also the number of sends merged into each delivery."""
        topic = deliveries[0].topic.name
        if deliveries[0].topic.merge is not None:
            for delivery in deliveries:
                self._sends.observe(delivery.merged, topic)
        began_s, outcome = monotonic_s(), "failed"
        self._run(topic, 1)
        try:
            yield
            nacked = any(each.outcome is not None and each.outcome.verb is not Verb.ACK for each in deliveries)
            outcome = "failed" if nacked else "done"
        finally:
            self._run(topic, -1)
            self._seconds.observe(monotonic_s() - began_s, topic, outcome)

    def settled(self, deliveries: Sequence[Delivery]) -> None:
        """Count deliveries whose outcomes have reached Redis: by outcome, or as `lost` if the lease was lost before."""
        verbs = [
            (delivery.topic.name, "lost" if delivery.lost else delivery.outcome.verb.value)
            for delivery in deliveries
            if delivery.outcome is not None
        ]
        with self._lock:
            self._settled.update(verbs)

    def _run(self, topic: str, more: int) -> None:
        with self._lock:
            self._running[topic] += more
