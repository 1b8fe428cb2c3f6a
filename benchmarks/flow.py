"""Flow control: a downstream that slows, one that fails, and two topics of unequal cost, each with and without it."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.support import rendering
from benchmarks.support.harness import Benchmark, Document, Row
from benchmarks.support.servers import standalone
from rmq import Adaptive, Delivery, PriorityMessage, RangeMergeMessage, RmqClient, Topic, TopicType
from rmq._processes.frozen_objects import freeze_objects

THREADS = 32
CAPACITY = 8
"""Requests that the downstream works on at the same time; others wait in its queue."""
SERVICE_S = 0.01
SAMPLE_S = 0.25
SLOW_HANDLER_S, QUICK_HANDLER_S, HANDLERS = 0.4, 0.002, 8
QUICK_PER_S, SLOW_PER_S = 40, 30
"""The slow jobs alone need 12 handlers: more than there are."""


class Downstream:
    """A service with so many servers. It can be slow, and it can refuse."""

    def __init__(self) -> None:
        self.service_s = SERVICE_S
        self.broken = False
        self._servers = threading.BoundedSemaphore(CAPACITY)
        self._lock = threading.Lock()
        self.open = self.answered = self.refused = 0

    def request(self) -> None:
        """Wait for a server and be served, or be refused."""
        with self._lock:
            self.open += 1
        try:
            if self.broken:
                time.sleep(0.001)
                with self._lock:
                    self.refused += 1
                raise ConnectionError("the downstream refuses")
            with self._servers:
                time.sleep(self.service_s)
            with self._lock:
                self.answered += 1
        finally:
            with self._lock:
                self.open -= 1


def _freeze() -> None:
    """Begin a process of the pool: as a function of this module, it loads the module first."""
    freeze_objects()  # as `client.run` does


def measure(options: argparse.Namespace) -> Document:
    """Run each case with flow control and without, on the same Redis at the same time."""
    phases = (4.0, 8.0, 8.0) if options.quick else (15.0, 30.0, 25.0)
    spawn = multiprocessing.get_context("spawn")
    with standalone() as servers, ProcessPoolExecutor(6, spawn, _freeze) as pool:
        cases: list[tuple[str, Callable[..., Any]]] = [("slow", trouble), ("failing", trouble), ("unequal", unequal)]
        futures = {
            (name, controlled): pool.submit(run, servers.url, name, controlled, phases)
            for name, run in cases
            for controlled in (True, False)
        }
        found = {key: future.result(timeout=300) for key, future in futures.items()}
        version = servers.version
    return {
        "redis": version,
        "settings": {
            "threads": THREADS, "capacity": CAPACITY, "service_ms": SERVICE_S * 1000, "phases_s": phases,
            "slow_handler_ms": SLOW_HANDLER_S * 1000, "quick_handler_ms": QUICK_HANDLER_S * 1000,
            "handlers": HANDLERS, "quick_per_s": QUICK_PER_S, "slow_per_s": SLOW_PER_S,
        },
        "rows": [{"case": name, "flow_control": controlled, **row} for (name, controlled), row in found.items()],
    }  # fmt: skip


def trouble(url: str, case: str, controlled: bool, phases: tuple[float, float, float]) -> Row:
    """A downstream that is well, then in trouble, then well again; samples of what it sees."""
    topic = Topic(f"flow-{case}-{controlled}", TopicType.PRIORITY, slots=8, max_retries=3)
    downstream = Downstream()
    samples: list[Row] = []
    with RmqClient(url) as client:

        @client.listener(topic, threads=THREADS, adaptive=Adaptive() if controlled else None)
        def handle(delivery: Delivery) -> None:
            downstream.request()

        client.producer(topic).send_many(
            PriorityMessage(f"m{i}", 100) for i in range(int(sum(phases) * CAPACITY / SERVICE_S))
        )
        logging.getLogger("rmq").setLevel(logging.ERROR)
        client.start()
        began_s = time.monotonic()
        ends_s = [sum(phases[: number + 1]) for number in range(3)]
        while (now_s := time.monotonic() - began_s) < ends_s[-1]:
            bad = ends_s[0] <= now_s < ends_s[1]
            downstream.service_s = SERVICE_S * 10 if bad and case == "slow" else SERVICE_S
            downstream.broken = bad and case == "failing"
            samples.append({"s": round(now_s, 2), "open": downstream.open, "answered": downstream.answered,
                            "refused": downstream.refused})  # fmt: skip
            time.sleep(SAMPLE_S)
        downstream.broken, downstream.service_s = False, SERVICE_S
        client.stop(5)
        dead = client.inspect(topic).stats().dead
    return {"samples": samples, "dead": dead, **_summary(samples, ends_s)}


def _summary(samples: list[Row], ends_s: list[float]) -> Row:
    """What the downstream had open in trouble, once there was time to react, and how soon the speed was back."""
    in_trouble = [each["open"] for each in samples if ends_s[0] + 5 <= each["s"] < ends_s[1]]
    before = [each for each in samples if ends_s[0] / 2 <= each["s"] < ends_s[0]]
    usual = (before[-1]["answered"] - before[0]["answered"]) / (before[-1]["s"] - before[0]["s"])
    back = next(
        (
            later["s"] - ends_s[1]
            for earlier, later in zip(samples, samples[8:], strict=False)
            if earlier["s"] >= ends_s[1]
            and (later["answered"] - earlier["answered"]) / (later["s"] - earlier["s"]) >= 0.9 * usual
        ),
        None,
    )
    relieved = next(
        (each["s"] - ends_s[0] for each in samples if each["s"] >= ends_s[0] + 0.5 and each["open"] <= 2), None
    )
    return {
        "open_in_trouble": round(mean(in_trouble), 1) if in_trouble else None,
        "relieved_after_s": None if relieved is None else round(relieved, 1),
        "usual_per_s": round(usual),
        "back_after_s": None if back is None else round(back, 1),
        "refused": samples[-1]["refused"],
    }


def unequal(url: str, case: str, controlled: bool, phases: tuple[float, float, float]) -> Row:
    """More slow jobs than can be done beside a few quick ones: as two topics that share handlers, or in one."""
    del case
    late_ms: list[float] = []
    done = {"slow": 0, "quick": 0}

    def work(delivery: Delivery) -> None:
        kind = "quick" if delivery.text.startswith("quick") else "slow"
        if kind == "quick":
            late_ms.append((time.time() - float(delivery.text.split(":")[1])) * 1000)
        time.sleep(QUICK_HANDLER_S if kind == "quick" else SLOW_HANDLER_S)
        done[kind] += 1

    slow = Topic(f"flow-unequal-slow-{controlled}", TopicType.RANGE_MERGE, slots=8)
    quick = Topic("flow-unequal-quick", TopicType.RANGE_MERGE, slots=8) if controlled else slow
    with RmqClient(url) as client:
        for topic in {slow.name: slow, quick.name: quick}.values():
            client.listener(topic, threads=HANDLERS)(work)
        slow_jobs, quick_jobs = client.producer(slow), client.producer(quick)
        client.start(handlers=HANDLERS)
        slow_sent = 0
        began_s = time.monotonic()
        while time.monotonic() - began_s < phases[0]:
            quick_jobs.send(RangeMergeMessage(f"quick:{time.time()}", time_range_ms=1))
            while slow_sent < SLOW_PER_S * (time.monotonic() - began_s):
                slow_jobs.send(RangeMergeMessage(f"slow:{slow_sent}", time_range_ms=1))
                slow_sent += 1
            time.sleep(1 / QUICK_PER_S)
        client.stop(5)
    ordered = sorted(late_ms)

    def at(share: float) -> float | None:
        return round(ordered[int(share * (len(ordered) - 1))], 1) if ordered else None

    sent = round(phases[0] * QUICK_PER_S)
    return {"quick_p50_ms": at(0.5), "quick_p99_ms": at(0.99), "done": done, "quick_sent_about": sent,
            "seconds": phases[0]}  # fmt: skip


def plot(document: Document, path: Path) -> None:
    """Draw what the downstream sees, second by second."""
    made, axes = rendering.figure(4, "Flow control beside the same run without it")
    phases = document["settings"]["phases_s"]
    rows = {(row["case"], row["flow_control"]): row for row in document["rows"]}
    panels = [
        ("slow", "open", "Tenfold slower: requests open at the downstream"),
        ("slow", "answered", "Tenfold slower: answers a second"),
        ("failing", "refused", "Failing: refused requests a second"),
    ]
    for axis, (case, figure, title) in zip(axes, panels, strict=False):
        axis.axvspan(phases[0], phases[0] + phases[1], color="#f3e3e0", label="in trouble")
        for controlled, name in ((False, "without"), (True, "with flow control")):
            samples = rows[case, controlled]["samples"]
            times, values = [each["s"] for each in samples], [each[figure] for each in samples]
            if figure != "open":
                step = 4
                values = [
                    (later - earlier) / (end - start)
                    for earlier, later, start, end in zip(values, values[step:], times, times[step:], strict=False)
                ]
                times = times[step:]
            axis.plot(times, values, label=name, color=rendering.COLOURS[not controlled], linewidth=1.4)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("seconds")
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=8, frameon=False)
    if max(each["refused"] for each in rows["failing", False]["samples"]) > 1_000:
        axes[2].set_yscale("symlog", linthresh=10)
    axis = axes[3]
    labels = ["p50", "p99"]
    series = {
        "one topic": [rows["unequal", False][f"quick_{each}_ms"] or 0 for each in labels],
        "two topics, shared handlers": [rows["unequal", True][f"quick_{each}_ms"] or 0 for each in labels],
    }
    rendering.bars(axis, labels, series, "ms")
    axis.set_yscale("log")
    axis.set_title("Quick jobs beside slow ones: how late they are", fontsize=9)
    rendering.save(made, path)


def tables(document: Document) -> str:
    """Render the figures as Markdown."""
    rows = {(row["case"], row["flow_control"]): row for row in document["rows"]}
    names = (("with flow control", True), ("without", False))

    def shown(value: float | None) -> str:
        return rendering.number(value, 1)

    trouble_rows = [
        (f"{case}, {name}", shown(row["open_in_trouble"]), shown(row["relieved_after_s"]), f"{row['refused']:,}",
         f"{row['dead']:,}", f"{row['usual_per_s']:,}", shown(row["back_after_s"]))
        for case in ("slow", "failing") for name, on in names for row in [rows[case, on]]
    ]  # fmt: skip
    columns = ["case", "open requests in trouble", "down to 2 after, s", "refused", "dead", "answers/s before",
               "90 % of it back after, s"]  # fmt: skip
    unequal_rows = [
        (name, shown(row["quick_p50_ms"]), shown(row["quick_p99_ms"]), row["done"]["quick"], row["done"]["slow"])
        for name, on in names for row in [rows["unequal", on]]
    ]  # fmt: skip
    return (
        rendering.table(columns, trouble_rows)
        + "\n\n"
        + rendering.table(
            ["quick jobs beside slow", "p50 late, ms", "p99, ms", "quick done", "slow done"], unequal_rows
        )
    )


BENCHMARK = Benchmark("flow", measure, tables, plot, repeats=1)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
