"""Traces and metrics for OpenTelemetry: spans of sends, handlers and acks, and a histogram of handler durations.

Needs `pip install 'rmq[otel]'`, and an SDK that you configure. Call `client.observers.all.append(Telemetry())` in
senders and workers, before creating producers and starting listeners.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

try:
    from opentelemetry import metrics, propagate, trace
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("OpenTelemetry needs the package opentelemetry-api: pip install 'rmq[otel]'") from error

from opentelemetry.context import Context, attach, detach
from opentelemetry.metrics import MeterProvider
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TracerProvider

from rmq import Delivery, Observer, Topic
from rmq.spi import monotonic_s, read_context, written_context

__all__ = ["Telemetry"]


class Telemetry(Observer):
    """Creates spans and metrics. `send <topic>`, `process <topic>` and `settle <topic>` belong to one trace.

    The context of a send, in the form of the propagator, is stored in front of the message's body: as a W3C traceparent
    or, if there are other headers (tracestate, baggage, B3), as JSON with their names and values. A context of more
    than 2,048 characters loses its baggage, then its tracestate. A handler runs in the context of its message, so it
    sees the sender's baggage. If sends merge, the context is that of the body that is kept: the newest one, or the one
    that the topic's `merge` keeps. Messages that merge into a number or into items have no context. A batch continues
    the trace of its first message, and links the others.

    Args:
        tracers: The SDK's tracer provider; the global one by default.
        meters: The SDK's meter provider; the global one by default.
        propagator: Writes and reads contexts; by default the global one, which `OTEL_PROPAGATORS` chooses.

    Examples:
        >>> from rmq.otel import Telemetry
        >>> client.observers.all.append(Telemetry())
    """

    def __init__(
        self,
        tracers: TracerProvider | None = None,
        meters: MeterProvider | None = None,
        propagator: TextMapPropagator | None = None,
    ) -> None:
        self._tracer = trace.get_tracer("rmq", tracer_provider=tracers)
        meter = metrics.get_meter("rmq", meter_provider=meters)
        self._propagator = propagator
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Send calls.")
        self._seconds = meter.create_histogram("messaging.process.duration", "s", "Duration of handler calls.")

    @contextmanager
    def sending(self, topic: Topic, messages: int) -> Generator[str]:
        """Create the span of a send."""
        attributes = {"messaging.system": "rmq", "messaging.operation.type": "send",
                      "messaging.destination.name": topic.name}  # fmt: skip
        self._sent.add(1, {"messaging.destination.name": topic.name})
        with self._tracer.start_as_current_span(f"send {topic.name}", kind=SpanKind.PRODUCER, attributes=attributes):
            yield self._current()

    @contextmanager
    def handling(self, deliveries: Sequence[Delivery]) -> Generator[None]:
        """Create the span of a handler call, a child of the first message's send."""
        first = deliveries[0]
        attributes = {
            "messaging.system": "rmq", "messaging.operation.type": "process", "rmq.slot": first.slot,
            "messaging.destination.name": first.topic.name, "messaging.batch.message_count": len(deliveries),
            "rmq.attempt": first.attempt,
        }  # fmt: skip
        if first.topic.merge is not None:
            attributes["rmq.merged"] = sum(delivery.merged for delivery in deliveries)
        links = [Link(span) for delivery in deliveries[1:] if (span := self._span_of(delivery.trace)).is_valid]
        began_s, outcome = monotonic_s(), "failed"
        before = attach(self._context_of(first.trace))  # with its baggage, which a parent alone would not bring
        try:
            with self._tracer.start_as_current_span(
                f"process {first.topic.name}", None, SpanKind.CONSUMER, attributes, links
            ):
                here = self._current()
                for delivery in deliveries:
                    delivery.trace = here
                yield
            outcome = "done"
        finally:
            detach(before)
            labels = {"messaging.destination.name": first.topic.name, "rmq.outcome": outcome}
            self._seconds.record(monotonic_s() - began_s, labels)

    def settled(self, deliveries: Sequence[Delivery]) -> None:
        """Create a span for the outcomes of each handler call once Redis has stored them."""
        for delivery in {delivery.trace: delivery for delivery in deliveries if delivery.trace}.values():
            if delivery.outcome is None:
                continue
            verb = "lost" if delivery.lost else delivery.outcome.verb.value
            span = self._tracer.start_span(
                f"settle {delivery.topic.name}", self._context_of(delivery.trace), SpanKind.CLIENT,
                {"messaging.system": "rmq", "messaging.operation.type": "settle", "rmq.outcome": verb},
            )  # fmt: skip
            if verb == "lost":
                span.set_status(Status(StatusCode.ERROR, "the lease expired before the outcome was stored"))
            span.end()

    def _current(self) -> str:
        carrier: dict[str, str] = {}
        self._propagators.inject(carrier)  # pyright: ignore[reportArgumentType] - of the default of a parameter
        return written_context(carrier)

    def _context_of(self, trace: str) -> Context:
        return self._propagators.extract(read_context(trace), Context())

    def _span_of(self, trace_context: str) -> SpanContext:
        return trace.get_current_span(self._context_of(trace_context)).get_span_context()

    @property
    def _propagators(self) -> TextMapPropagator:
        return self._propagator or propagate.get_global_textmap()
