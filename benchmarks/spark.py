"""Spark's sink: rows a second beside the core's `send_many` and one command a row, on one core and on two."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis
from pyspark.sql import DataFrame

from benchmarks.support import loads, rendering
from benchmarks.support.children import Child, Line
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.meters import Meter, cpu_s, medians
from benchmarks.support.servers import Servers, standalone
from benchmarks.support.spark_work import SLOTS, contents, spark_cpu_s, spark_session
from rmq import RmqClient, TopicType
from rmq.spark import with_slot

DELAY_MS = 600_000
LIMIT_S = 600.0
KIND = TopicType.RANGE_MERGE


def measure(options: argparse.Namespace) -> Document:
    """Write a generated frame with the sink, and send the same with the core, in turns; with 1 and 2 tasks."""
    number = options.number or (200_000 if options.quick else 1_000_000)
    singles = number // 25
    samples: dict[tuple[str, int], list[dict[str, float]]] = {}
    with standalone() as servers, spark_session(2) as session:

        def turn(what: str, tasks: int, rows: int, work: Callable[[], float | None]) -> None:
            spark_before_s = spark_cpu_s(session)
            with Meter(servers) as meter:
                other_cpu_s = work()
            spark_s = spark_cpu_s(session) - spark_before_s
            row = meter.cost.row(rows) | {"client_cpu_us": (other_cpu_s or spark_s) * 1e6 / rows}
            servers.flush()
            samples.setdefault((what, tasks), []).append(row)
            say(f"spark: {what}, {tasks} at once: {row['rate_per_s']:,.0f}/s")

        _sink(servers, contents(session, 50_000, 2))  # starts the Python workers
        servers.flush()
        for repeat in range(options.repeats):
            say(f"spark: repeat {repeat + 1} of {options.repeats}")
            for tasks in (1, 2):
                frame = contents(session, number, tasks)
                few = contents(session, singles, tasks)
                turn("generate", tasks, number, lambda f=frame: _nowhere(f, "noop"))
                turn("to Python", tasks, number, lambda f=frame: _nowhere(f, "nothing"))
                turn("sink", tasks, number, lambda f=frame: _sink(servers, f))
                turn("sink, merge=none", tasks, number, lambda f=frame: _sink(servers, f, merge="none"))
                turn("sink, with_slot", tasks, number, lambda f=frame: _sink(servers, with_slot(f, SLOTS)))
                senders = _senders(servers, number, tasks)
                turn("send_many", tasks, number, lambda children=senders: _core(children))
                turn("one command a row", tasks, singles, lambda f=few: _one_by_one(servers, f))
        version = servers.version
        spark_version = session.version
    rows: list[Row] = []
    for (what, tasks), each in samples.items():
        row: Row = {"what": what, "tasks": tasks, **medians(each)}
        others = {"of_send_many": ("send_many", tasks), "of_singles": ("one command a row", tasks), "of_one": (what, 1)}
        for name, other in others.items():
            pairs = zip(each, samples[other], strict=True)
            row |= medians([{name: a["rate_per_s"] / b["rate_per_s"]} for a, b in pairs])
        rows.append(row)
    settings = {"rows": number, "single_rows": singles, "content_bytes": 20, "slots": SLOTS, "type": KIND.name}
    return {"redis": version, "spark": spark_version, "settings": settings, "rows": rows}


def _nowhere(frame: DataFrame, name: str) -> None:
    frame.write.format(name).mode("overwrite" if name == "noop" else "append").save()


def _sink(servers: Servers, frame: DataFrame, **settings: str) -> None:
    topic = loads.topic(KIND, SLOTS)
    options = {
        "url": servers.url,
        "topic": topic.name,
        "type": KIND.name,
        "slots": SLOTS,
        "time_range": f"{DELAY_MS}ms",
    }
    frame.write.format("rmq").mode("append").options(**options, **settings).save()


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
        producer.send_many(loads.merge_messages(found, DELAY_MS))
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
    settings = document["settings"]
    rows = [
        (
            row["what"],
            row["tasks"],
            rendering.number(row["rate_per_s"]),
            rendering.ratio(row["of_send_many"]),
            rendering.ratio(row["of_singles"]),
            "" if row["tasks"] == 1 else rendering.ratio(row["of_one"]),
            rendering.number(row["client_cpu_us"], 2),
            rendering.number(row["server_cpu_us"], 2),
        )
        for row in document["rows"]
    ]
    columns = ["", "tasks", "rows/s", "of send_many", "of one command a row", "of one task", "client CPU, µs"]
    return (
        f"{settings['rows']:,} rows of {settings['content_bytes']} bytes, generated by Spark {document['spark']}, "
        f"{settings['type']}, {settings['slots']} slots, Redis {document['redis']}, `local[2]`; `send_many` in as many "
        "processes as tasks. `generate`: Spark makes the rows and drops them; `to Python`: a sink of Spark that "
        "only counts. `one command a row`: a ZADD for each row in `foreachPartition`, "
        f"{settings['single_rows']:,} rows. Client CPU is that of Spark with its Python workers, or of the senders.\n\n"
        + rendering.table([*columns, "server CPU, µs"], rows)
    )


def plot(document: Document, path: Path) -> None:
    """Draw the rates."""
    figure, (left, right) = rendering.figure(2, "Spark's sink")
    rows = {(row["what"], row["tasks"]): row for row in document["rows"]}
    names = [what for what, tasks in rows if tasks == 1 and what not in ("generate", "one command a row")]
    for axis, key, unit, digits in ((left, "rate_per_s", "rows/s", 0), (right, "of_send_many", "of send_many", 2)):
        series = {f"{tasks} at once": [rows[name, tasks][key] for name in names] for tasks in (1, 2)}
        rendering.bars(axis, [name.replace(", ", ",\n") for name in names], series, unit, digits)
    rendering.thousands(left)
    rendering.save(figure, path)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--number", type=int, help="rows (1,000,000; quick: 200,000)")


BENCHMARK = Benchmark("spark", measure, tables, plot, _arguments)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
