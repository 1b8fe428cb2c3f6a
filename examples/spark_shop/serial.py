"""A consumer that runs in parallel with Spark, and the check that no customer was handled twice at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from rmq import Consumer, Coordinator, Delivery, RangeMergeMessage, RmqClient, Topic
from rmq.errors import RmqError
from spark_shop.customers import PREFIX

_AT_ONCE = 20
_HOLD_S = 0.2


@dataclass(frozen=True, slots=True)
class Held:
    """A message that the plain consumer held between two times by Redis' clock, in which it changed the customer."""

    content: str
    began_ms: int
    ended_ms: int


class Rival(threading.Thread):
    """A consumer that takes some customers, changes each while it holds the message, and acks.

    Args:
        client: The client to use.
        topic: The topic.
        most: Number of customers that it takes; 0 for none.
        window_ms: Merge window of its changes.
        others: Event that is set when Spark has its first customers. The rival takes a few before, and the rest in
            parallel with Spark.

    Attributes:
        held: The customers it held, with times of Redis.
    """

    def __init__(self, client: RmqClient, topic: Topic, most: int, window_ms: int, others: threading.Event) -> None:
        super().__init__(name="rmq-audience-rival", daemon=True)
        self._client, self._topic, self._most, self._window_ms = client, topic, most, window_ms
        self._others = others
        self._producer = client.producer(topic)
        self._inspection = client.inspect(topic)
        self._stopping = threading.Event()
        self.held: list[Held] = []

    def run(self) -> None:
        """Run until `most` customers are taken, it is stopped, or Redis fails."""
        with suppress(RmqError), self._client.consumer(self._topic) as consumer:
            while len(self.held) < self._most and not self._stopping.is_set():
                if not self.held or self._others.wait(_HOLD_S):
                    self._take(consumer)

    def _take(self, consumer: Consumer) -> None:
        deliveries = consumer.poll(max_messages=min(_AT_ONCE, self._most - len(self.held)), timeout=_HOLD_S)
        self._change(deliveries)
        consumer.ack(deliveries)

    def _change(self, deliveries: Sequence[Delivery]) -> None:
        """Change the customers of deliveries, and hold them for a moment."""
        began_ms = self._now_ms()
        self._producer.send_many(RangeMergeMessage(each.content, time_range_ms=self._window_ms) for each in deliveries)
        self._stopping.wait(_HOLD_S)
        ended_ms = self._now_ms()
        self.held += [Held(each.text, began_ms, ended_ms) for each in deliveries]

    def stop(self) -> None:
        """Stop after the present customers."""
        self._stopping.set()
        self.join()

    def _now_ms(self) -> int:
        return self._inspection.stats([0]).now_ms


class OwningRival(Rival):
    """A rival that is a worker under ZooKeeper and takes customers of the slots that it owns.

    Args:
        coordinator: Coordinator of the rival.
        rest: As for `Rival`.
    """

    def __init__(self, coordinator: Coordinator, *rest: Any) -> None:
        super().__init__(*rest)
        self._coordinator = coordinator

    def run(self) -> None:
        """Run until `most` customers are taken, it is stopped, or Redis or ZooKeeper fails."""
        with suppress(RmqError), RmqClient(self._client.url, zookeeper=self._coordinator) as worker:
            worker.listener(self._topic, batch=_AT_ONCE)(self._handle)
            worker.start()
            while len(self.held) < self._most and not self._stopping.wait(_HOLD_S):
                pass

    def _handle(self, deliveries: list[Delivery]) -> None:
        begin = not self.held or self._others.wait(_HOLD_S)
        number = max(0, self._most - len(self.held)) if begin else 0
        for delivery in deliveries[number:]:
            delivery.release()
        if number:
            self._change(deliveries[:number])


@dataclass(frozen=True, slots=True)
class Disorder:
    """Violations of serial handling; all 0 if there are none.

    Attributes:
        doubled: Number of customers that occurred twice in one batch, perhaps in two tasks.
        overlaps: Number of evaluations that started while another batch or the rival held the customer.
        outdated: Number of customers that the rival changed and that were not evaluated afterwards.
    """

    doubled: int = 0
    overlaps: int = 0
    outdated: int = 0


def disorder(
    spark: SparkSession, out: str, batches: Sequence[int], held: Sequence[Held], *, drained: bool = True
) -> Disorder:
    """Return the violations in a run.

    Args:
        spark: The session.
        out: The job's folder.
        batches: Numbers of the batches evaluated in the run.
        held: The customers that the rival held in the run.
        drained: True if the topic is empty. If not, customers may still be evaluated, and none counts as outdated.
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
        by_time = Window.partitionBy("customer").orderBy("began_ms", "ended_ms")
        before = by_time.rowsBetween(Window.unboundedPreceding, -1)
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
