"""How late a message reaches its handler: after its due time, or for PRIORITY after its send."""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import rendering
from benchmarks.children import Child, Line
from benchmarks.harness import Benchmark, Document, Row, say
from benchmarks.loads import TYPES
from benchmarks.meters import Meter, cpu_s, percentiles, rounded
from benchmarks.servers import Servers, standalone
from rmq import FixedTimeMessage, PriorityMessage, RangeMergeMessage, RmqClient, Topic, TopicType
from rmq.delivery import Delivery
from rmq.messages import Message

RATES_PER_S = (1_000, 10_000)
SLOTS = (1, 1_024)
AHEAD_S = 1.5
"""How long before its due time a message of a time topic is sent, at least."""
CHUNK_S = 1.0
"""Time topics are sent a second's load at a time, in bulk."""
TICK_S = 0.001
"""Priority messages are sent as they come, every millisecond."""
OTHER_PER_S = 2_000
"""Messages of the other topic that keep a busy consumer busy."""
LIMIT_S = 120.0


def measure(options: argparse.Namespace) -> Document:
    """Measure the time from due (PRIORITY: from the send) to the entry of the handler, with idle and busy consumers."""
    seconds = options.seconds or (3 if options.quick else 10)
    samples: dict[tuple[str, int, int, bool], list[Row]] = {}
    with standalone() as servers:
        offset_us = clock_offset_us(servers)
        for repeat in range(options.repeats):
            for topic_type in TYPES:
                for rate in RATES_PER_S:
                    for slots in SLOTS:
                        for busy in (False, True):
                            say(
                                f"latency: repeat {repeat + 1} of {options.repeats}, {topic_type.value}, {rate}/s, "
                                f"{slots} slots, {'busy' if busy else 'idle'}"
                            )
                            case = (topic_type.value, rate, slots, busy)
                            try:
                                samples.setdefault(case, []).append(lateness(servers, *case, seconds))
                            except (RuntimeError, TimeoutError) as error:
                                say(f"latency: this case failed: {str(error).strip().splitlines()[-1]}")
    return {
        "redis": servers.version,
        "settings": {"seconds": seconds, "ahead_s": AHEAD_S, "other_per_s": OTHER_PER_S, "tick_ms": TICK_S * 1000},
        "clock_offset_us": offset_us,
        "rows": [
            {"type": kind, "rate_per_s": rate, "slots": slots, "busy": busy, **_merged(each)}
            for (kind, rate, slots, busy), each in samples.items()
            if each
        ],
    }


def lateness(servers: Servers, kind: str, rate: int, slots: int, busy: bool, seconds: float) -> Row:
    """Send at a steady rate for some seconds; return percentiles of the lateness in ms."""
    servers.flush()
    number = int(rate * seconds)
    args = (servers.url, kind, slots, number, busy)
    consumer, sender = Child(_consume, *args), Child(_send, *args, rate)
    consumer.wait_ready()
    consumer.go()
    sender.wait_ready()
    time.sleep(1.0)  # the consumer has had its first look and waits
    with Meter(servers) as meter:
        sender.go()
        sent = sender.result(LIMIT_S)
        found = consumer.result(LIMIT_S)
    return {
        **percentiles(found["late_ms"]),
        "delivered": len(found["late_ms"]),
        "early": sum(late < 0 for late in found["late_ms"]),
        "sent_per_s": rounded(number / sent["took_s"]),
        "consumer_cpu_share": rounded(found["cpu_s"] / meter.cost.elapsed_s),
        "server_cpu_share": rounded(meter.cost.server_cpu_s / meter.cost.elapsed_s),
    }


def clock_offset_us(servers: Servers) -> float:
    """Return by how much Redis' clock is ahead of ours, from the quickest of many readings; it is the same clock."""
    readings: list[tuple[float, float]] = []
    with servers.connect() as client:
        for _ in range(300):
            before_s = time.time()
            second, microsecond = client.time()
            after_s = time.time()
            readings.append((after_s - before_s, second + microsecond / 1e6 - (before_s + after_s) / 2))
    return round(min(readings)[1] * 1e6, 1)


def _topic(topic_type: TopicType, slots: int) -> Topic:
    return Topic(f"late-{topic_type.value.lower()}-{slots}", topic_type, slots=slots)


_OTHER = Topic("late-other", TopicType.PRIORITY, slots=4)


def _consume(line: Line, url: str, kind: str, slots: int, number: int, busy: bool) -> dict[str, Any]:
    topic_type = TopicType(kind)
    late_ms: list[float] = []
    finished = threading.Event()
    clock_ns = time.time_ns

    def handle_timed(delivery: Delivery) -> None:
        late_ms.append(clock_ns() / 1e6 - delivery.store_score)
        if len(late_ms) == number:
            finished.set()

    def handle_priority(delivery: Delivery) -> None:
        late_ms.append((clock_ns() - int(delivery.content.rpartition(b":")[2])) / 1e6)
        if len(late_ms) == number:
            finished.set()

    with RmqClient(url) as client:
        client.listener(_topic(topic_type, slots))(handle_timed if topic_type.timed else handle_priority)
        if busy:
            client.listener(_OTHER)(_nothing)
        line.ready()
        client.start()
        used_s = cpu_s()
        finished.wait(LIMIT_S / 2)
        used_s = cpu_s() - used_s
        client.stop(5.0)
    return {"late_ms": late_ms, "cpu_s": used_s}


def _send(line: Line, url: str, kind: str, slots: int, number: int, busy: bool, rate: int) -> dict[str, float]:
    topic_type = TopicType(kind)
    sent = others = 0
    with RmqClient(url) as client:
        producer = client.producer(_topic(topic_type, slots))
        other = client.producer(_OTHER) if busy else None
        line.ready()
        started_s, from_s = time.perf_counter(), time.time()
        while sent < number:
            elapsed_s = time.perf_counter() - started_s
            if topic_type is TopicType.PRIORITY:
                until = min(number, int(elapsed_s * rate) + 1)
                producer.send_many([_at_once(index) for index in range(sent, until)])
                sent = until
            elif elapsed_s * rate >= sent:
                until = min(number, sent + int(rate * CHUNK_S))
                producer.send_many(_timed(topic_type, sent, until, from_s + AHEAD_S, rate))
                sent = until
            if other is not None:
                until = int(elapsed_s * OTHER_PER_S)
                other.send_many([PriorityMessage(b"other:%d" % index, 1_000) for index in range(others, until)])
                others = until
            time.sleep(TICK_S)
        return {"took_s": time.perf_counter() - started_s}


def _at_once(index: int) -> Message:
    return PriorityMessage(b"m:%d:%d" % (index, time.time_ns()), 1_000 + index % 50)


def _timed(topic_type: TopicType, first: int, last: int, from_s: float, rate: int) -> Iterator[Message]:
    """Yield messages whose due times are spread evenly: so many of them each millisecond."""
    for index in range(first, last):
        due_ms = int((from_s + index / rate) * 1000)
        if topic_type is TopicType.FIXED_TIME:
            yield FixedTimeMessage(b"m:%d" % index, due_ms)
        else:
            yield RangeMergeMessage(b"m:%d" % index, due_ms - int(time.time() * 1000))


def _nothing(delivery: Delivery) -> None:
    del delivery


def _merged(samples: Sequence[Row]) -> Row:
    merged: Row = {key: rounded(statistics.median(each[key] for each in samples)) for key in samples[0]}
    merged["max"] = max(each["max"] for each in samples)
    merged["p999_least"], merged["p999_most"] = (pick(each["p999"] for each in samples) for pick in (min, max))
    merged["early"] = sum(each["early"] for each in samples)
    return merged


def tables(document: Document) -> str:
    """Render the percentiles."""
    settings = document["settings"]
    rows = [
        (
            f"{row['type']}, {row['rate_per_s']:,}/s, {row['slots']:,} slots, {'busy' if row['busy'] else 'idle'}",
            *(rendering.number(row[key], 2) for key in ("p50", "p99", "p999", "max")),
            f"{row['consumer_cpu_share']:.0%}",
            f"{row['server_cpu_share']:.0%}",
            f"{row['delivered'] / (row['rate_per_s'] * settings['seconds']):.1%}",
        )
        for row in document["rows"]
    ]
    columns = ["late by, ms", "p50", "p99", "p99.9", "max", "consumer's CPU", "server's CPU", "delivered"]
    early = sum(row["early"] for row in document["rows"])
    return (
        "Time topics: from the due time, by Redis' clock, to the first line of the handler. PRIORITY: from before the "
        f"send to there. {settings['seconds']:g} s each, PRIORITY sent every {settings['tick_ms']:g} ms, the others a "
        f"second's load in bulk, {settings['ahead_s']:g} s ahead; one listener thread. `busy`: "
        f"the same process also handles {settings['other_per_s']:,}/s of another topic. Redis' clock and the handler's "
        f"are the same one; read apart they differ by {document['clock_offset_us']:g} µs. Delivered early: {early:g}."
        "\n\n" + rendering.table(columns, rows)
    )


def plot(document: Document, path: Path) -> None:
    """Draw p50, p99 and p99.9 per case."""
    made, axes = rendering.figure(len(TYPES), "Lateness of deliveries", height=4.6)
    for axis, topic_type in zip(axes, TYPES, strict=True):
        rows = [row for row in document["rows"] if row["type"] == topic_type.value]
        names = [
            f"{row['rate_per_s'] // 1000}k/s\n{row['slots']:,} sl.\n{'busy' if row['busy'] else 'idle'}" for row in rows
        ]
        series = {name: [row[key] for row in rows] for name, key in (("p50", "p50"), ("p99", "p99"), ("p99.9", "p999"))}
        rendering.bars(axis, names, series, "ms, log scale")
        axis.set_yscale("log")
        axis.axhline(2, color="#c00000", linewidth=0.8, linestyle="--")
        axis.set_title(topic_type.value.replace("_", " ").lower(), fontsize=10)
        axis.tick_params(axis="x", labelsize=6.5)
    rendering.save(made, path)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, help="length of each case (10; quick: 3)")


BENCHMARK = Benchmark("latency", measure, tables, plot, _arguments)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
