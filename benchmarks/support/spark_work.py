"""What the benchmarks of the Spark face share: a session, generated frames, and what Spark costs by itself."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import psutil
from pyspark.sql import DataFrame, SparkSession, datasource
from pyspark.sql.types import StructType

from benchmarks.support.harness import ROOT, Row
from benchmarks.support.samples import Sample, ratio, summary
from rmq import Topic, TopicType
from rmq.spark import open_session
from rmq.spark.calls import CHUNK, Chunk
from rmq.spark.schema import QUEUE
from rmq.spark.source.reader import to_arrow

SLOTS = 8
FACTOR, PRIME = 48_271, 100_000_007
"""Those of `loads.stream`: Spark generates the same contents."""


@contextmanager
def spark_session(cores: int) -> Iterator[SparkSession]:
    """Run a local session whose Python workers find this package."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ |= {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}
    settings = {"spark.driver.memory": "1500m", "spark.sql.shuffle.partitions": str(2 * cores)}
    with open_session("rmq-bench", master=f"local[{cores}]", settings=settings) as session:
        session.dataSource.register(NothingSource)
        yield session


def contents(session: SparkSession, number: int, tasks: int) -> DataFrame:
    """Return a frame with the contents of `loads.contents`, in as many partitions as tasks."""
    return session.range(0, number, 1, tasks).selectExpr(
        f"format_string('order:%014d', id * {FACTOR} % {PRIME}) content"
    )


def jvm_of(session: SparkSession) -> psutil.Process:
    """Return the JVM of a local session; its Python workers are below it."""
    gateway: Any = session.sparkContext._gateway  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
    return psutil.Process(gateway.proc.pid)


def spark_cpu_s(session: SparkSession) -> float:
    """Return the CPU time that Spark has used: its JVM and all Python processes below it, seconds."""
    jvm = jvm_of(session)
    used_s = 0.0
    for process in [jvm, *jvm.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        used_s += times.user + times.system + times.children_user + times.children_system
    return used_s


def rows_by_tasks(samples: list[Sample], beside: Mapping[str, str]) -> list[Row]:
    """Return the medians of cases that are named `WHAT; TASKS`, and their rates beside others and beside one task.

    Args:
        samples: Of all cases.
        beside: Name of a ratio -> the case that it is taken to, with `{}` for the number of tasks.
    """
    rows: list[Row] = []
    for case, figures in summary(samples).items():
        what, _, tasks = case.partition("; ")
        others = {name: other.format(tasks) for name, other in beside.items()} | {"of_one": f"{what}; 1"}
        over = {name: ratio(samples, case, other, "rate_per_s") for name, other in others.items()}
        rows.append({"what": what, "tasks": int(tasks), **figures, **over})
    return rows


class NothingSource(datasource.DataSource):
    """Rows to and from Python and nothing else: what Spark takes for itself of a sink's and a source's time.

    Options: `number` of rows of a batch, the only one; `tasks` that make them.
    """

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "nothing"

    def schema(self) -> StructType:
        """Return the columns of the source."""
        return QUEUE

    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceArrowWriter:
        """Return a sink that counts."""
        return _Counter()

    def streamReader(self, schema: StructType) -> datasource.DataSourceStreamReader:
        """Return a source that makes rows of one batch up."""
        return _Maker(int(self.options["number"]), int(self.options["tasks"]))


class _Counter(datasource.DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> datasource.WriterCommitMessage:
        sum(batch.num_rows for batch in iterator)
        return datasource.WriterCommitMessage()


class _Maker(datasource.DataSourceStreamReader):
    def __init__(self, number: int, tasks: int) -> None:
        self._number, self._tasks = number, tasks

    def initialOffset(self) -> dict[str, int]:
        return {"batch": 0}

    def latestOffset(self, *_: Any) -> dict[str, int]:
        return {"batch": 1}

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[datasource.InputPartition]:
        return [datasource.InputPartition(self._number // self._tasks) for _ in range(self._tasks)]

    def read(self, partition: datasource.InputPartition) -> Iterator[Any]:
        topic = Topic("nothing", TopicType.PRIORITY, slots=SLOTS)
        names = [b"order:%014d" % index for index in range(CHUNK)]
        chunk = Chunk(CHUNK, 0, 0, names, list(range(1_000, 1_000 + CHUNK)), None)
        for _ in range(cast(int, partition.value) // (4 * CHUNK)):
            yield to_arrow(QUEUE, topic, [(0, chunk)] * 4)

    def commit(self, end: Mapping[str, int]) -> None:
        pass

    def stop(self) -> None:
        pass


def batch_seconds(query: Any) -> list[tuple[int, float]]:
    """Return rows and seconds of each batch of a query, from Spark's own progress report."""
    found = [json.loads(progress.json) for progress in query.recentProgress]
    return [(each["numInputRows"], each["durationMs"]["triggerExecution"] / 1_000) for each in found]
