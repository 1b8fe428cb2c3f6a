"""What a topic that merges costs the server, beside one that does not, with 8 slots.

    python -m benchmarks.folding [--quick]

Each topic gets the same contents three times: the first time they are new, then they fold; then all are claimed and
acked. Sends are batches of `send_many`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from benchmarks.support import loads, rendering
from benchmarks.support.harness import Benchmark, Document, say
from benchmarks.support.meters import Meter, medians
from benchmarks.support.servers import Servers, standalone
from rmq import (
    Collect,
    Keep,
    Max,
    Merge,
    Newest,
    RangeMergeMessage,
    Replace,
    RmqClient,
    Sliding,
    Sum,
    Topic,
    TopicType,
)

LONG_MS, SHORT_MS = 600_000, 1

KINDS: dict[str, tuple[Merge | None, dict[str, Any]]] = {
    "no merge": (None, {}),
    "no merge, bodies": (None, {"body": b"x" * 20}),
    "Keep: counts": (Merge(Keep()), {}),
    "Keep, bodies": (Merge(Keep()), {"body": b"x" * 20}),
    "Replace, bodies": (Merge(Replace()), {"body": b"x" * 20}),
    "Newest, bodies": (Merge(Newest()), {"body": b"x" * 20, "version": 1}),
    "Max": (Merge(Max()), {"body": 3}),
    "Sum": (Merge(Sum()), {"body": 3}),
    "Collect": (Merge(Collect()), {"body": b"x" * 20}),
    "Collect, unique": (Merge(Collect(unique=True)), {"body": b"x" * 20}),
    "Sliding: counts": (
        Merge(
            Keep(), window=Sliding(quiet=timedelta(milliseconds=LONG_MS), max_wait=timedelta(milliseconds=2 * LONG_MS))
        ),
        {},
    ),
    "Sliding, Sum": (
        Merge(
            Sum(), window=Sliding(quiet=timedelta(milliseconds=LONG_MS), max_wait=timedelta(milliseconds=2 * LONG_MS))
        ),
        {"body": 3},
    ),
}
STEPS = ("first send", "merging send", "claim and ack")
SCRIPTS = ("evalsha", "eval")


def measure(options: argparse.Namespace) -> Document:
    """Measure each kind in turns."""
    number = 20_000 if options.quick else 100_000
    contents = loads.contents(number)
    with standalone() as servers:
        _costs(servers, "no merge", contents[:5_000])
        samples: dict[tuple[str, str], list[dict[str, float]]] = {}
        for repeat in range(options.repeats):
            for kind in KINDS:
                say(f"folding: repeat {repeat + 1} of {options.repeats}, {kind}")
                for step, row in _costs(servers, kind, contents).items():
                    samples.setdefault((kind, step), []).append(row)
        return {
            "redis": servers.version,
            "settings": {"messages": number, "content_bytes": 20, "slots": 8},
            "rows": [{"kind": kind, "step": step, **medians(each)} for (kind, step), each in samples.items()],
        }


def _costs(servers: Servers, kind: str, contents: list[bytes]) -> dict[str, dict[str, float]]:
    servers.flush()
    merge, fields = KINDS[kind]
    topic = Topic("bench-folding", TopicType.RANGE_MERGE, slots=8, merge=merge)
    found: dict[str, dict[str, float]] = {}
    with RmqClient(servers.url) as client:
        producer = client.producer(topic)

        def messages(time_range: int) -> Iterator[RangeMergeMessage]:
            for content in contents:
                yield RangeMergeMessage(content, time_range_ms=time_range, **fields)

        for step in STEPS[:2]:
            with Meter(servers) as meter:
                producer.send_many(messages(LONG_MS))
            found[step] = meter.cost.row(len(contents), *SCRIPTS)
        servers.flush()
        producer.send_many(messages(SHORT_MS))
        time.sleep(0.1)
        with Meter(servers) as meter, client.consumer(topic) as consumer:
            while claimed := consumer.poll(500):
                consumer.ack(claimed)
        found[STEPS[2]] = meter.cost.row(len(contents), *SCRIPTS)
    return found


def tables(document: Document) -> str:
    """Render each step beside that of a topic without `merge=`, in µs of the server a message."""
    cost = {(row["kind"], row["step"]): row["server_us"] for row in document["rows"]}
    rows = [
        [kind] + [part for step in STEPS for part in _beside(cost[kind, step], cost["no merge", step])]
        for kind in KINDS
    ]
    heads = ["topic"] + [part for step in STEPS for part in (step, "beside")]
    return (
        f"Redis {document['redis']}, medians of {document['repeats']} repeats in turns, 8 slots; µs of the server a "
        "message, and how much more than without `merge=`.\n\n" + rendering.table(heads, rows)
    )


def _beside(cost: float, plain: float) -> tuple[str, str]:
    return f"{cost:.2f}", f"{cost - plain:+.2f}"


BENCHMARK = Benchmark("folding", measure, tables)
main = BENCHMARK.main

if __name__ == "__main__":
    main()
