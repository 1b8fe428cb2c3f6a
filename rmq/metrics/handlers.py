"""How long a worker's handlers take, how many run, what came of them, and how many sends they got at once."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from rmq._model.deliveries import Delivery, Verb
from rmq._model.observers import Observer
from rmq._model.times import monotonic_s

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
SENDS_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 10_000, 100_000)


class Handlers(Observer):
    """Measures the handlers of a client: `client.observers.all.append(Handlers(registry))`, before they start.

    Args:
        registry: Where the metrics are registered.

    Examples:
        >>> from prometheus_client import CollectorRegistry
        >>> from rmq.metrics import Handlers
        >>> client.observers.all.append(Handlers(CollectorRegistry()))
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["topic", "outcome"]
        self._seconds = Histogram(
            "rmq_handler_seconds", "How long calls of handlers took.", labels, buckets=BUCKETS, registry=registry
        )
        self._running = Gauge("rmq_handlers_running", "Calls of handlers that run.", ["topic"], registry=registry)
        self._settled = Counter(
            "rmq_deliveries_settled", "Deliveries whose outcome reached Redis.", labels, registry=registry
        )
        stood_for = "How many sends a delivery stood for, on topics with merge; a repeated delivery counts again."
        self._sends = Histogram("rmq_delivery_sends", stood_for, ["topic"], buckets=SENDS_BUCKETS, registry=registry)

    @contextmanager
    def handling(self, deliveries: Sequence[Delivery]) -> Generator[None]:
        """Time a call, and note what it stands for."""
        topic = deliveries[0].topic.name
        if deliveries[0].topic.merge is not None:
            sends = self._sends.labels(topic)
            for delivery in deliveries:
                sends.observe(delivery.merged)
        began_s, outcome = monotonic_s(), "failed"
        self._running.labels(topic).inc()
        try:
            yield
            nacked = any(each.outcome is not None and each.outcome.verb is not Verb.ACK for each in deliveries)
            outcome = "failed" if nacked else "done"
        finally:
            self._running.labels(topic).dec()
            self._seconds.labels(topic, outcome).observe(monotonic_s() - began_s)

    def settled(self, deliveries: Sequence[Delivery]) -> None:
        """Count outcomes."""
        for delivery in deliveries:
            if delivery.outcome is not None:
                verb = "lost" if delivery.lost else delivery.outcome.verb.value
                self._settled.labels(delivery.topic.name, verb).inc()
