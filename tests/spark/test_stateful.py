"""`transformWithState`, an operator with state of one's own, between a topic that is drained and one that is filled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from rmq import PriorityMessage, RmqClient, StreamMessage, Topic, TopicType
from tests.spark.sessions import stream_of

pytestmark = pytest.mark.spark_long

LIMIT_S = 300
STORE = "spark.sql.streaming.stateStore.providerClass"
ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Visits(StatefulProcessor):
    """Counts the visits of each customer, over all batches."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Begin with the state of this partition."""
        self._count = handle.getValueState("count", "count long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Give the customer's new count."""
        del timerValues
        before = self._count.get()
        count = (0 if before is None else before[0]) + sum(1 for _ in rows)
        self._count.update((count,))
        yield Row(content=f"{key[0]}={count}", priority=count)


@pytest.fixture
def rocks_db(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get(STORE)
    spark.conf.set(STORE, ROCKS_DB)
    yield
    spark.conf.set(STORE, before or "")


@pytest.mark.usefixtures("rocks_db")
def test_state_goes_on_over_batches_and_restarts(spark: SparkSession, spark_client: RmqClient, tmp_path: Path) -> None:
    visits = Topic("stateful-visits", TopicType.PRIORITY, slots=2)
    counts = Topic("stateful-counts", TopicType.STREAM, slots=2)
    spark_client.producer(counts).send(StreamMessage("before"))

    def drain(first: int, number: int) -> None:
        """Let so many visits of each of three customers be counted, in batches of 40."""
        contents = [f"customer{customer}/{n}" for n in range(first, first + number) for customer in range(3)]
        spark_client.producer(visits).send_many(PriorityMessage(content, 1_000) for content in contents)
        stream = stream_of(spark, spark_client.url, visits.name, maxMessagesPerTrigger=40)
        keyed = stream.selectExpr("split_part(cast(content as string), '/', 1) customer").groupBy("customer")
        rows = keyed.transformWithState(Visits(), "content string, priority long", "Append", "None")
        writer = rows.writeStream.format("rmq").options(url=spark_client.url, topic=counts.name, idempotent=True)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(LIMIT_S)

    drain(0, 30)
    drain(30, 25)
    found = Counter(entry.content.decode() for entry in spark_client.stream(counts).range())
    assert {f"customer{customer}={count}" for customer in range(3) for count in (30, 55)} <= found.keys()
    assert max(found.values()) == 1, "each count was sent once"
    stats = spark_client.inspect(visits).stats()
    assert (stats.backlog, stats.in_flight, stats.total("acked")) == (0, 0, 165)
