"""Looks whether a customer was ever in two hands at once, from what batches and a rival have written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from rmq.demo.spark.customers import PREFIX


@dataclass(frozen=True, slots=True)
class Held:
    """A plain consumer held a message at least between two times of Redis, and changed its customer meanwhile."""

    content: str
    began_ms: int
    ended_ms: int


@dataclass(frozen=True, slots=True)
class Disorder:
    """What should not be: all 0.

    Attributes:
        doubled: Customers that came twice in one batch, and so perhaps in two tasks.
        overlaps: How often somebody began on a customer whom another batch, or the rival, had still.
        outdated: Customers that changed in the rival's hands and were not evaluated afterwards.
    """

    doubled: int = 0
    overlaps: int = 0
    outdated: int = 0


def disorder(
    spark: SparkSession, out: str, batches: Sequence[int], held: Sequence[Held], *, drained: bool = True
) -> Disorder:
    """Return what went wrong in a run.

    Args:
        spark: The session.
        out: The job's folder.
        batches: Numbers of the batches that the run has evaluated.
        held: What the rival had in the same run.
        drained: Whether the topic is empty; else some may be evaluated yet, and none counts as outdated.
    """
    if not batches:
        return Disorder(outdated=len({each.content for each in held}) if drained else 0)
    ran = F.col("batch").between(min(batches), max(batches))
    times = spark.read.json(f"{out}/evaluations", schema="began_ms long, ended_ms long, batch int")
    evaluated = spark.read.parquet(f"{out}/segments").where(ran).join(F.broadcast(times), "batch")
    evaluated = evaluated.select("customer", "batch", "began_ms", "ended_ms").persist()
    rows = [(each.content.removeprefix(PREFIX), each.began_ms, each.ended_ms) for each in held]
    rival: DataFrame = cast("Any", spark).createDataFrame(rows, "customer string, began_ms long, ended_ms long")
    try:
        once = evaluated.distinct()
        before = (
            Window.partitionBy("customer").orderBy("began_ms", "ended_ms").rowsBetween(Window.unboundedPreceding, -1)
        )
        spans = once.drop("batch").unionAll(rival).withColumn("busy_ms", F.max("ended_ms").over(before))
        last_held = rival.groupBy("customer").agg(F.max("began_ms").alias("changed_ms"))
        last = once.groupBy("customer").agg(F.max("began_ms").alias("began_ms"))
        late = last_held.join(last, "customer", "left").where("began_ms IS NULL OR began_ms < changed_ms")
        return Disorder(
            doubled=evaluated.groupBy("customer", "batch").count().where("count > 1").count(),
            overlaps=spans.where("began_ms < busy_ms").count(),
            outdated=late.count() if drained else 0,
        )
    finally:
        evaluated.unpersist()
