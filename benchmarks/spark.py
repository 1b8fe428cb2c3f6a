"""Spark's sink: rows a second beside the core's `send_many` and one command a row, on one core and on two."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from typing import Any

import redis
from pyspark.sql import DataFrame

from benchmarks.support import loads, rendering
from benchmarks.support.children import Child, Line
from benchmarks.support.harness import Benchmark, Document, Row
from benchmarks.support.meters import Figures, Meter, cpu_s
from benchmarks.support.samples import in_turns
from benchmarks.support.servers import Servers, standalone
from benchmarks.support.spark_work import SLOTS, contents, rows_by_tasks, spark_cpu_s, spark_session
from rmq import RmqClient, TopicType
from rmq.spark import with_slot

DELAY_MS = 600_000
LIMIT_S = 600.0
KIND = TopicType.RANGE_MERGE


def measure(options: argparse.Namespace) -> Document:
    """Write a generated frame with the sink, and send the same with the core, in turns; with 1 and 2 tasks."""
    number: int = options.number
    singles = number // 25
    with standalone() as servers, spark_session(2) as session:

        def turn(rows: int, work: Callable[[], float | None]) -> Figures:
            spark_before_s = spark_cpu_s(session)
            with Meter(servers) as meter:
                other_cpu_s = work()
            spark_s = spark_cpu_s(session) - spark_before_s
            servers.flush()
            return meter.cost.row(rows) | {"client_cpu_us": (other_cpu_s or spark_s) * 1e6 / rows}

        def core(tasks: int) -> Figures:
            senders = _senders(servers, number, tasks)
            return turn(number, lambda: _core(senders))

        _sink(servers, contents(session, 50_000, 2))  # starts the Python workers
        servers.flush()
        cases: dict[str, Callable[[], Figures]] = {}
        for tasks in (1, 2):
            frame, few = contents(session, number, tasks), contents(session, singles, tasks)
            works: dict[str, Callable[[], None]] = {
                "generate": partial(_nowhere, frame, "noop"),
                "to Python": partial(_nowhere, frame, "nothing"),
                "sink": partial(_sink, servers, frame),
                "sink, merge=none": partial(_sink, servers, frame, merge="none"),
                "sink, with_slot": partial(_sink, servers, with_slot(frame, SLOTS)),
            }
            cases |= {f"{what}; {tasks}": partial(turn, number, work) for what, work in works.items()}
            cases[f"send_many; {tasks}"] = partial(core, tasks)
            cases[f"one command a row; {tasks}"] = partial(turn, singles, partial(_one_by_one, servers, few))
        samples = in_turns("spark", options.repeats, cases)
        spark_version = session.version
    others = {"of_send_many": "send_many; {}", "of_singles": "one command a row; {}"}
    settings = {"rows": number, "single_rows": singles, "content_bytes": 20, "slots": SLOTS, "type": KIND.name}
    return {"spark": spark_version, "settings": settings, "rows": rows_by_tasks(samples, others)}


def _nowhere(frame: DataFrame, name: str) -> None:
    frame.write.format(name).mode("overwrite" if name == "noop" else "append").save()


def _sink(servers: Servers, frame: DataFrame, **settings: str) -> None:
    topic = loads.topic(KIND, SLOTS)
    options = {"url": servers.url, "type": KIND.name, "slots": SLOTS, "time_range": f"{DELAY_MS}ms", **settings}
    frame.write.format("rmq").mode("append").options(topic=topic.name, **options).save()


def _senders(servers: Servers, number: int, processes: int) -> list[Child]:
    share = number // processes
    children = [Child(_send_many, servers.url, index * share, share) for index in range(processes)]
    for child in children:
        child.wait_ready()
    return children


def _core(children: list[Child]) -> float:
    """Let the children send; return the CPU time that it took them."""
    for child in children:
        child.go()
    return sum(child.result(LIMIT_S) for child in children)


def _send_many(line: Line, url: str, first: int, number: int) -> float:
    found = list(loads.stream(first, first + number))
    with RmqClient(url) as client:
        producer = client.producer(loads.topic(KIND, SLOTS))
        line.ready()
        before_s = cpu_s()
        producer.send_many(loads.messages(KIND, found, repeat(DELAY_MS)))
        return cpu_s() - before_s


def _one_by_one(servers: Servers, frame: DataFrame) -> None:
    """What is written without a connector: a ZADD for each row, in `foreachPartition`."""
    port = servers.port

    def add(rows: Iterator[Any]) -> None:
        with redis.Redis(host="127.0.0.1", port=port) as client:
            for row in rows:
                client.zadd("bare", {row.content: 1_800_000_000_000})

    frame.foreachPartition(add)


def tables(document: Document) -> str:
    """Render the rates and their ratios."""
    lines = rendering.listed(
        document["rows"],
        ("", "{what}"),
        ("tasks", "{tasks}"),
        ("rows/s", "{rate_per_s:,.0f}"),
        ("of send_many", "{of_send_many:×}"),
        ("of one command a row", "{of_singles:×}"),
        ("of one task", lambda row: "" if row["tasks"] == 1 else rendering.ratio(row["of_one"])),
        ("client CPU, µs", "{client_cpu_us:,.2f}"),
        ("server CPU, µs", "{server_cpu_us:,.2f}"),
    )
    return rendering.text("spark", document, table=lines)


def _drawn(row: Row) -> bool:
    return row["what"] not in ("generate", "one command a row")


PLOT = rendering.picture(
    "Spark's sink",
    rendering.Panel("rows/s", "{what}\n{tasks} at once", {"": "rate_per_s"}, where=_drawn, digits=0),
    rendering.Panel("of send_many", "{what}\n{tasks} at once", {"": "of_send_many"}, where=_drawn, digits=2),
)
BENCHMARK = Benchmark("spark", measure, tables, PLOT, numbers=(1_000_000, 200_000))
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
