"""All topics' figures, read from Redis when Prometheus asks, at most once in a while."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rmq._model.figures import TOTALS, TopicStats
from rmq._model.times import monotonic_s
from rmq._model.topics import Topic, TopicType
from rmq._model.workers import WorkerInfo
from rmq.client import RmqClient
from rmq.errors import RedisUnavailableError, RmqError

log = logging.getLogger("rmq.metrics")

KEEP_S = 2.0
"""Several Prometheus servers that ask at the same time cost Redis one reading."""

TROUBLE = RmqError


class TopicsCollector(Collector):
    """Reads every topic of a client's Redis: sizes, lateness, totals, owners, memory.

    Each topic costs one short script a slot; in a slot nothing is scanned.

    Args:
        client: Where.
        keep_s: For how long a reading is handed out again.
    """

    def __init__(self, client: RmqClient, keep_s: float = KEEP_S) -> None:
        self._client = client
        self._keep_s = keep_s
        self._lock = threading.Lock()
        self._found: list[Metric] = []
        self._until_s = 0.0

    def describe(self) -> Iterable[Metric]:
        """Return nothing: what there is, is seen when it is read."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return all metrics; where Redis does not answer, `rmq_up` says so."""
        with self._lock:
            if monotonic_s() >= self._until_s:
                self._found = self._read()
                self._until_s = monotonic_s() + self._keep_s
            return list(self._found)

    def _read(self) -> list[Metric]:
        figures = Figures()
        try:
            definitions = self._client.definitions()
            figures.unreadable.add_metric([], len(definitions.unreadable))
            workers = self._workers()
            for topic in definitions.topics:
                self._read_topic(figures, topic, workers)
            if workers is not None:
                figures.workers.add_metric([], len(workers))
            self._read_memory(figures)
        except TROUBLE as error:
            log.warning("metrics are not complete: %s", error)
            figures.up.add_metric([], 0)
        else:
            figures.up.add_metric([], 1)
        return figures.all

    def _workers(self) -> list[WorkerInfo] | None:
        """Return who works; `None` where something else than RMQ has written where they report."""
        try:
            return [worker for worker in self._client.workers() if not worker.stale]
        except RedisUnavailableError:
            raise
        except TROUBLE as error:
            log.warning("the workers cannot be read: %s", error)
            return None

    def _read_topic(self, figures: Figures, topic: Topic, workers: Iterable[WorkerInfo] | None) -> None:
        try:
            if topic.type is TopicType.STREAM:
                self._read_stream(figures, topic)
            else:
                stats = self._client.inspect(topic).stats()
                figures.take(stats)
                if workers is not None:
                    count_unowned(figures, stats, workers)
        except TROUBLE as error:
            log.warning("no metrics of topic %s: %s", topic.name, error)
            figures.errors.add_metric([topic.name], 1)

    def _read_stream(self, figures: Figures, topic: Topic) -> None:
        stream = self._client.stream(topic)
        stats = stream.stats()
        figures.length.add_metric([topic.name], stats.length)
        figures.total.add_metric([topic.name, "accepted"], stats.total("accepted"))
        for name in stats.groups:
            group = stream.group(name)
            labels = [topic.name, name]
            if group.lag is not None:
                figures.lag.add_metric(labels, group.lag)
            figures.group_in_flight.add_metric(labels, group.in_flight)
            figures.group_waiting.add_metric(labels, group.waiting)
            figures.group_dead.add_metric(labels, group.dead)

    def _read_memory(self, figures: Figures) -> None:
        for address, info in self._client.server_memory().items():
            figures.memory_used.add_metric([address], info.used_bytes)
            figures.memory_limit.add_metric([address], info.limit_bytes)


class Figures:
    """The metric families, empty."""

    def __init__(self) -> None:
        topic, group, server = ["topic"], ["topic", "group"], ["server"]
        self.up = GaugeMetricFamily("rmq_up", "1 where Redis answered all questions, else 0.", labels=[])
        self.errors = GaugeMetricFamily("rmq_topic_unreadable", "1 for a topic that could not be read.", labels=topic)
        self.unreadable = GaugeMetricFamily("rmq_definitions_unreadable", "Registered definitions that this version of "
                                            "RMQ cannot read.", labels=[])  # fmt: skip
        self.backlog = GaugeMetricFamily("rmq_backlog", "Messages in store.", labels=topic)
        self.due = GaugeMetricFamily("rmq_due", "Messages in store that may be delivered now.", labels=topic)
        self.in_flight = GaugeMetricFamily("rmq_in_flight", "Claimed messages.", labels=topic)
        self.waiting = GaugeMetricFamily("rmq_waiting", "Failed messages that wait for their retry.", labels=topic)
        self.dead = GaugeMetricFamily("rmq_dead", "Dead messages.", labels=topic)
        self.late = GaugeMetricFamily("rmq_oldest_due_age_seconds", "For how long the oldest due message has been due; "
                                      "of PRIORITY topics unknown.", labels=topic)  # fmt: skip
        self.total = CounterMetricFamily("rmq_messages", "What happened to messages since the topic began.",
                                         labels=["topic", "event"])  # fmt: skip
        self.slots = GaugeMetricFamily("rmq_slots", "Slots of the topic.", labels=topic)
        self.paused = GaugeMetricFamily("rmq_slots_paused", "Slots from which nobody may claim.", labels=topic)
        self.unowned = GaugeMetricFamily("rmq_slots_unowned", "Slots, owned through ZooKeeper before, that no worker "
                                         "that reports has now.", labels=topic)  # fmt: skip
        self.unaccounted = GaugeMetricFamily(
            "rmq_unaccounted", "Messages that vanished or were invented: 0.", labels=topic
        )
        self.workers = GaugeMetricFamily("rmq_workers", "Processes with running listeners that report.", labels=[])
        self.length = GaugeMetricFamily("rmq_stream_length", "Entries of a stream topic.", labels=topic)
        self.lag = GaugeMetricFamily("rmq_group_lag", "Entries that a group has not had yet.", labels=group)
        self.group_in_flight = GaugeMetricFamily("rmq_group_in_flight", "Entries in handlers' hands.", labels=group)
        self.group_waiting = GaugeMetricFamily("rmq_group_waiting", "Entries that wait for a retry.", labels=group)
        self.group_dead = GaugeMetricFamily("rmq_group_dead", "Dead entries.", labels=group)
        self.memory_used = GaugeMetricFamily("rmq_redis_memory_used_bytes", "Memory that Redis uses.", labels=server)
        self.memory_limit = GaugeMetricFamily("rmq_redis_memory_limit_bytes", "Redis' maxmemory; 0 for none.",
                                              labels=server)  # fmt: skip

    @property
    def all(self) -> list[Metric]:
        """Every family, in the order above."""
        families: list[Any] = list(vars(self).values())
        return families

    def take(self, stats: TopicStats) -> None:
        """Add a topic."""
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
        for event in TOTALS:
            self.total.add_metric([*name, event], stats.total(event))


def count_unowned(figures: Figures, stats: TopicStats, workers: Iterable[WorkerInfo]) -> None:
    """Only where ZooKeeper gives the slots to owners: without it every worker claims from all of them."""
    if any(slot.epoch for slot in stats.slots):  # then all have owners, also those that nobody has owned so far
        here = {slot for worker in workers for each in worker.listeners
                if each.topic == stats.topic.name for slot in each.slots}  # fmt: skip
        figures.unowned.add_metric([stats.topic.name], len({slot.slot for slot in stats.slots} - here))
