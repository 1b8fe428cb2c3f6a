"""Fifty million changes of two million items through Spark's sink into one Redis, and what is left out again."""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import DataFrame, SparkSession

from benchmarks.spark_source import drain
from benchmarks.support import rendering
from benchmarks.support.harness import Benchmark, Document, say
from benchmarks.support.meters import Meter, rounded
from benchmarks.support.servers import Servers, standalone
from benchmarks.support.spark_work import spark_session
from rmq import RmqClient, Topic, TopicType

TOPIC = Topic("bench-millions", TopicType.RANGE_MERGE, slots=16)
PARTITIONS = 50
SAMPLE_S = 1.0


def measure(options: argparse.Namespace) -> Document:
    """Write generated changes with the sink; drain the messages that they have merged into with the source."""
    number = options.number or (1_000_000 if options.quick else 50_000_000)
    items = options.items or number // 25
    with standalone() as servers, spark_session(2) as session, RmqClient(servers.url) as client:
        client.producer(TOPIC)  # registers it
        inspection = client.inspect(TOPIC)
        watch = _Watch(servers, lambda: inspection.stats().total("accepted"))
        with Meter(servers) as sent, watch:
            _sink(servers, changes(session, number, items))
        stats = inspection.stats()
        accepted, merged = stats.total("accepted"), stats.total("merged")
        backlog, memory = stats.backlog, sent.cost.memory_bytes
        say(f"spark_millions: {accepted:,} messages sent, {backlog:,} in the backlog")
        with Meter(servers) as drained:
            drain(_source(session, servers))
        stats = inspection.stats()
        version, spark_version = servers.version, session.version
    return {
        "redis": version,
        "spark": spark_version,
        "repeats": 1,
        "settings": {"rows": number, "items": items, "slots": TOPIC.slots, "type": TOPIC.type.name},
        "sink": {
            "rows_per_s": rounded(number / sent.cost.elapsed_s),
            "seconds": rounded(sent.cost.elapsed_s),
            "folded_in_tasks": number - accepted,
            "merged_in_redis": merged,
            "backlog": backlog,
            "memory_bytes": memory,
            "server_cpu_us": rounded(sent.cost.server_cpu_s * 1e6 / number),
            "most_rss_bytes": watch.most_rss_bytes,
            "samples": watch.samples,
        },
        "source": {
            "messages_per_s": rounded(backlog / drained.cost.elapsed_s),
            "seconds": rounded(drained.cost.elapsed_s),
            "acked": stats.total("acked"),
            "left": stats.backlog + stats.in_flight,
        },
    }


def changes(session: SparkSession, number: int, items: int) -> DataFrame:
    """Return so many changes of items, some of which change far more often than others; the same at each call."""
    share = "((xxhash64(id) & 9223372036854775807) / 9223372036854775807D)"
    item = f"cast(pow({share}, 3) * {items} as bigint)"
    return session.range(0, number, 1, PARTITIONS).selectExpr(f"concat('item:', {item}) content")


def _sink(servers: Servers, frame: DataFrame) -> None:
    options: dict[str, Any] = {"url": servers.url, "topic": TOPIC.name, "time_range": "1s", "mergeRows": 200_000}
    frame.write.format("rmq").mode("append").options(**options).save()


def _source(session: SparkSession, servers: Servers) -> DataFrame:
    options: dict[str, Any] = {"url": servers.url, "topic": TOPIC.name, "maxMessagesPerTrigger": 250_000}
    return session.readStream.format("rmq").options(**options, minPartitions=2, maxPartitions=2).load()


class _Watch:
    """Notes every second how much has been sent and how much memory is used; a context manager."""

    def __init__(self, servers: Servers, accepted: Any) -> None:
        self._client, self._accepted = servers.connect(), accepted
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.samples: list[tuple[float, int, int]] = []
        """Seconds, messages sent, bytes that Redis uses."""
        self.most_rss_bytes = 0
        """Of this process and all below it: Redis, the JVM, the Python workers."""

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        started_s = time.monotonic()
        while not self._ended.wait(SAMPLE_S):
            sample = (time.monotonic() - started_s, self._accepted(), self._client.info("memory")["used_memory"])
            self.samples.append((round(sample[0], 1), *sample[1:]))
            self.most_rss_bytes = max(self.most_rss_bytes, _rss_bytes())
            if len(self.samples) % 30 == 0:
                say(f"spark_millions: {sample[1]:,} messages sent, Redis uses {sample[2] / 2**20:,.0f} MiB")


def _rss_bytes() -> int:
    used = 0
    this = psutil.Process()
    for process in [this, *this.children(recursive=True)]:
        try:
            used += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return used


def tables(document: Document) -> str:
    """Render both ways in words and a table."""
    settings, sink, source = document["settings"], document["sink"], document["source"]
    number, gib = settings["rows"], 2**30
    rows = [
        ("rows", f"{number:,}"),
        ("written in, s", rendering.number(sink["seconds"])),
        ("rows/s", rendering.number(sink["rows_per_s"])),
        ("folded in Spark's tasks", f"{sink['folded_in_tasks']:,} ({sink['folded_in_tasks'] / number:.0%})"),
        ("merged in Redis", f"{sink['merged_in_redis']:,} ({sink['merged_in_redis'] / number:.0%})"),
        ("messages in the backlog", f"{sink['backlog']:,}"),
        ("memory of Redis for them, GiB", rendering.number(sink["memory_bytes"] / gib, 2)),
        ("most memory of all processes, GiB", rendering.number(sink["most_rss_bytes"] / gib, 2)),
        ("drained and acked", f"{source['acked']:,}"),
        ("drained in, s", rendering.number(source["seconds"], 1)),
        ("messages/s", rendering.number(source["messages_per_s"])),
        ("left", f"{source['left']:,}"),
    ]
    return (
        f"{number:,} changes of {settings['items']:,} items, some changed far more often than others, generated by "
        f"Spark {document['spark']} in {PARTITIONS} partitions on `local[2]`, {settings['type']}, "
        f"{settings['slots']} slots, one Redis {document['redis']}, `mergeRows` 200,000; then drained by the streaming "
        "source in batches of 250,000.\n\n" + rendering.table(["", ""], rows)
    )


def plot(document: Document, path: Path) -> None:
    """Draw how the backlog's memory levels off while messages go on coming."""
    figure, (left, right) = rendering.figure(2, f"{document['settings']['rows']:,} changes through Spark's sink")
    samples = document["sink"]["samples"]
    seconds = [sample[0] for sample in samples]
    left.plot(seconds, [sample[1] / 1e6 for sample in samples], color=rendering.COLOURS[0])
    left.set_ylabel("million messages sent")
    right.plot(seconds, [sample[2] / 2**20 for sample in samples], color=rendering.COLOURS[1])
    right.set_ylabel("memory of Redis, MiB")
    for axis in (left, right):
        axis.set_xlabel("seconds")
        axis.set_ylim(bottom=0)
    rendering.save(figure, path)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--number", type=int, help="rows (50,000,000; quick: 1,000,000)")
    parser.add_argument("--items", type=int, help="items that they change (a twenty-fifth of the rows)")


BENCHMARK = Benchmark("spark_millions", measure, tables, plot, _arguments)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
