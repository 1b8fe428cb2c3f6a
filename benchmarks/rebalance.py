"""How long the leader takes to work out who owns what, and how much moves: 1,024 slots, 64 workers, and more."""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from statistics import median

from benchmarks.support import rendering
from benchmarks.support.harness import Benchmark, Document, Row, say
from rmq._ownership.assignment import Owners, Share, assign

SHAPES = ((1, 1_024, 64), (4, 1_024, 64), (16, 64, 64), (1, 16_384, 64), (1, 16_384, 1_024))
"""Topics, slots of each, workers. The first is the one that the promise of 50 ms is about."""

PROMISED_MS = 50.0

Workers = dict[str, Share]
Present = dict[str, Owners]


def measure(options: argparse.Namespace) -> Document:
    """Time the assignment when all start, when one joins, leaves, or is replaced, and when half of the workers go."""
    rows: list[Row] = []
    for shape in SHAPES[:2] if options.quick else SHAPES:
        say(f"{shape[0]} topics of {shape[1]:,} slots, {shape[2]:,} workers")
        rows += _measure_shape(shape, options.repeats)
    promised = max(row["ms"] for row in rows if (row["topics"], row["slots"], row["workers"]) == SHAPES[0])
    return {"settings": {"promised_ms": PROMISED_MS, "worst_ms": promised}, "rows": rows}


def _measure_shape(shape: tuple[int, int, int], repeats: int) -> list[Row]:
    topic_count, slot_count, worker_count = shape
    topics = {f"topic-{number}": slot_count for number in range(topic_count)}
    workers = _workers(topics, range(worker_count))
    settled = assign(topics, workers, {})
    changes: dict[str, tuple[Workers, Present]] = {
        "all start": (workers, {}),
        "nothing": (workers, settled),
        "one joins": (_workers(topics, range(worker_count + 1)), settled),
        "one leaves": (_workers(topics, range(1, worker_count)), settled),
        "one replaced": (_workers(topics, range(1, worker_count + 1)), settled),
        "half leave": (_workers(topics, range(worker_count // 2, worker_count)), settled),
    }
    rows: list[Row] = []
    for name, (live, present) in changes.items():
        after = assign(topics, live, present)
        moved = sum(
            old is not None and old != new
            for topic, owners in present.items()
            for old, new in zip(owners, after[topic], strict=True)
        )
        times_ms = _times_ms(lambda live=live, present=present: assign(topics, live, present), repeats)
        rows.append(
            {
                "topics": topic_count,
                "slots": slot_count,
                "workers": worker_count,
                "change": name,
                "moved": moved,
                "ms": round(median(times_ms), 2),
                "worst_ms": round(max(times_ms), 2),
            }
        )
    return rows


def _workers(topics: dict[str, int], numbers: range) -> Workers:
    return {f"worker-{number}": Share(frozenset(topics)) for number in numbers}


def _times_ms(work: Callable[[], object], repeats: int) -> list[float]:
    times_ms: list[float] = []
    for _ in range(repeats):
        gc.collect()
        started_s = time.perf_counter()
        work()
        times_ms.append((time.perf_counter() - started_s) * 1000)
    return times_ms


def tables(document: Document) -> str:
    """Render the rows as Markdown."""
    lines = rendering.listed(
        document["rows"],
        ("topics × slots", "{topics} × {slots:,}"),
        ("workers", "{workers:,}"),
        ("change", "{change}"),
        ("moved", "{moved:,}"),
        ("ms", "{ms:g}"),
    )
    worst, promised = document["settings"]["worst_ms"], document["settings"]["promised_ms"]
    verdict = "kept" if worst < promised else "broken"
    return f"{lines}\n\n1,024 slots over 64 workers: {worst:g} ms; promised: under {promised:g} ms: {verdict}"


BENCHMARK = Benchmark("rebalance", measure, tables)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
