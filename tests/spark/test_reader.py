"""The streaming reader as Spark calls it, on a real Redis and without a JVM: what needs several drivers at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from rmq import PriorityMessage, RmqClient, StreamMessage, Topic, TopicType
from rmq.errors import (
    BatchAckedError,
    BatchError,
    BatchLostError,
    DriverReplacedError,
    InvalidValueError,
    UnknownTopicError,
)
from rmq.spark.calls import Driver
from rmq.spark.options import Options
from rmq.spark.schema import QUEUE
from rmq.spark.slots import QuerySlots, SettledBatch
from rmq.spark.source.batches import Batch
from rmq.spark.source.reader import RmqStreamReader
from tests.support.core import slot_keys
from tests.support.waiting import wait_until

ALL = ReadAllAvailable()
numbers = count(1)


@pytest.fixture
def topic(spark_client: RmqClient) -> Topic:
    topic = Topic(f"reader-{next(numbers)}", TopicType.PRIORITY, slots=4)
    spark_client.producer(topic).send_many(PriorityMessage(f"m{i}", 1_000) for i in range(100))
    return topic


_readers: list[RmqStreamReader] = []


@pytest.fixture(autouse=True)
def stopped_readers() -> Iterator[None]:
    """Stop each reader of a test: Spark does so, and what is left open fails any later test."""
    yield
    while _readers:
        _readers.pop().stop()


def reader_of(client: RmqClient, topic: Topic, **options: Any) -> RmqStreamReader:
    _readers.append(RmqStreamReader(QUEUE, Options(client.url, topic=topic.name, **options)))
    return _readers[-1]


def rows_of(reader: RmqStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    parts = reader.partitions(start, end)
    return [content for part in parts for found in reader.read(part) for content in found["content"].to_pylist()]


def test_batches_follow_each_other_and_planning_claims_nothing(spark_client: RmqClient, topic: Topic) -> None:
    reader = reader_of(spark_client, topic, max_messages=60)
    assert reader.getDefaultReadLimit() == ReadMaxRows(60)
    first = reader.initialOffset()
    second = reader.latestOffset(first, ReadMaxRows(60))
    assert spark_client.inspect(topic).stats().in_flight == 0
    progress = reader.reportLatestOffset() or {}
    assert progress.pop("redis_s") > 0
    assert progress == {
        "topic": topic.name,
        "behind": 40,
        "backlog": 40,
        "in_flight": 0,
        "acked": 0,
        "refused": 0,
        "redelivered": 0,
        "lost": 0,
        "lease_left_s": None,
    }
    rows = rows_of(reader, first, second)
    assert len(rows) == 60
    third = reader.latestOffset(second, ALL)
    assert spark_client.inspect(topic).stats().total("acked") == 60
    reader.commit(second)
    rows += rows_of(reader, second, third)
    assert reader.latestOffset(third, ALL) == third
    assert reader.partitions(third, third) == []
    assert sorted(rows) == sorted(b"m%d" % i for i in range(100))
    assert spark_client.inspect(topic).stats().total("acked") == 100
    reader.stop()


def test_a_second_driver_on_a_copy_of_the_checkpoint_shuts_out_the_first(spark_client: RmqClient, topic: Topic) -> None:
    first, second = reader_of(spark_client, topic), reader_of(spark_client, topic)
    start = first.initialOffset()
    end = first.latestOffset(start, ReadMaxRows(40))
    rows = rows_of(first, start, end)
    assert sorted(rows_of(second, start, end)) == sorted(rows)
    with pytest.raises(DriverReplacedError, match="copy"):
        first.latestOffset(end, ALL)
    assert spark_client.inspect(topic).stats().total("acked") == 0
    second.latestOffset(end, ALL)
    assert spark_client.inspect(topic).stats().total("acked") == 40
    for reader in (first, second):
        reader.stop()


def test_the_figures_of_a_query_tell_what_a_driver_took_over_and_stand_in_redis(
    spark_client: RmqClient, topic: Topic
) -> None:
    first = reader_of(spark_client, topic)
    start = first.initialOffset()
    one = first.latestOffset(start, ReadMaxRows(30))
    rows_of(first, start, one)
    left_s = (first.reportLatestOffset() or {})["lease_left_s"]
    assert 0 < left_s <= topic.lease_s
    two = first.latestOffset(one, ReadMaxRows(25))
    assert (first.reportLatestOffset() or {})["lease_left_s"] is None
    rows_of(first, one, two)
    first.stop()
    second = reader_of(spark_client, topic)
    rows_of(second, one, two)
    assert second.latestOffset(two, ReadMaxRows(5))["seq"] == 3
    progress = second.reportLatestOffset() or {}
    assert [progress[name] for name in ("acked", "redelivered", "lost", "behind")] == [25, 25, 0, 40]
    second.stop()
    [query] = spark_client.inspect(topic).spark_queries()
    assert (query.role, query.name, query.batch) == ("source", start["qid"], 2)
    assert query.totals == {"acked": 25, "refused": 0, "redelivered": 25, "lost": 0}
    assert (query.behind, query.lease_left_s) == (40, None)
    assert query.redis_s > second._query().figures.time.seconds, "the tasks' time is in it, too"


def test_an_old_copy_of_the_checkpoint_is_refused(spark_client: RmqClient, topic: Topic) -> None:
    reader = reader_of(spark_client, topic)
    start = reader.initialOffset()
    one = reader.latestOffset(start, ReadMaxRows(10))
    rows_of(reader, start, one)
    two = reader.latestOffset(one, ReadMaxRows(10))
    rows_of(reader, one, two)
    three = reader.latestOffset(two, ReadMaxRows(10))
    late = reader_of(spark_client, topic)
    with pytest.raises(BatchAckedError, match="old copy"):
        late.partitions(start, one)
    with pytest.raises(BatchAckedError):
        late.latestOffset(one, ALL)
    assert spark_client.inspect(topic).stats().total("acked") == 20
    assert three["seq"] == 3
    for each in (reader, late):
        each.stop()


def test_a_driver_that_ended_in_the_middle_of_an_ack_leaves_the_rest_of_it_to_the_next(
    spark_client: RmqClient, topic: Topic
) -> None:
    first = reader_of(spark_client, topic)
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)
    rows_of(first, start, end)
    driver = first._query().begin(Batch.from_offset(end), known=True)
    first._query()._slots.settle(driver, end["seq"], [(0, 0)], "ack")
    acked = spark_client.inspect(topic).stats().total("acked")
    assert 0 < acked < 100
    second = reader_of(spark_client, topic)
    assert second.latestOffset(end, ALL) == end
    stats = spark_client.inspect(topic).stats()
    assert (stats.total("acked"), stats.in_flight) == (100, 0)
    for reader in (first, second):
        reader.stop()


def test_leases_are_kept_until_the_ack_is_done(spark_client: RmqClient, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(f"reader-{next(numbers)}", TopicType.PRIORITY, lease=timedelta(seconds=4))
    spark_client.producer(topic).send(PriorityMessage("m", 1_000))
    reader, settle = reader_of(spark_client, topic), QuerySlots.settle
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    rows_of(reader, start, end)
    waited: list[float] = []

    def claim() -> Any:
        prepare = slot_keys(topic.name, 0).prepare
        return spark_client._connections.command("ZSCORE", prepare, "m")

    def slow(self: QuerySlots, driver: Driver, seq: int, chunks: Any, verb: Any, owners: Any = None) -> SettledBatch:
        if verb == "ack" and not waited:
            before, began_s = claim(), time.monotonic()
            wait_until(lambda: claim() != before)
            waited.append(time.monotonic() - began_s)
        return settle(self, driver, seq, chunks, verb, owners)

    monkeypatch.setattr(QuerySlots, "settle", slow)
    assert reader.latestOffset(end, ALL) == end
    assert waited
    assert spark_client.inspect(topic).stats().total("acked") == 1
    reader.stop()


def test_a_redis_that_has_forgotten_the_query_is_noticed(spark_client: RmqClient, topic: Topic) -> None:
    start = {"v": 1, "qid": "forgotten", "seq": 7, "q": {"0": 5}}
    for _ in range(2):  # it stays so: who restarts the query does not talk it out of this
        with pytest.raises(BatchError, match="has no record of query forgotten"):
            reader_of(spark_client, topic).latestOffset(start, ALL)
    reader = reader_of(spark_client, topic, fail_on_data_loss=False)
    end = reader.latestOffset({**start, "qid": "forgotten2"}, ALL)
    assert (end["seq"], sum(end["q"].values())) == (8, 100)
    reader.stop()


def test_one_poisonous_row_among_many_chunks_dies_alone(spark_client: RmqClient) -> None:
    topic = Topic(f"reader-{next(numbers)}", TopicType.PRIORITY)
    number, poison = 30_000, b"m6500"
    spark_client.producer(topic).send_many(PriorityMessage(f"m{i}", 100_000 - i) for i in range(number))
    start = end = reader_of(spark_client, topic).initialOffset()
    seen: set[bytes] = set()
    restarts, poisoned = -1, True
    while poisoned and restarts <= 2 * 15:
        restarts += 1
        reader = reader_of(spark_client, topic)
        while not (poisoned := consume(reader, start, end, poison, seen)):
            start, end = end, reader.latestOffset(end, ALL)
            if start == end:
                break
        reader.stop()
    assert [message.content for message in spark_client.dead(topic).list()] == [poison]
    assert len(seen) == number - 1
    assert spark_client.inspect(topic).stats().total("acked") == number - 1
    assert restarts <= 2 * 15, "about 2 log2(batch)"


def consume(
    reader: RmqStreamReader, start: dict[str, Any], end: dict[str, Any], poison: bytes, seen: set[bytes]
) -> bool:
    """Read a batch until the poison ends its task, and tell whether it did; `seen` gets what a whole batch has."""
    found: list[bytes] = []
    for part in reader.partitions(start, end):
        for rows in reader.read(part):
            found += rows["content"].to_pylist()
            if poison in found:
                return True
    seen.update(found)
    return False


@pytest.mark.parametrize("strict", [True, False])
def test_a_lost_lease_fails_a_second_read_or_leaves_rows_out(
    spark_client: RmqClient, topic: Topic, strict: bool
) -> None:
    reader = reader_of(spark_client, topic, fail_on_lease_lost=strict)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    parts = reader.partitions(start, end)
    assert sum(found.num_rows for part in parts for found in reader.read(part)) == 100
    store = f"prepare{{{topic.name}_{topic.slot_of(b'm0')}}}"
    spark_client._connections.command("ZREM", store, "m0")
    if strict:
        with pytest.raises(BatchLostError, match="of 1 messages"):
            [found for part in parts for found in reader.read(part)]
    else:
        assert sum(found.num_rows for part in parts for found in reader.read(part)) == 99
    reader.stop()


def test_what_cannot_be_read_is_refused_and_leaves_no_connection(spark_client: RmqClient) -> None:
    log = Topic("reader-log", TopicType.STREAM)
    spark_client.producer(log).send(StreamMessage({"a": "b"}))

    def clients() -> int:
        return len(spark_client._connections.command("CLIENT", "LIST").splitlines())

    before, refusals = clients(), list[pytest.ExceptionInfo[Exception]]()
    for name, error in (("reader-log", InvalidValueError), ("reader-nobody", UnknownTopicError)):
        reader = RmqStreamReader(QUEUE, Options(spark_client.url, topic=name))
        with pytest.raises(error, match=r"STREAM|not registered") as refused:
            reader.latestOffset(reader.initialOffset(), ALL)
        refusals.append(refused)  # the collector closes what nobody has any more
    wait_until(lambda: clients() == before)
