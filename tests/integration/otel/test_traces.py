"""One trace from the send to the ack, across processes; others see nothing of it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.propagators.textmap import Getter, Setter, TextMapPropagator, default_getter, default_setter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

from rmq import Collect, Delivery, Merge, PriorityMessage, RangeMergeMessage, Replace, RmqClient, TopicType
from rmq.otel import Telemetry
from rmq.spi import read_context
from tests.conftest import MakeTopic
from tests.support.clients import run_until


def spans_of(*args: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.support.traced_worker", *args]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def watched(
    client: RmqClient, propagator: TextMapPropagator | None = None
) -> tuple[InMemorySpanExporter, InMemoryMetricReader]:
    spans, reader, tracers = InMemorySpanExporter(), InMemoryMetricReader(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    client.observers.all.append(Telemetry(tracers, MeterProvider([reader]), propagator))
    return spans, reader


def test_from_the_send_to_the_ack_across_two_processes(redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    with RmqClient(redis_url) as client:
        client.producer(topic)
        sends = spans_of(redis_url, topic.name, "send", "a", "b")
        assert [span["name"] for span in sends] == [f"send {topic.name}"] * 2
        assert {message.body for message in client.inspect(topic).peek()} == {b"body of b", b"body of a"}
        process, settle = spans_of(redis_url, topic.name, "work")
        assert client.inspect(topic).stats().total("acked") == 2
    assert (process["name"], settle["name"]) == (f"process {topic.name}", f"settle {topic.name}")
    first = next(span for span in sends if span["trace"] == process["trace"])
    other = next(span for span in sends if span is not first)
    assert process["parent"] == first["span"]
    assert process["links"] == [other["trace"]]
    assert (settle["trace"], settle["parent"]) == (first["trace"], process["span"])
    assert settle["attributes"]["rmq.outcome"] == "ack"
    assert process["attributes"]["messaging.batch.message_count"] == 2


def test_who_has_no_tracing_sees_only_the_body(redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, max_retries=0)
    with RmqClient(redis_url) as traced, RmqClient(redis_url) as plain:
        watched(traced)
        traced.producer(topic).send_many([PriorityMessage("a", 100), PriorityMessage("b", 100, body=b"B")])
        assert {message.content: message.body for message in plain.inspect(topic).peek()} == {b"a": None, b"b": b"B"}
        assert plain.inspect(topic).find("b").stored is not None
        found = plain.inspect(topic).search("*").messages
        assert {message.content: (message.body, message.body_bytes) for message in found}[b"b"] == (b"B", 1)
        with plain.consumer(topic) as consumer:
            for delivery in consumer.poll(10):
                assert delivery.body == (b"B" if delivery.content == b"b" else None)
                assert delivery.trace.startswith("00-")
                delivery.bury("no")
        assert {message.content: message.body for message in plain.dead(topic).list()} == {b"a": None, b"b": b"B"}


def test_a_merge_keeps_the_trace_of_the_newest_body(redis_url: str, make_topic: MakeTopic) -> None:
    merged, last = make_topic(TopicType.RANGE_MERGE), make_topic(TopicType.PRIORITY)
    with RmqClient(redis_url) as client:
        spans, _ = watched(client)
        for body in ("1", "2"):
            client.producer(merged).send(RangeMergeMessage("a", time_range_ms=50, body=body))
            client.producer(last).send(PriorityMessage("a", 100, body=body))
        client.producer(merged).send(RangeMergeMessage("a", time_range_ms=50))
        client.producer(last).send(PriorityMessage("a", 100))
        sent = [span.get_span_context() for span in spans.get_finished_spans()]
        ids = [f"{context.trace_id:032x}" for context in sent if context is not None]
        for topic, body, trace in ((merged, b"2", ids[2]), (last, b"2", ids[3])):
            with client.consumer(topic) as consumer:
                found = consumer.poll(1, 20)
                assert [(each.body, each.trace.split("-")[1]) for each in found] == [(body, trace)]
                found[0].ack()


def test_a_span_says_how_many_sends_its_handler_got_at_once(redis_url: str, make_topic: MakeTopic) -> None:
    merging, plain = make_topic(TopicType.PRIORITY, merge=Merge(Collect())), make_topic(TopicType.PRIORITY)
    with RmqClient(redis_url) as client:
        spans, _ = watched(client)
        for topic in (merging, plain):
            client.producer(topic).send_many(PriorityMessage(name, 9, body="item") for name in "aab")
            client.listener(topic, batch=10)(list)
        run_until(client, lambda: sum(span.name.startswith("process") for span in spans.get_finished_spans()) == 2, 60)
    found = {span.name: dict(span.attributes or {}) for span in spans.get_finished_spans()}
    assert found[f"process {merging.name}"]["rmq.merged"] == 3
    assert found[f"process {merging.name}"]["messaging.batch.message_count"] == 2
    assert "rmq.merged" not in found[f"process {plain.name}"]


def test_a_handler_that_fails_is_a_failed_span_and_is_measured(redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, max_retries=0)
    with RmqClient(redis_url) as client:
        spans, reader = watched(client)

        @client.listener(topic)
        def handle(delivery: Delivery) -> None:
            raise ValueError("no")

        client.producer(topic).send(PriorityMessage("a", 100))
        run_until(client, lambda: len(spans.get_finished_spans()) == 3, 60)
        send, process, settle = spans.get_finished_spans()
    assert len({span.context.trace_id for span in (send, process, settle)}) == 1  # pyright: ignore[reportOptionalMemberAccess]
    assert not process.status.is_ok
    assert process.events[0].name == "exception"
    assert dict(settle.attributes or {})["rmq.outcome"] == "retry"
    assert "messaging.process.duration" in str(reader.get_metrics_data())


def test_the_repeat_of_a_named_call_is_one_whatever_its_trace(redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, merge=Merge(Replace()))
    message, bare = PriorityMessage("a", 100, body=b"A"), PriorityMessage("b", 100)
    with RmqClient(redis_url) as traced, RmqClient(redis_url) as plain:
        watched(traced)
        for client in (traced, traced, plain):
            assert client.producer(topic).send(message, once="one").new == 1
            assert client.producer(topic).send_many([message, bare], once="two").accepted == 2
        assert plain.inspect(topic).stats().total("accepted") == 3
        assert {each.text: each.body for each in plain.inspect(topic).peek()} == {"a": b"A", "b": None}


class OneHeader(TextMapPropagator):
    """Writes a context as B3 does, in one header of its own."""

    def inject(self, carrier: Any, context: Context | None = None, setter: Setter[Any] = default_setter) -> None:
        span = trace.get_current_span(context).get_span_context()
        setter.set(carrier, "b3", f"{span.trace_id:032x}-{span.span_id:016x}-1")

    def extract(self, carrier: Any, context: Context | None = None, getter: Getter[Any] = default_getter) -> Context:
        ids = (getter.get(carrier, "b3") or ["0-0"])[0].split("-")
        span = SpanContext(int(ids[0], 16), int(ids[1], 16), True, TraceFlags(TraceFlags.SAMPLED))
        return trace.set_span_in_context(NonRecordingSpan(span), context)

    @property
    def fields(self) -> set[str]:
        return {"b3"}


@pytest.mark.parametrize("own", [False, True])
def test_the_context_is_that_of_the_configured_propagator(redis_url: str, make_topic: MakeTopic, own: bool) -> None:
    topic, seen = make_topic(TopicType.PRIORITY), []
    with RmqClient(redis_url) as client:
        spans, _ = watched(client, OneHeader() if own else None)

        @client.listener(topic)
        def handle(delivery: Delivery) -> None:
            seen.append((baggage.get_baggage("tenant"), read_context(delivery.trace).keys()))

        parent = SpanContext(7, 8, False, TraceFlags(TraceFlags.SAMPLED), TraceState([("vendor", "x")]))
        token = attach(trace.set_span_in_context(NonRecordingSpan(parent), baggage.set_baggage("tenant", "Zoë")))
        try:
            client.producer(topic).send(PriorityMessage("a", 100, body=b"A"))
        finally:
            detach(token)
        assert [message.body for message in client.inspect(topic).peek()] == [b"A"]
        run_until(client, lambda: len(spans.get_finished_spans()) == 3, 60)
    assert seen == [(None, {"b3"}) if own else ("Zoë", {"traceparent", "tracestate", "baggage"})]
    assert {span.context.trace_id for span in spans.get_finished_spans() if span.context} == {7}
    assert baggage.get_baggage("tenant") is None


def test_what_is_too_long_leaves_its_baggage_behind(redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    token = attach(baggage.set_baggage("much", "x" * 3_000))
    try:
        with RmqClient(redis_url) as client:
            watched(client)
            client.producer(topic).send(PriorityMessage("a", 100, body=b"A"))
            with client.consumer(topic) as consumer:
                delivery = consumer.poll(1)[0]
                assert (delivery.body, read_context(delivery.trace).keys()) == (b"A", {"traceparent"})
    finally:
        detach(token)
