"""What Spark leaves to other clients of its Redis, what an idle query costs, and what a second task brings."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import DataFrame, SparkSession

from benchmarks.support import loads, rendering
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.meters import LongestCalls, medians
from benchmarks.support.probe import Probe
from benchmarks.support.servers import Servers, cluster, standalone
from benchmarks.support.spark_work import SLOTS, contents, jvm_of, spark_session
from rmq import RmqClient, Topic, TopicType

KIND = TopicType.PRIORITY
IDLE_SLOTS = 64
LEASE_S = 30
"""Leases of the open messages: renewed every third of it."""
SETTLE_S = 5.0
LIMIT_S = 600
CASES = ((1, 1), (1, 2), (2, 2))
"""Tasks, and cores for them, for Redis and for Spark together."""

APART = "; Redis apart"
"""Marks loads during which Redis has a core of its own, and Spark the others."""

Samples = dict[str, list[dict[str, float]]]
Note = Callable[[str, dict[str, float]], None]


def measure(options: argparse.Namespace) -> Document:
    """PING a Redis beside Spark's loads, and an idle one; count an idle query's commands; add a second task."""
    quick = options.quick
    number = options.number or (100_000 if quick else 1_000_000)
    hold_s, idle_s = (8.0, 3.0) if quick else (35.0, 10.0)
    samples: Samples = {}

    def note(case: str, row: dict[str, float]) -> None:
        samples.setdefault(case, []).append(row)
        say(f"spark_limits: {case}: " + ", ".join(f"{name} {value:,.1f}" for name, value in row.items()))

    with spark_session(2) as session:
        with standalone() as servers, standalone() as idle, Probe(servers.port) as probe, Probe(idle.port) as other:
            beside = _Beside(servers, probe, other, note)
            _sink(session, servers, 50_000, 2)  # starts the Python workers
            for repeat in range(options.repeats):
                say(f"spark_limits: repeat {repeat + 1} of {options.repeats}")
                servers.flush()
                _loads(session, servers, beside, number, hold_s)
                servers.flush()
                with _apart(session, (servers, idle), (probe, other)):
                    _loads(session, servers, _Beside(servers, probe, other, note, APART), number, hold_s)
                servers.flush()
                note("idle query", {"commands_per_s": _idle(session, servers, idle_s)})
        with cluster(2) as nodes:
            for _ in range(options.repeats):
                for tasks, cores in CASES:
                    _with_tasks(session, nodes, number, tasks, cores, note)
            version, spark_version = nodes.version, session.version
    settings = {"number": number, "slots": SLOTS, "idle_slots": IDLE_SLOTS, "lease_s": LEASE_S, "hold_s": hold_s}
    rows: list[Row] = [{"case": case, **medians(each)} for case, each in samples.items()]
    for row in rows:
        what, _, rest = row["case"].partition(", ")
        if rest:
            pairs = zip(samples[row["case"]], samples[_case(what, 1, 1)], strict=True)
            row |= medians([{"of_one": mine["rate_per_s"] / one["rate_per_s"]} for mine, one in pairs])
    return {"redis": version, "spark": spark_version, "settings": settings | {"type": KIND.name}, "rows": rows}


def _loads(session: SparkSession, servers: Servers, beside: _Beside, number: int, hold_s: float) -> None:
    beside.during("nothing", 0, lambda: time.sleep(SETTLE_S))
    beside.during("sink", number, lambda: _sink(session, servers, number, 2))
    beside.during("batch read", number, lambda: _read(session, servers))
    _fill(servers, number)
    beside.during("source", number, lambda: _drain(_source(session, servers, {})))
    _fill(servers, number, LEASE_S)
    _hold(session, servers, number, hold_s, beside)


def _with_tasks(session: SparkSession, servers: Servers, number: int, tasks: int, cores: int, note: Note) -> None:
    """Measure sink and source with so many tasks, on so many cores."""
    servers.flush()
    with _on_cores(_processes(session, servers), cores):
        note(_case("sink", tasks, cores), _rate(number, lambda: _sink(session, servers, number, tasks)))
    _fill(servers, number)
    stream = _source(session, servers, {"minPartitions": tasks, "maxPartitions": tasks})
    with _on_cores(_processes(session, servers), cores):
        note(_case("source", tasks, cores), _rate(number, lambda: _drain(stream)))


class _Beside:
    """Measures the PINGs beside a load, and those to a Redis that does nothing meanwhile."""

    def __init__(self, servers: Servers, probe: Probe, idle: Probe, note: Note, mark: str = "") -> None:
        self._servers, self._probe, self._idle, self._note, self._mark = servers, probe, idle, note, mark

    def during(self, case: str, number: int, work: Callable[[], object]) -> None:
        """Do some work, and note how long PINGs took meanwhile."""
        self._probe.take()
        self._idle.take()
        with LongestCalls(self._servers.connect()) as longest:
            began_s = time.perf_counter()
            work()
            elapsed_s = time.perf_counter() - began_s
            found, other = self._probe.take(), self._idle.take()
        row = {f"{name}_ms": value for name, value in found.items()}
        row |= {f"idle_{name}_ms": value for name, value in other.items()}
        self._note(
            case + self._mark, row | {"longest_ms": longest.longest_us / 1_000, "rate_per_s": number / elapsed_s}
        )


def _case(what: str, tasks: int, cores: int) -> str:
    return f"{what}, {tasks} {'task' if tasks == 1 else 'tasks'}, {cores} {'core' if cores == 1 else 'cores'}"


def _sink(session: SparkSession, servers: Servers, number: int, tasks: int) -> None:
    frame = contents(session, number, tasks)
    options = {
        "url": servers.url,
        "topic": loads.topic(KIND, SLOTS).name,
        "type": KIND.name,
        "slots": SLOTS,
        "priority": 5_000,
    }
    frame.write.format("rmq").mode("append").options(**options).save()


def _read(session: SparkSession, servers: Servers) -> None:
    frame = session.read.format("rmq").options(url=servers.url, topic=loads.topic(KIND, SLOTS).name).load()
    frame.write.format("noop").mode("overwrite").save()


def _fill(servers: Servers, number: int, lease_s: int = 600) -> None:
    servers.flush()
    plain = loads.topic(KIND, SLOTS)
    with RmqClient(servers.url) as client:
        producer = client.producer(Topic(plain.name, KIND, slots=SLOTS, lease=timedelta(seconds=lease_s)))
        producer.send_columns(
            loads.contents(number), **loads.soon_in_columns(KIND, number, loads.priorities(10_000), 1)
        )


def _source(session: SparkSession, servers: Servers, settings: dict[str, Any]) -> DataFrame:
    options = {"url": servers.url, "topic": loads.topic(KIND, SLOTS).name, **settings}
    return session.readStream.format("rmq").options(**options).load()


def _drain(stream: DataFrame) -> None:
    with tempfile.TemporaryDirectory(prefix="rmq-bench-") as folder:
        writer = stream.writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(LIMIT_S)


def _hold(session: SparkSession, servers: Servers, number: int, hold_s: float, beside: _Beside) -> None:
    """Keep one batch of all messages open for some time."""
    stream = _source(session, servers, {"maxMessagesPerTrigger": number})

    def handle(frame: DataFrame, _: int) -> None:
        frame.write.format("noop").mode("overwrite").save()
        beside.during("open messages renewed", 0, lambda: time.sleep(hold_s))

    with tempfile.TemporaryDirectory(prefix="rmq-bench-") as folder:
        writer = stream.writeStream.foreachBatch(handle).option("checkpointLocation", folder)
        writer.trigger(availableNow=True).start().awaitTermination(LIMIT_S)


def _idle(session: SparkSession, servers: Servers, seconds: float) -> float:
    """Return the commands a second of a query with the default trigger on an empty topic, those of scripts included."""
    topic = loads.topic(KIND, IDLE_SLOTS, "-idle")
    with RmqClient(servers.url) as client:
        client.producer(topic)
    stream = session.readStream.format("rmq").options(url=servers.url, topic=topic.name).load()
    plain = servers.connect()
    with tempfile.TemporaryDirectory(prefix="rmq-bench-") as folder:
        query = stream.writeStream.format("noop").option("checkpointLocation", folder).start()
        try:
            time.sleep(SETTLE_S)
            before, began_s = _commands(plain), time.perf_counter()
            time.sleep(seconds)
            return (_commands(plain) - before) / (time.perf_counter() - began_s)
        finally:
            query.stop()


def _commands(plain: Any) -> int:
    """Return the commands so far but for the PINGs of the probe."""
    stats = plain.info("commandstats")
    return int(plain.info("stats")["total_commands_processed"]) - stats.get("cmdstat_ping", {"calls": 0})["calls"]


def _rate(number: int, work: Callable[[], object]) -> dict[str, float]:
    began_s = time.perf_counter()
    work()
    return {"rate_per_s": number / (time.perf_counter() - began_s)}


def _processes(session: SparkSession, servers: Servers) -> list[int]:
    """Return the processes of Redis and of Spark."""
    return [*map(_pid_of, servers.connect_all()), *_spark_processes(session)]


def _spark_processes(session: SparkSession) -> list[int]:
    jvm = jvm_of(session)
    return [os.getpid(), jvm.pid, *(child.pid for child in jvm.children(recursive=True))]


@contextmanager
def _apart(session: SparkSession, servers: Iterable[Servers], probes: Iterable[Probe]) -> Iterator[None]:
    """Give Redis and who PINGs it a core, and Spark the others: as where they are on different machines."""
    everywhere = os.sched_getaffinity(0)
    apart = [_pid_of(client) for each in servers for client in each.connect_all()] + [each.pid for each in probes]
    spark = _spark_processes(session)
    with ExitStack() as undo:
        undo.callback(_pin, [*apart, *spark], everywhere)
        _pin(apart, {max(everywhere)})
        _pin(spark, (everywhere - {max(everywhere)}) or everywhere)
        yield


def _pid_of(client: Any) -> int:
    return int(client.info("server")["process_id"])


@contextmanager
def _on_cores(processes: Iterable[int], number: int) -> Iterator[None]:
    """Let processes run on some cores only; what they start meanwhile does, too."""
    everywhere, found = os.sched_getaffinity(0), list(processes)
    with ExitStack() as undo:
        undo.callback(_pin, found, everywhere)
        _pin(found, set(sorted(everywhere)[:number]))
        yield


def _pin(processes: Iterable[int], cores: set[int]) -> None:
    for process in processes:
        try:
            threads = psutil.Process(process).threads()
        except psutil.NoSuchProcess:
            continue
        for thread in threads:
            try:
                os.sched_setaffinity(thread.id, cores)
            except ProcessLookupError:
                continue


def tables(document: Document) -> str:
    """Render what PINGs took, and what a second task brings."""
    settings, rows = document["settings"], {row["case"]: row for row in document["rows"]}
    pings = [
        (
            case,
            *(rendering.number(row[f"{name}_ms"], 1) for name in ("p99", "p999", "max")),
            *(rendering.number(row[f"idle_{name}_ms"], 1) for name in ("p999", "max")),
            rendering.number(row["longest_ms"], 1),
            rendering.number(row["rate_per_s"]) if row["rate_per_s"] else "–",
        )
        for case, row in rows.items()
        if "p999_ms" in row
    ]
    tasks = [
        (case, rendering.number(row["rate_per_s"]), rendering.ratio(row["of_one"]))
        for case, row in rows.items()
        if "of_one" in row
    ]
    columns = [
        "beside",
        "p99, ms",
        "p99.9, ms",
        "longest, ms",
        "idle Redis: p99.9, ms",
        "longest, ms",
        "longest call, ms",
    ]
    return (
        f"{settings['number']:,} messages of 20 bytes, {settings['type']}, {settings['slots']} slots, Spark "
        f"{document['spark']} on `local[2]`, Redis {document['redis']}. Another client sends a PING every 2 ms to the "
        "Redis that has the load, and one more to a Redis that does nothing: that shows what the machine takes. The "
        f"source has its default options; the open messages, all in one batch, have leases of {settings['lease_s']} s "
        f"and are held for {settings['hold_s']:g} s. `longest call`: of any command, by the slow log. `Redis apart`: "
        "both Redis, and who sends the PINGs, have a core, and Spark has the others.\n\n"
        + rendering.table([*columns, "1/s"], pings)
        + f"\n\nA query that finds nothing on a topic with {settings['idle_slots']} slots calls "
        f"{rendering.number(rows['idle query']['commands_per_s'], 1)} commands a second, those in scripts included."
        "\n\nTwo Redis in a cluster have the slots. `cores`: Spark, both Redis and the benchmark share so many.\n\n"
        + rendering.table(["", "1/s", "of one task on one core"], tasks)
    )


def plot(document: Document, path: Path) -> None:
    """Draw the PINGs."""
    figure, (axis,) = rendering.figure(1, "PINGs beside Spark")
    rows = [row for row in document["rows"] if "p999_ms" in row and APART not in row["case"]]
    series = {
        "p99.9": [row["p999_ms"] for row in rows],
        "longest": [row["max_ms"] for row in rows],
        "idle Redis, p99.9": [row["idle_p999_ms"] for row in rows],
    }
    rendering.bars(axis, [row["case"].replace(" ", "\n") for row in rows], series, "ms", 1)
    rendering.save(figure, path)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--number", type=int, help="messages (1,000,000; quick: 100,000)")


BENCHMARK = Benchmark("spark_limits", measure, tables, plot, _arguments, repeats=3)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
