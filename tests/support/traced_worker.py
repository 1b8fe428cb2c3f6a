"""A process that sends, or one that handles, with its spans written as JSON lines. Run with `python -m`.

python -m tests.support.traced_worker URL TOPIC (send|work) [CONTENT ...]
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from rmq import Delivery, PriorityMessage, RmqClient
from rmq.otel import Telemetry


class Lines(SpanExporter):
    """Writes each span at once."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            context, parent = span.get_span_context(), span.parent
            assert context is not None
            print(
                json.dumps(
                    {
                        "name": span.name,
                        "trace": context.trace_id,
                        "span": context.span_id,
                        "parent": parent.span_id if parent else None,
                        "links": [link.context.trace_id for link in span.links],
                        "attributes": dict(span.attributes or {}),
                        "ok": span.status.is_ok,
                    }
                ),
                flush=True,
            )
        return SpanExportResult.SUCCESS


def main() -> None:
    url, topic_name, what, *contents = sys.argv[1:]
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(Lines()))
    with RmqClient(url) as client:
        client.observers.all.append(Telemetry(tracers))
        topic = client.topic(topic_name)
        if what == "send":
            producer = client.producer(topic)
            for content in contents:
                producer.send(PriorityMessage(content, 100, body=f"body of {content}"))
            return
        done = threading.Event()

        @client.listener(topic, batch=10)
        def handle(deliveries: list[Delivery]) -> None:
            assert all(delivery.body == b"body of " + delivery.content for delivery in deliveries)
            done.set()

        client.start()
        assert done.wait(60)
        client.stop()


if __name__ == "__main__":
    main()
