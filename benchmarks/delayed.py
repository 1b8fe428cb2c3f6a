"""The delayed queue: what offers and takes cost beside a plain topic, and how late values come on a slow line."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.support import rendering
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.meters import Meter, medians, rounded
from benchmarks.support.servers import standalone
from rmq import DelayedQueue, FixedTimeMessage, RmqClient, Topic, TopicType
from tests.support.delayed import Played, play
from tests.support.servers import RedisServer

BATCH = 1_000
SINGLE = 20
"""One call a value is done with this share of the values."""

DELAY_MS, DELAY = 3_600_000, "1h"

PACES: dict[str, dict[str, Any]] = {
    "as fast as it goes, 1 to 5 s": {"count": 1_000, "delays_s": (1.0, 5.0), "every_s": 0.0},
    "one each 100 ms, 1 to 4 s": {"count": 300, "delays_s": (1.0, 4.0), "every_s": 0.1},
}
"""Offers to each of three queues. The second is the pace at which the original was tested."""

Work = Callable[[int], object]


def measure(options: argparse.Namespace) -> Document:
    """Do the same work by the queue and by a plain topic, in turns; then play where values used to get lost."""
    number = options.number or (5_000 if options.quick else 50_000)
    rows = _costs(options, number)
    paces: list[Row] = []
    for name, pace in PACES.items():
        say(f"delayed: offers {name}")
        with RedisServer() as server:
            count = pace["count"] // (10 if options.quick else 1)
            queues = [f"delayed-{place}" for place in range(3)]
            played = play(server, queues, count, pace["delays_s"], 0.05, every_s=pace["every_s"])
        paces.append({"offers": name, "values": 3 * count, **_late(played)})
    return {"settings": {"number": number, "batch": BATCH}, "rows": rows, "paces": paces}


def _late(played: Played) -> Row:
    return {
        "lost": played.lost,
        "again": played.again,
        "half_within_s": round(played.half_within_s, 3),
        "p99_within_s": round(played.most_within_s, 3),
        "latest_s": round(played.latest_s, 3),
    }


def _costs(options: argparse.Namespace, number: int) -> list[Row]:
    with standalone() as servers, RmqClient(servers.url) as client, DelayedQueue(client, "queue") as queue:
        topic = Topic("plain", TopicType.FIXED_TIME)
        producer, consumer = client.producer(topic), client.consumer(topic)

        def at() -> int:
            return int(time.time() * 1000) + DELAY_MS

        def send(each: int) -> None:
            producer.send(FixedTimeMessage(f"value {each}", fixed_time_ms=at()))

        def send_due(some: int) -> None:
            soon = int(time.time() * 1000) + 1_000
            producer.send_many(FixedTimeMessage(f"due {each}", fixed_time_ms=soon) for each in range(some))
            time.sleep(1.1)

        works: dict[str, tuple[Work, Work, Work, Work, int]] = {
            "offer_many / send_many": (
                lambda some: queue.offer_many((f"value {each}", DELAY) for each in range(some)),
                lambda some: producer.send_many(
                    FixedTimeMessage(f"value {each}", fixed_time_ms=at()) for each in range(some)
                ),
                _nothing, _nothing, number,
            ),
            "offer / send": (
                lambda some: [queue.offer(f"value {each}", DELAY) for each in range(some)],
                lambda some: [send(each) for each in range(some)],
                _nothing, _nothing, number // SINGLE,
            ),
            "take_many / poll and ack": (
                lambda some: _drain(some, lambda: len(queue.take_many(BATCH, 1.0))),
                lambda some: _drain(some, lambda: _poll(consumer)),
                lambda some: queue.offer_many((f"due {each}", "0s") for each in range(some)), send_due, number,
            ),
            "take / poll and ack of one": (
                lambda some: [queue.take(5.0) for _ in range(some)],
                lambda some: _drain(some, lambda: _poll(consumer, 1)),
                lambda some: queue.offer_many((f"due {each}", "0s") for each in range(some)),
                send_due, number // SINGLE,
            ),
        }  # fmt: skip
        return [_row(servers, name, work, options.repeats) for name, work in works.items()]


def _row(servers: Any, name: str, work: tuple[Work, Work, Work, Work, int], repeats: int) -> Row:
    ours, plain, fill_ours, fill_plain, number = work
    found: dict[str, list[dict[str, float]]] = {"queue": [], "plain": []}
    for repeat in range(repeats + 1):
        say(f"delayed: {name}, repeat {repeat} of {repeats}")
        sides = [("queue", ours, fill_ours), ("plain", plain, fill_plain)]
        for side, do, fill in sides if repeat % 2 else reversed(sides):
            for key in servers.connect().keys("*_0"):
                servers.connect().delete(key)
            fill(number)
            with Meter(servers) as meter:
                do(number)
            if repeat:
                found[side].append(meter.cost.row(number))
    pairs = list(zip(found["queue"], found["plain"], strict=True))
    share = rounded(median(queue["rate_per_s"] / plain["rate_per_s"] for queue, plain in pairs))
    cpu = rounded(median(_cpu_us(queue) / _cpu_us(plain) for queue, plain in pairs))
    return {
        "what": name,
        "rate_share": share,
        "cpu_share": cpu,
        **{side: medians(each) for side, each in found.items()},
    }


def _cpu_us(row: dict[str, float]) -> float:
    return row["server_cpu_us"] + row["client_cpu_us"]


def _nothing(some: int) -> None:
    del some


def _poll(consumer: Any, most: int = BATCH) -> int:
    page = consumer.poll(most, 1.0)
    consumer.ack(page)
    return len(page)


def _drain(number: int, take: Callable[[], int]) -> None:
    while number > 0:
        number -= take()


def tables(document: Document) -> str:
    """Render what it costs, and how late values come."""
    columns = ("", "queue, 1/s", "plain topic, 1/s", "rate", "queue: server, client CPU, µs", "plain topic", "CPU")
    rows = [
        (
            row["what"],
            *(rendering.number(row[side]["rate_per_s"]) for side in ("queue", "plain")),
            rendering.ratio(row["rate_share"]),
            *(f"{row[side]['server_cpu_us']:.1f} + {row[side]['client_cpu_us']:.1f}" for side in ("queue", "plain")),
            rendering.ratio(row["cpu_share"]),
        )
        for row in document["rows"]
    ]
    late = [
        (row["offers"], rendering.number(row["values"]), row["lost"], row["again"],
         *(f"{row[key]:.3f}" for key in ("half_within_s", "p99_within_s", "latest_s")))
        for row in document["paces"]
    ]  # fmt: skip
    names = ("offers to each of 3 queues", "values", "lost", "again", "half within, s", "99 % within, s", "latest, s")
    return rendering.table(columns, rows) + "\n\n" + rendering.table(names, late)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--number", type=int, help="values in each measurement; a twentieth of them one by one")


BENCHMARK = Benchmark("delayed", measure, tables, None, _arguments)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
