"""The streaming source in a real Spark: one session for all tests of this file."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import chain, count
from pathlib import Path

import pytest
import redis
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.streaming.query import StreamingQuery

from rmq import FixedTimeMessage, PriorityMessage, RmqClient, Topic, TopicType
from tests.spark.sessions import stream_of
from tests.support.waiting import wait_until

LIMIT_S = 120
numbers = count(1)


class Queries:
    """Starts queries on topics of one Redis, each with a checkpoint of its own unless told."""

    def __init__(self, spark: SparkSession, client: RmqClient, folder: Path) -> None:
        self._spark, self.client, self._folder = spark, client, folder
        self._running: list[StreamingQuery] = []

    def topic(self, kind: TopicType = TopicType.PRIORITY, **settings: object) -> Topic:
        return Topic(f"s{next(numbers)}", kind, **{"slots": 2, **settings})  # pyright: ignore[reportArgumentType]

    def fill(self, topic: Topic, number: int, start: int = 0) -> list[str]:
        contents = [f"m{i}" for i in range(start, start + number)]
        self.client.producer(topic).send_many(PriorityMessage(content, 1_000) for content in contents)
        return contents

    def start(
        self,
        topic: Topic,
        write: Callable[[DataFrame, int], None],
        *,
        checkpoint: str = "",
        available_now: bool = False,
        **options: object,
    ) -> StreamingQuery:
        stream = stream_of(self._spark, self.client.url, topic.name, **options)
        folder = checkpoint or f"{self._folder}/checkpoint{next(numbers)}"
        writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", folder)
        writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")
        self._running.append(writer.start())
        return self._running[-1]

    def drain(self, topic: Topic, write: Callable[[DataFrame, int], None], **options: object) -> StreamingQuery:
        query = self.start(topic, write, available_now=True, **options)  # pyright: ignore[reportArgumentType]
        assert query.awaitTermination(LIMIT_S)
        return query

    def in_flight(self, topic: Topic) -> int:
        return self.client.inspect(topic).stats().in_flight

    def check(self, topic: Topic, acked: int) -> None:
        stats = self.client.inspect(topic).stats()
        assert (stats.backlog, stats.in_flight, stats.waiting, stats.unaccounted) == (0, 0, 0, 0)
        assert stats.total("acked") == acked

    def stop(self) -> None:
        for query in self._running:
            query.stop()


@pytest.fixture
def queries(spark: SparkSession, spark_client: RmqClient, tmp_path: Path) -> Iterator[Queries]:
    queries = Queries(spark, spark_client, tmp_path)
    yield queries
    queries.stop()


def flat(batches: list[list[str]]) -> list[str]:
    return list(chain.from_iterable(batches))


def contents(frame: DataFrame) -> list[str]:
    return [row[0] for row in frame.selectExpr("cast(content as string)").collect()]


def test_available_now_takes_what_is_there_and_no_more(queries: Queries) -> None:
    topic = queries.topic()
    sent = queries.fill(topic, 250)
    batches: list[list[str]] = []

    def write(frame: DataFrame, number: int) -> None:
        batches.append(contents(frame))
        queries.fill(topic, 1, start=1_000 + number)

    checkpoint = f"{queries._folder}/checkpoint"
    query = queries.drain(topic, write, maxMessagesPerTrigger=100, checkpoint=checkpoint)
    assert [len(batch) for batch in batches][:2] == [100, 100]
    late = {content for content in flat(batches) if content not in sent}
    assert len(flat(batches)) == 250
    assert len(set(sent) - set(flat(batches))) == len(late), "what came later may stand in for what was there"
    assert queries.in_flight(topic) == 0, "the last batch is acked at the end"
    progress = query.recentProgress
    assert json.loads(progress[0]["sources"][0]["latestOffset"])["behind"] == 150

    again: list[str] = []
    queries.drain(topic, lambda frame, _: again.extend(contents(frame)), checkpoint=checkpoint)
    assert Counter(again + flat(batches)) == Counter([*sent, *(f"m{1_000 + n}" for n in range(len(batches)))])
    queries.check(topic, 250 + len(batches))
    queries.drain(topic, lambda frame, _: pytest.fail(f"redelivered {contents(frame)}"), checkpoint=checkpoint)


@pytest.mark.slow
def test_a_bound_in_bytes_cuts_batches_and_available_now_takes_all(queries: Queries) -> None:
    topic = queries.topic()
    sent = [PriorityMessage(f"m{number}", 1_000, body=bytes(100_000)) for number in range(60)]
    queries.client.producer(topic).send_many(sent)
    batches: list[list[str]] = []
    queries.drain(topic, lambda frame, _: batches.append(contents(frame)), maxBytesPerTrigger="1m")
    assert sorted(flat(batches)) == sorted(message.content for message in sent)
    assert max(map(len, batches)) <= 12
    queries.check(topic, 60)


@pytest.mark.slow
def test_an_idle_query_acks_and_a_restart_redelivers_nothing(queries: Queries, tmp_path: Path) -> None:
    topic = queries.topic()
    sent = queries.fill(topic, 20)
    seen: list[str] = []
    checkpoint = str(tmp_path / "idle")
    query = queries.start(topic, lambda frame, _: seen.extend(contents(frame)), checkpoint=checkpoint)
    wait_until(lambda: len(seen) == 20, LIMIT_S)
    wait_until(lambda: queries.in_flight(topic) == 0, LIMIT_S)
    query.stop()
    more = queries.fill(topic, 1, start=99)
    queries.drain(topic, lambda frame, _: seen.extend(contents(frame)), checkpoint=checkpoint)
    assert Counter(seen) == Counter(sent + more)
    queries.check(topic, 21)


@pytest.mark.slow
def test_a_batch_is_acked_long_before_the_next_trigger(
    queries: Queries, spark: SparkSession, spark_client: RmqClient, tmp_path: Path
) -> None:
    topic = queries.topic()
    sent = queries.fill(topic, 20)
    seen: list[str] = []
    stream = stream_of(spark, spark_client.url, topic.name).writeStream.trigger(processingTime="1 hour")
    stream = stream.foreachBatch(lambda frame, _: seen.extend(contents(frame)))
    query = stream.option("checkpointLocation", str(tmp_path / "hour")).start()
    try:
        wait_until(lambda: bool(seen) and queries.in_flight(topic) == 0, LIMIT_S)
    finally:
        query.stop()
    assert Counter(seen) == Counter(sent)
    queries.check(topic, 20)


@pytest.mark.slow
def test_an_idle_query_with_64_slots_hardly_asks_redis(queries: Queries, spark_client: RmqClient) -> None:
    topic = queries.topic(slots=64)
    seen: list[str] = []
    queries.fill(topic, 1)
    queries.start(topic, lambda frame, _: seen.extend(contents(frame)))
    wait_until(lambda: len(seen) == 1 and queries.in_flight(topic) == 0, LIMIT_S)

    def commands() -> int:
        with redis.Redis.from_url(spark_client.url) as server:
            return int(server.info("stats")["total_commands_processed"])  # pyright: ignore[reportIndexIssue]

    def quiet() -> bool:
        before = commands()
        time.sleep(4)
        return (commands() - before) / 4 <= 50

    wait_until(quiet, LIMIT_S)
    more = queries.fill(topic, 1, start=99)
    wait_until(lambda: seen[1:] == more, LIMIT_S)


@pytest.mark.slow
def test_two_actions_a_self_union_and_a_task_retry_see_the_same_rows(queries: Queries, tmp_path: Path) -> None:
    topic = queries.topic(TopicType.FIXED_TIME, slots=4)
    now_ms = int(time.time() * 1000)
    sent = [f"m{i}" for i in range(3_000)]
    messages = (FixedTimeMessage(content, fixed_time_ms=now_ms + 1_500, body=content.upper()) for content in sent)
    queries.client.producer(topic).send_many(messages)
    wait_until(lambda: queries.client.inspect(topic).stats().due_now == 3_000, LIMIT_S)
    marker = str(tmp_path / "failed")

    @udf(returnType="string", useArrow=False)
    def fail_once(content: str) -> str:
        if content == "m2500" and not Path(marker).exists():
            Path(marker).write_text("")
            raise ValueError("the first try fails")
        return content

    checked: list[int] = []

    def write(frame: DataFrame, number: int) -> None:
        rows = frame.collect()
        queries.client.producer(topic).send(
            FixedTimeMessage(sent[0], fixed_time_ms=int(time.time() * 1000) + 10**7, body="new")
        )
        assert frame.collect() == rows
        double = frame.union(frame).groupBy("content", "body", "slot").count().collect()
        assert {row["count"] for row in double} == {2}
        assert {bytes(row.content) for row in double} == {bytes(row.content) for row in rows}
        tried = frame.select(fail_once(frame.content.cast("string")).alias("content"))
        assert Counter(contents(tried)) == Counter(row.content.decode() for row in rows)
        assert all(bytes(row.body) == bytes(row.content).upper() for row in rows)
        checked.append(len(rows))

    queries.drain(topic, write, maxPartitions=3)
    assert checked == [3_000]
    assert Path(marker).exists()
    stats = queries.client.inspect(topic).stats()
    assert (stats.total("acked"), stats.backlog) == (3_000, 1)


@pytest.mark.slow
def test_a_read_after_the_ack_fails_loudly(queries: Queries) -> None:
    topic = queries.topic()
    queries.fill(topic, 20)
    frames: list[DataFrame] = []
    errors: list[str] = []

    def write(frame: DataFrame, number: int) -> None:
        frame.collect()
        frames.append(frame)
        if number == 1:
            with pytest.raises(Exception, match="BatchAckedError") as caught:
                frames[0].collect()
            errors.append(str(caught.value))

    queries.drain(topic, write, maxMessagesPerTrigger=10)
    assert "belongs to an earlier batch" in errors[0]
    queries.check(topic, 20)


@pytest.mark.slow
def test_a_batch_longer_than_three_leases_is_not_redelivered(queries: Queries, background: threading.Event) -> None:
    topic = queries.topic(lease=timedelta(seconds=5))
    sent = queries.fill(topic, 500)
    stolen: list[str] = []
    began = threading.Event()

    def compete() -> None:
        with queries.client.consumer(topic) as consumer:
            began.wait(LIMIT_S)
            while not background.is_set():  # each look sweeps
                stolen.extend(delivery.text for delivery in consumer.poll(max_messages=100, timeout=0.2))

    rival = threading.Thread(target=compete)
    rival.start()
    seen: list[str] = []

    def write(frame: DataFrame, number: int) -> None:
        first = contents(frame)
        began.set()
        time.sleep(16)
        assert contents(frame) == first
        seen.extend(first)

    queries.drain(topic, write)
    background.set()
    rival.join(LIMIT_S)
    assert (stolen, Counter(seen)) == ([], Counter(sent))
    queries.check(topic, 500)
    assert queries.client.inspect(topic).stats().total("expired") == 0


@pytest.mark.slow
def test_a_poisonous_row_dies_and_the_query_goes_on(queries: Queries, tmp_path: Path) -> None:
    topic = queries.topic(slots=1)
    queries.client.producer(topic).send(PriorityMessage("poison", 9_000))
    sent = queries.fill(topic, 5)
    seen: list[str] = []
    tries: list[int] = []

    def write(frame: DataFrame, number: int) -> None:
        found = contents(frame)
        if "poison" in found:
            tries.append(number)
            raise ValueError("can't digest this")
        seen.extend(found)

    checkpoint = str(tmp_path / "poison")
    for _ in range(3):
        with pytest.raises(StreamingQueryException, match="digest"):
            queries.drain(topic, write, checkpoint=checkpoint, maxMessagesPerTrigger=1, maxReplays=2)
    queries.drain(topic, write, checkpoint=checkpoint, maxMessagesPerTrigger=1, maxReplays=2)
    assert tries == [0, 0, 0]
    assert Counter(seen) == Counter(sent)
    dead = list(queries.client.dead(topic).list())
    assert [(message.text, message.error_type, message.attempts) for message in dead] == [
        ("poison", "ReplaysUsedUp", 3)
    ]
    queries.check(topic, 5)


@pytest.mark.slow
def test_of_a_batch_with_a_poisonous_row_only_that_dies(queries: Queries, tmp_path: Path) -> None:
    topic = queries.topic()
    sent = queries.fill(topic, 12)
    poison, seen = sent[7], list[str]()

    def write(frame: DataFrame, number: int) -> None:
        found = contents(frame)
        if poison in found:
            raise ValueError("can't digest this")
        seen.extend(found)

    checkpoint, failed = str(tmp_path / "poison"), 0
    while queries.client.inspect(topic).stats().dead == 0:
        try:
            queries.drain(topic, write, checkpoint=checkpoint, maxReplays=1)
        except StreamingQueryException as error:
            assert "digest" in str(error)  # noqa: PT017
            failed += 1
        assert failed < 12, "a few more than one for each halving"
    queries.drain(topic, write, checkpoint=checkpoint)
    assert Counter(seen) == Counter(set(sent) - {poison})
    assert [message.text for message in queries.client.dead(topic).list()] == [poison]
    queries.check(topic, 11)
