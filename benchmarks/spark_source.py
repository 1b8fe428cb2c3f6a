"""Spark's streaming source: messages a second beside the core's batch listener, on one core and on two."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.support import loads, rendering
from benchmarks.support.children import Child, Line
from benchmarks.support.harness import Benchmark, Document
from benchmarks.support.meters import Cost, Figures, Meter, cpu_s
from benchmarks.support.samples import in_turns
from benchmarks.support.servers import Servers, standalone
from benchmarks.support.spark_work import SLOTS, batch_seconds, rows_by_tasks, spark_cpu_s, spark_session
from rmq import RmqClient, Topic, TopicType

KIND = TopicType.PRIORITY
CARGOES = (loads.BODIES, loads.SUM)
"""What RANGE_MERGE messages carry beside plain ones of PRIORITY."""
TINY = 1_000
"""A query of so few messages shows what the start of a query takes."""
LIMIT_S = 600


def measure(options: argparse.Namespace) -> Document:
    """Drain a backlog with a streaming query, and with the core's batch listener, in turns; with 1 and 2 tasks."""
    number: int = options.number
    batch = number // 2
    with standalone() as servers, spark_session(2) as session:
        _fill(servers, loads.PLAIN, TINY)
        drain(_source(session, servers, loads.PLAIN, 2, batch))  # starts the Python workers
        cases: dict[str, Callable[[], Figures]] = {}
        for tasks in (1, 2):
            for cargo in (loads.PLAIN, *(CARGOES if tasks == 1 else ())):
                name = f", {cargo}" if cargo else ""
                cases[f"listener{name}; {tasks}"] = partial(_listen, servers, cargo, number, tasks)
                cases[f"source{name}; {tasks}"] = partial(_query, session, servers, cargo, number, tasks, batch)
            cases[f"from Python; {tasks}"] = partial(_nothing, session, number, tasks)
        samples = in_turns("spark_source", options.repeats, cases)
        spark_version = session.version
    settings = {"messages": number, "batch": batch, "content_bytes": 20, "slots": SLOTS, "type": KIND.name}
    rows = rows_by_tasks(samples, {"of_listener": "listener; {}"})
    return {"spark": spark_version, "settings": settings | {"tiny": TINY}, "rows": rows}


def _topic(cargo: str) -> Topic:
    return loads.topic(TopicType.RANGE_MERGE if cargo else KIND, SLOTS, cargo=cargo)


def _fill(servers: Servers, cargo: str, number: int) -> None:
    servers.flush()
    topic, contents = _topic(cargo), loads.contents(number)
    with RmqClient(servers.url) as client:
        plain = partial(loads.soon, KIND, contents, loads.priorities(10_000), 1)
        client.producer(topic).send_many(loads.laden(topic, cargo, contents, 1) if cargo else plain())


def _source(session: SparkSession, servers: Servers, cargo: str, tasks: int, batch: int) -> DataFrame:
    options: dict[str, Any] = {"url": servers.url, "topic": _topic(cargo).name}
    options |= {"maxMessagesPerTrigger": batch, "minPartitions": tasks, "maxPartitions": tasks}
    return session.readStream.format("rmq").options(**options).load()


def drain(stream: DataFrame, **trigger: Any) -> Any:
    """Let Spark read all that is there, or what another trigger says, and drop it; return the ended query."""
    with tempfile.TemporaryDirectory(prefix="rmq-bench-") as folder:
        writer = stream.writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.trigger(**trigger or {"availableNow": True}).start()
        query.awaitTermination(LIMIT_S)
        return query


def _query(
    session: SparkSession, servers: Servers, cargo: str, number: int, tasks: int, batch: int
) -> dict[str, float]:
    _fill(servers, cargo, TINY)
    stream = _source(session, servers, cargo, tasks, batch)
    with Meter(servers) as start:
        tiny = drain(stream)
    _fill(servers, cargo, number)
    before_s = spark_cpu_s(session)
    with Meter(servers) as meter:
        query = drain(stream)
    spark_s = spark_cpu_s(session) - before_s
    with RmqClient(servers.url) as client:
        acked = client.inspect(_topic(cargo)).stats().total("acked")
    if acked != number:
        raise RuntimeError(f"{acked} of {number} messages were acked")
    batches = batch_seconds(query)
    return {
        **_row(meter.cost, number, spark_s),
        # without the start and the end of a query
        "rate_per_s": (number - TINY) / (meter.cost.elapsed_s - start.cost.elapsed_s),
        "whole_rate_per_s": number / meter.cost.elapsed_s,
        "batch_rate_per_s": max(rows / seconds for rows, seconds in batches if rows),
        "start_s": start.cost.elapsed_s,
        "tiny_batch_s": min(seconds for rows, seconds in batch_seconds(tiny) if rows),
    }


def _nothing(session: SparkSession, number: int, tasks: int) -> dict[str, float]:
    """Let Spark take as many rows from Python, without Redis."""
    seconds, before_s = list[float](), 0.0
    for rows in (0, number):
        stream = session.readStream.format("nothing").options(number=rows, tasks=tasks).load()
        started_s = time.perf_counter()
        before_s = spark_cpu_s(session)
        drain(stream, once=True)
        seconds.append(time.perf_counter() - started_s)
    spark_s = spark_cpu_s(session) - before_s
    rate = number / max(seconds[1] - seconds[0], 1e-3)
    return {"rate_per_s": rate, "server_us": 0.0, "server_cpu_us": 0.0, "client_cpu_us": spark_s * 1e6 / number}


def _listen(servers: Servers, cargo: str, number: int, processes: int) -> dict[str, float]:
    _fill(servers, cargo, number)
    children = [Child(_consume, servers.url, cargo) for _ in range(processes)]
    for child in children:
        child.wait_ready()
    with Meter(servers) as meter:
        for child in children:
            child.go()
        with RmqClient(servers.url) as client:
            inspection = client.inspect(_topic(cargo))
            deadline_s = time.monotonic() + LIMIT_S
            while inspection.stats().total("acked") < number and time.monotonic() < deadline_s:
                time.sleep(0.02)
    for child in children:
        child.go()  # now it may end
    return _row(meter.cost, number, sum(child.result(LIMIT_S) for child in children))


def _consume(line: Line, url: str, cargo: str) -> float:
    with RmqClient(url) as client:
        client.listener(_topic(cargo), batch=loads.BATCH)(loads.reader(cargo))
        line.ready()
        before_s = cpu_s()
        client.start()
        line.hear()
        used_s = cpu_s() - before_s
        client.stop()
    return used_s


def _row(cost: Cost, number: int, client_s: float) -> dict[str, float]:
    return cost.row(number, "evalsha") | {"client_cpu_us": client_s * 1e6 / number}


def tables(document: Document) -> str:
    """Render the rates and their ratios."""
    absent = dict.fromkeys(("batch_rate_per_s", "whole_rate_per_s", "start_s", "tiny_batch_s"))
    lines = rendering.listed(
        [absent | row for row in document["rows"]],
        ("", "{what}"),
        ("tasks", "{tasks}"),
        ("messages/s", "{rate_per_s:,.0f}"),
        ("of listener", "{of_listener:×}"),
        ("of one task", lambda row: "" if row["tasks"] == 1 else rendering.ratio(row["of_one"])),
        ("best batch, 1/s", "{batch_rate_per_s:,.0f}"),
        ("with start and end, 1/s", "{whole_rate_per_s:,.0f}"),
        ("start and end, s", "{start_s:,.1f}"),
        ("tiny batch, s", "{tiny_batch_s:,.2f}"),
        ("client CPU, µs", "{client_cpu_us:,.2f}"),
        ("server CPU, µs", "{server_cpu_us:,.2f}"),
        ("of it EVALSHA, µs", "{server_us:,.2f}"),
    )
    return rendering.text("spark_source", document, listener_batch=loads.BATCH, table=lines)


COSTS = {"client": "client_cpu_us", "server": "server_cpu_us"}
PLOT = rendering.picture(
    "Spark's streaming source",
    rendering.Panel("messages/s", "{what}\n{tasks} at once", {"": "rate_per_s"}, digits=0),
    rendering.Panel("CPU, µs a message", "{what}\n{tasks} at once", COSTS),
)
BENCHMARK = Benchmark("spark_source", measure, tables, PLOT, numbers=(600_000, 100_000))
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
