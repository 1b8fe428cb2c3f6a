"""Metrics of a worker's handlers: durations, number running, outcomes, and sends per delivery."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from rmq import Delivery, Observer, Verb
from rmq.spi import monotonic_s

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
SENDS_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 10_000, 100_000)


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
