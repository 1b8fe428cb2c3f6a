"""How late a message reaches its handler: after its due time, or for PRIORITY after its send."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import Any, NamedTuple

import redis

from benchmarks.support import rendering
from benchmarks.support.children import Child, Line
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.loads import TYPES, Message, messages
from benchmarks.support.meters import Meter, cpu_s, medians, percentiles, rounded
from benchmarks.support.servers import Servers, standalone
from rmq import Delivery, PriorityMessage, RmqClient, Topic, TopicType

RATES_PER_S = (1_000, 10_000)
SLOTS = (1, 1_024)
AHEAD_S = 2.0
"""How long before its due time a message of a time topic is sent, at least."""
CHUNK_S = 1.0
"""Time topics are sent so much load at a time, in bulk: a script call of 500 sends holds up claims for some 1 ms."""
TICK_S = 0.001
"""Priority messages are sent as they come, every millisecond."""
ALONE, IDLE, BUSY = BESIDE = ("alone", "idle", "busy")
"""What goes on beside the deliveries: nothing, since all was sent before the first is due (time topics only); sends; or
sends, and another topic's messages in the same consumer."""
OTHER_PER_S = 2_000
"""Messages of the other topic that keep a busy consumer busy."""
PERCENTILES = (("p50", "p50"), ("p99", "p99"), ("p99.9", "p999"), ("max", "max"))
FLOOR_ROUNDS = 2_000
LIMIT_S = 120.0
PART = 500
"""So many time ranges are made at a time: they begin when Redis takes them, so all of a second's load in one call would
be due in bursts, of 70 messages in a millisecond and not 10."""
LEAST_SENT_PER_S = 20_000
"""So many messages a second, at least, can be sent in bulk: tells how long before the first due time to begin."""


class Case(NamedTuple):
    """What is measured: a topic and its load, and what goes on beside."""

    kind: TopicType
    rate_per_s: int
    slots: int
    beside: str

    @property
    def topic(self) -> Topic:
        """The topic."""
        return Topic(f"late-{self.kind.value.lower()}-{self.slots}", self.kind, slots=self.slots)


def measure(options: argparse.Namespace) -> Document:
    """Measure the time from due (PRIORITY: from the send) to the entry of the handler, with idle and busy consumers."""
    seconds = options.seconds or (2 if options.quick else 8)
    settings = {"seconds": seconds, "ahead_s": AHEAD_S, "chunk_s": options.chunk_s, "other_per_s": OTHER_PER_S}
    rows: list[Row] = []
    with standalone() as servers:
        clock = {"clock_offset_us": clock_offset_us(servers)}
        floor = medians([round_trips(servers) for _ in range(options.repeats)])
        for case in map(Case._make, product(TYPES, RATES_PER_S, SLOTS, BESIDE)):
            if case.beside == ALONE and not case.kind.timed:
                continue
            say(f"latency: {case.kind.value}, {case.rate_per_s}/s, {case.slots} slots, {case.beside}")
            try:
                found = lateness(servers, case, seconds, options.chunk_s, options.repeats)
            except (RuntimeError, TimeoutError) as error:
                say(f"latency: this case failed: {str(error).strip().splitlines()[-1]}")
            else:
                rows.append({"type": case.kind.value, **dict(zip(case._fields[1:], case[1:], strict=True)), **found})
    return {"settings": {**settings, "tick_ms": TICK_S * 1000}, **clock, "floor": floor, "rows": rows}


def lateness(servers: Servers, case: Case, seconds: float, chunk_s: float, windows: int) -> Row:
    """Send at a steady rate for some seconds; return medians, over windows of that time, of the lateness in ms."""
    servers.flush()
    number, ahead_s = int(case.rate_per_s * seconds), AHEAD_S
    if case.beside == ALONE:
        ahead_s, chunk_s = AHEAD_S + number / LEAST_SENT_PER_S, seconds
    consumer = Child(_consume, servers.url, case, number)
    sender = Child(_send, servers.url, case, number, ahead_s, chunk_s)
    consumer.wait_ready()
    consumer.go()
    sender.wait_ready()
    time.sleep(1.0)  # the consumer has had its first look and waits
    with Meter(servers) as meter:
        sender.go()
        sent = sender.result(LIMIT_S)
        found = consumer.result(LIMIT_S)
    late_ms: list[float] = found["late_ms"]
    cpu_s = {"sender": sent["cpu_s"], "consumer": found["cpu_s"], "server": meter.cost.server_cpu_s}
    return {
        **_merged([percentiles(part) for part in _windows(late_ms, windows)]),
        "delivered": len(late_ms),
        "early": sum(late < 0 for late in late_ms),
        "sent_per_s": rounded(number / sent["took_s"]),
        **{f"{who}_cpu_us": rounded(used_s * 1e6 / number) for who, used_s in cpu_s.items()},
    }


def round_trips(servers: Servers) -> dict[str, float]:
    """Return percentiles of what bare Redis takes: RPUSH in one process to BLPOP's answer in another one, in ms."""
    servers.flush()
    waiting = Child(_pop, servers.port)
    waiting.wait_ready()
    waiting.go()
    with servers.connect() as client:
        for _ in range(FLOOR_ROUNDS):
            client.rpush("floor", b"%d" % time.time_ns())
            time.sleep(TICK_S)
    return percentiles(waiting.result(LIMIT_S))


def _pop(line: Line, port: int) -> list[float]:
    late_ms: list[float] = []
    with redis.Redis(host="127.0.0.1", port=port) as client:
        client.ping()
        line.ready()
        while len(late_ms) < FLOOR_ROUNDS:
            found: Any = client.blpop(["floor"], timeout=10)
            late_ms.append((time.time_ns() - int(found[1])) / 1e6)
    return late_ms


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


_OTHER = Topic("late-other", TopicType.PRIORITY, slots=4)


def _consume(line: Line, url: str, case: Case, number: int) -> dict[str, Any]:
    late_ms: list[float] = []
    finished = threading.Event()
    clock_ns = time.time_ns

    def due_ms(delivery: Delivery) -> float:
        return delivery.store_score if case.kind.timed else int(delivery.content.rpartition(b":")[2]) / 1e6

    def handle(delivery: Delivery) -> None:
        now_ms = clock_ns() / 1e6
        late_ms.append(now_ms - due_ms(delivery))
        if len(late_ms) == number:
            finished.set()

    with RmqClient(url) as client:
        client.listener(case.topic)(handle)
        if case.beside == BUSY:
            client.listener(_OTHER)(lambda _: None)
        line.ready()
        client.start()
        used_s = cpu_s()
        finished.wait(LIMIT_S / 2)
        used_s = cpu_s() - used_s
        client.stop(5.0)
    return {"late_ms": late_ms, "cpu_s": used_s}


def _send(line: Line, url: str, case: Case, number: int, ahead_s: float, chunk_s: float) -> dict[str, float]:
    kind, rate = case.kind, case.rate_per_s
    sent = others = 0
    with RmqClient(url) as client:
        producer = client.producer(case.topic)
        other = client.producer(_OTHER) if case.beside == BUSY else None
        line.ready()
        started_s, from_s, used_s = time.perf_counter(), time.time(), cpu_s()
        while sent < number:
            elapsed_s = time.perf_counter() - started_s
            if not kind.timed:
                until = min(number, int(elapsed_s * rate) + 1)
                producer.send_many([_at_once(index) for index in range(sent, until)])
                sent = until
            elif elapsed_s * rate >= sent:
                until = min(number, sent + int(rate * chunk_s))
                part = PART if kind is TopicType.RANGE_MERGE else number
                for first in range(sent, until, part):
                    producer.send_many(_timed(kind, first, min(until, first + part), from_s + ahead_s, rate))
                sent = until
            if other is not None:
                until = int(elapsed_s * OTHER_PER_S)
                other.send_many([PriorityMessage(b"other:%d" % index, 1_000) for index in range(others, until)])
                others = until
            time.sleep(TICK_S)
        return {"took_s": time.perf_counter() - started_s, "cpu_s": cpu_s() - used_s}


def _at_once(index: int) -> Message:
    return PriorityMessage(b"m:%d:%d" % (index, time.time_ns()), 1_000 + index % 50)


def _timed(topic_type: TopicType, first: int, last: int, from_s: float, rate: int) -> Iterator[Message]:
    """Return messages whose due times are spread evenly: so many of them each millisecond."""
    contents = (b"m:%d" % index for index in range(first, last))
    # the time once: ranges that shrink while the messages are made would be due too densely
    basis_ms = 0 if topic_type is TopicType.FIXED_TIME else int(time.time() * 1000)
    due_ms = (int((from_s + index / rate) * 1000) - basis_ms for index in range(first, last))
    return messages(topic_type, contents, due_ms)


def _windows(values: Sequence[float], number: int) -> list[Sequence[float]]:
    """Cut into so many parts of one length, in the order of delivery."""
    bounds = [index * len(values) // number for index in range(number + 1)]
    return [values[first:last] for first, last in pairwise(bounds) if last > first]


def _merged(samples: Sequence[dict[str, float]]) -> Row:
    if not samples:
        raise RuntimeError("nothing was delivered")
    merged: Row = medians(samples)
    merged["max"] = max(each["max"] for each in samples)
    merged["p999_least"], merged["p999_most"] = (pick(each["p999"] for each in samples) for pick in (min, max))
    return merged


def tables(document: Document) -> str:
    """Render the percentiles."""
    settings = document["settings"]
    lines = rendering.listed(
        document["rows"],
        ("late by, ms", "{type}, {rate_per_s:,}/s, {slots:,} slots, {beside}"),
        *((head, f"{{{key}:,.2f}}") for head, key in PERCENTILES),
        *((f"{who} CPU, µs", f"{{{who}_cpu_us:,.0f}}") for who in ("sender", "consumer", "server")),
        ("delivered", lambda row: f"{row['delivered'] / (row['rate_per_s'] * settings['seconds']):.1%}"),
    )
    early = sum(row["early"] for row in document["rows"])
    return rendering.text("latency", document, chunk_s=settings.get("chunk_s", 1), early=early, table=lines)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, help="length of each case (8; quick: 2)")
    parser.add_argument("--chunk-s", type=float, default=CHUNK_S, help="load of a bulk send of the time topics (1 s)")


def _panel(kind: TopicType) -> rendering.Panel:
    name, series = "{rate_per_s:,}/s\n{slots:,} sl.\n{beside}", {"p50": "p50", "p99": "p99", "p99.9": "p999"}
    return rendering.Panel(f"{kind.value}: ms", name, series, where=lambda row: row["type"] == kind.value, log=True)


PLOT = rendering.picture("Lateness of deliveries", *map(_panel, TYPES), height=4.6)
BENCHMARK = Benchmark("latency", measure, tables, PLOT, _arguments)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
