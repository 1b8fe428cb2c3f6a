"""The sinks on topics that merge, in a real Spark: each row counts once, also in a task that is run again."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

from rmq import (
    PER_MESSAGE,
    Collect,
    Keep,
    Max,
    Merge,
    Min,
    Newest,
    Replace,
    RmqClient,
    Sliding,
    Sum,
    Topic,
    TopicType,
    WhenFull,
)
from rmq.errors import InvalidValueError
from rmq.spark import keyed, merged
from tests.spark.merging import Value, read_of, sink_of, stored
from tests.support.core import Reducer

pytestmark = pytest.mark.slow

LIMIT_S = 120
ALL = Collect(max_items=100_000, max_bytes=1_048_576)
numbers = count(1)


@pytest.fixture
def make(spark_client: RmqClient) -> Callable[..., Topic]:
    def run(reducer: Reducer, kind: TopicType = TopicType.PRIORITY, **settings: object) -> Topic:
        merge = {name: settings.pop(name) for name in ("window", "max_count", "priority") if name in settings}
        topic = Topic(f"sinkm-{next(numbers)}", kind, slots=2, merge=Merge(reducer, **merge), **settings)  # pyright: ignore[reportArgumentType]
        spark_client.producer(topic)
        return topic

    return run


def failing_once(frame: DataFrame, marker: Path, row: int, ready: Callable[[], bool]) -> DataFrame:
    """Return a frame whose task with this row fails there once, as soon as it is ready to."""
    path = str(marker)

    @udf(returnType="string", useArrow=False)
    def fail(number: int) -> str:
        if number == row and not Path(path).exists():
            Path(path).write_text("ready" if within(LIMIT_S / 2, ready) else "late")
            raise ValueError("the first try fails")
        return f"{number:0200}"  # Spark's worker holds back 64 KiB, which else were all rows before the one that fails

    return frame.withColumn("id", fail("id").cast("long"))


def within(limit_s: float, ready: Callable[[], bool]) -> bool:
    """Return whether it is ready within this time."""
    until_s = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize(
    ("reducer", "marked"),
    [
        pytest.param(Sum(), True, id="sum"),
        pytest.param(ALL, True, id="collect"),
        pytest.param(Sum(), False, id="sum unmarked"),
        pytest.param(ALL, False, id="collect unmarked", marks=pytest.mark.long),
    ],
)
def test_a_task_that_fails_after_it_sent_and_is_run_again_counts_once(
    spark: SparkSession,
    spark_client: RmqClient,
    make: Callable[..., Topic],
    tmp_path: Path,
    reducer: Reducer,
    marked: bool,
) -> None:
    topic, marker, url = make(reducer), tmp_path / "failed", spark_client.url

    def both_have_sent() -> bool:
        """Say whether more was sent than the other task has; Spark sends on what it has handed over before."""
        with RmqClient(url) as client:
            return client.inspect(topic).stats().total("accepted") > 20_000

    frame = failing_once(spark.range(0, 40_000, 1, 2), marker, 39_990, both_have_sent)
    body = "id body" if isinstance(reducer, Sum) else "cast(id as string) body"
    rows = frame.selectExpr("concat('c', id % 500) content", body, "5000L priority")
    sink_of(rows, spark_client.url, topic, mergeRows=100, **({} if marked else {"idempotent": False})).save()
    assert marker.read_text() == "ready", "it failed before it had sent anything"
    found, accepted = stored(spark_client, topic), spark_client.inspect(topic).stats().total("accepted")
    if not marked:
        assert accepted > 40_000, "it had sent some rows before it failed, and sent them again"
        return
    assert accepted == sum(value.count for value in found.values()) == 40_000
    for i in range(500):
        value, ids = found[b"c%d" % i], range(i, 40_000, 500)
        if isinstance(reducer, Sum):
            assert value == Value(80, sum(ids), None, ())
        else:
            assert sorted(map(int, value.items)) == list(ids)


def test_the_same_write_again_counts_once_by_its_name(
    spark: SparkSession, spark_client: RmqClient, make: Callable[..., Topic]
) -> None:
    topic, url = make(Sum()), spark_client.url
    frame = spark.range(0, 1_000, 1, 2).selectExpr("concat('c', id % 10) content", "1L body", "5000L priority")
    for partitions in (2, 3):
        rows = keyed(frame.repartition(partitions), 2)
        sink_of(rows, url, topic, once="stock of Monday").save()
        assert {value.number for value in stored(spark_client, topic).values()} == {100}
    sink_of(frame, url, topic).save()
    assert {value.number for value in stored(spark_client, topic).values()} == {200}
    for options in ({"once": "x", "idempotent": False}, {"once": ""}):
        with pytest.raises(Exception, match="once is "):
            sink_of(frame, url, topic, **options).save()


@pytest.mark.parametrize(
    "reducer",
    [
        *(Keep(), Replace(), Newest(), Max(), Min(), Sum(), Collect()),
        # goes the way of Collect, and that of test_parts_of_joins_come_together
        pytest.param(Collect(unique=True), marks=pytest.mark.long),
    ],
    ids=repr,
)
def test_folded_in_tasks_over_all_partitions_or_not_at_all_the_results_are_the_same(
    spark: SparkSession, spark_client: RmqClient, make: Callable[..., Topic], reducer: Reducer
) -> None:
    url, kinds = spark_client.url, {"partition": 1, "none": 1, "merged": 3}
    found: list[dict[bytes, Value]] = []
    for way, partitions in kinds.items():
        topic, ordered = make(reducer), isinstance(reducer, Keep | Replace | Newest | Collect)
        body = (
            "(id * 7919) % 100 body"
            if isinstance(reducer, Max | Min | Sum)
            else "cast((id * 7919) % 100 as string) body"
        )
        columns = ["concat('c', id % 20) content", body, "5000L priority", "id % 3 + 1 weight", "id"]
        columns += ["(id * 31) % 1000 version"] if isinstance(reducer, Newest) else []
        frame = spark.range(0, 2_000, 1, partitions).selectExpr(*columns)
        if way == "merged":
            one = merged(frame.repartition(3, "body"), topic, order_by="id").drop("id")
            sink_of(one, url, topic).save()
            assert isinstance(reducer, Collect) or one.count() == 20
        else:
            sink_of(frame.drop("id"), url, topic, merge=way).save()
        values = stored(spark_client, topic)
        found.append(values if ordered else {content: value._replace(items=()) for content, value in values.items()})
        accepted = spark_client.inspect(topic).stats().total("accepted")
        assert accepted == sum(value.count for value in values.values()) == sum(i % 3 + 1 for i in range(2_000))
    assert found[0] == found[1] == found[2]


def test_merged_needs_an_order_where_the_first_or_the_last_row_decides(
    spark: SparkSession, make: Callable[..., Topic]
) -> None:
    frame = spark.sql("select 'a' content, 1L body, 5000L priority")
    with pytest.raises(InvalidValueError, match="priority depends on the order of the rows"):
        merged(frame, make(Sum()))
    summed = merged(frame.union(frame), make(Sum(), priority="sum")).collect()
    assert [tuple(row) for row in summed] == [("a", 2, 10_000, 2)]
    with pytest.raises(InvalidValueError, match="body depends on the order of the rows"):
        merged(frame.drop("priority"), make(Replace()))
    nothing = spark.sql("select 'a' content, null :: bigint body, 5000L priority")
    [row] = merged(frame.union(nothing), make(Max(), priority="lowest")).collect()
    assert row["body"] is None, "the sink says what is wrong"


def test_parts_of_joins_come_together(spark: SparkSession, spark_client: RmqClient, make: Callable[..., Topic]) -> None:
    reducer = Collect(unique=True)
    topic = make(reducer, TopicType.RANGE_MERGE, window=Sliding(max_wait="1h"), max_count=PER_MESSAGE)
    frame = spark.range(0, 300, 1, 3).selectExpr(
        "concat('order', id % 50) content", "concat('p', id div 50) part", "6 of"
    )
    sink_of(merged(frame.union(frame), topic), spark_client.url, topic).save()
    values = stored(spark_client, topic)
    assert {tuple(sorted(value.items)) for value in values.values()} == {tuple(b"p%d" % i for i in range(6))}
    assert {value.count for value in values.values()} == {12}
    with spark_client.consumer(topic) as consumer:
        deliveries = consumer.poll(max_messages=50, timeout=10)
        assert len(deliveries) > 0
        assert all(delivery.complete for delivery in deliveries)
        for delivery in deliveries:
            delivery.ack()


def test_a_batch_of_a_stream_that_is_run_again_counts_once(
    spark: SparkSession, spark_client: RmqClient, make: Callable[..., Topic], tmp_path: Path
) -> None:
    topic = make(Sum(), max_backlog=200, when_full=WhenFull.BLOCK)
    checkpoint, source = tmp_path / "checkpoint", str(tmp_path / "source")
    spark.range(0, 1_000, 1, 2).selectExpr("concat('c', id % 50) content", "id body", "5000L priority").write.json(
        source
    )

    def drain(**options: object) -> None:
        rows = spark.readStream.schema("content string, body long, priority long").json(source)
        writer = keyed(rows, 2).writeStream.format("rmq").option("url", spark_client.url).option("topic", topic.name)
        for name, value in options.items():
            writer = writer.option(name, str(value).lower())
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(LIMIT_S)

    drain()
    once = stored(spark_client, topic)
    assert once == {b"c%d" % i: Value(20, sum(range(i, 1_000, 50)), None, ()) for i in range(50)}
    for options, expected in (({}, 1), ({"idempotent": False}, 2)):
        for name in ("0", ".0.crc"):
            (checkpoint / "commits" / name).unlink(missing_ok=True)
        drain(**options)
        assert stored(spark_client, topic) == {
            content: Value(expected * value.count, expected * value.number, None, ()) for content, value in once.items()
        }


def test_what_was_read_can_be_written_and_keeps_its_counts(
    spark: SparkSession, spark_client: RmqClient, make: Callable[..., Topic]
) -> None:
    url = spark_client.url
    for reducer, body in ((Sum(), "id body"), (Collect(), "cast(id as string) body"), (Newest(), "'b' body")):
        first, second = make(reducer), make(reducer)
        version = ["id version"] if isinstance(reducer, Newest) else []
        frame = spark.range(100).selectExpr("concat('c', id % 7) content", body, "5000L priority", *version)
        sink_of(frame, url, first).save()
        sink_of(read_of(spark, url, first), url, second).save()
        assert stored(spark_client, second) == stored(spark_client, first) != {}
