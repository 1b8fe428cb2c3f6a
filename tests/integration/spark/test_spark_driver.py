"""The driver's side of a query on a real Redis, without Spark: acks, stops longer than a lease, an idle topic."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import pytest
import redis

from rmq import PriorityMessage, RangeMergeMessage, RmqClient, Topic, TopicType
from rmq.errors import BatchError, InvalidValueError, RmqError, TopicMismatchError
from rmq.spark import RmqDataSource
from rmq.spark.calls import Reading, read
from rmq.spark.options import parse_options
from rmq.spark.source import commits
from rmq.spark.source.batches import Batch
from rmq.spark.source.commits import CommitReceiver, tell
from rmq.spark.source.driver import QueryDriver
from rmq.spark.source.reader import RmqStreamReader
from rmq.spark.source.waiting import LOOK_SLOTS, Waiting
from tests.conftest import MakeTopic
from tests.support.core import Connections, parse_url, query_keys, slot_keys
from tests.support.waiting import wait_until

LIMIT_S = 30


class Query:
    """A query without Spark: plans, reads and acks as Spark would have it done."""

    def __init__(self, url: str, topic: Topic, **options: str) -> None:
        self.topic = topic
        self._options = parse_options({"url": url, "topic": topic.name, **options})
        self._connections = Connections(parse_url(url))
        self.batch = Batch(uuid.uuid4().hex)
        self.driver = QueryDriver(self._options)

    def restart(self) -> None:
        self.driver.close()
        self.driver = QueryDriver(self._options)

    def plan(self) -> int:
        """Ack the last batch, as a trigger does, and plan the next; return how many messages that has."""
        self.driver.ack(self.batch)
        batch = self.driver.plan(self.batch, None)
        self.batch = batch or self.batch
        return 0 if batch is None else batch.size

    def read(self) -> list[str]:
        driver, batch, owners = self.driver.open(self.batch)
        reading = Reading(driver, batch.seq, batch.size, 3, True, owners=owners)
        calls = [read(self.topic, reading, *part) for part in batch.parts()]
        return sorted(content.decode() for call in calls for content in self._connections.run(call).contents)

    def close(self) -> None:
        self.driver.close()
        self._connections.close()


class MakeQuery(Protocol):
    """Makes a query on a topic, with options."""

    def __call__(self, topic: Topic, **options: str) -> Query: ...


@pytest.fixture
def make_query(redis_url: str, redis_client: redis.Redis, make_topic: MakeTopic) -> Iterator[MakeQuery]:
    del make_topic  # its check comes after this one has removed its keys
    made: list[Query] = []

    def make(topic: Topic, **options: str) -> Query:
        made.append(Query(redis_url, topic, **options))
        return made[-1]

    yield make
    for query in made:
        query.close()
        for slot in range(query.topic.slots):
            own = query_keys(query.topic.name, slot, query.batch.query)
            redis_client.delete(own.query, own.body)


def fill(sender: RmqClient, topic: Topic, number: int) -> list[str]:
    contents = sorted(f"m{n}" for n in range(number))
    sender.producer(topic).send_many(PriorityMessage(content, 1_000) for content in contents)
    return contents


def in_flight(sender: RmqClient, topic: Topic) -> int:
    return sender.inspect(topic).stats().in_flight


def test_a_batch_is_acked_when_spark_tells_of_its_commit(
    sender: RmqClient, make_topic: MakeTopic, make_query: MakeQuery
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    sent = fill(sender, topic, 50)
    query = make_query(topic)
    assert query.plan() == 50
    assert query.read() == sent
    offset = query.batch.to_offset()
    assert tell(json.dumps(offset | {"seq": 2})), "another batch: nothing is done"
    assert tell(json.dumps(offset))
    wait_until(lambda: in_flight(sender, topic) == 0, LIMIT_S)
    assert sender.inspect(topic).stats().total("acked") == 50
    assert query.plan() == 0, "the next trigger, which acks it once more"
    assert sender.inspect(topic).stats().total("acked") == 50


@pytest.mark.parametrize(
    "offset", ["", "{}", "null", "7", None, '{"qid": "../x", "seq": 1}', '{"qid": 7, "seq": 1}', '{"qid": "a"}']
)
def test_offsets_of_other_sources_tell_nobody(offset: str | None) -> None:
    assert not tell(offset)


@pytest.fixture
def short_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a folder for sockets: their paths have at most 107 bytes, and pytest's folders are too long for it."""
    with TemporaryDirectory() as folder:
        monkeypatch.setattr(commits.tempfile, "gettempdir", lambda: folder)
        yield Path(folder)


def test_a_folder_of_somebody_else_is_not_used(short_folder: Path) -> None:
    (short_folder / f"rmq-spark-{os.getuid()}").mkdir(mode=0o777)
    (short_folder / f"rmq-spark-{os.getuid()}").chmod(0o777)
    query = uuid.uuid4().hex
    receiver = CommitReceiver(query, lambda _: pytest.fail("told by anybody"))
    assert not tell(json.dumps({"qid": query, "seq": 1}))
    receiver.close()


def test_a_later_driver_takes_the_place_of_one_that_was_killed(short_folder: Path) -> None:
    query, ended = uuid.uuid4().hex, uuid.uuid4().hex
    CommitReceiver(ended, lambda _: None).close()
    CommitReceiver(query, lambda _: None).close()
    told: list[int] = []
    receiver = CommitReceiver(query, told.append)
    assert tell(json.dumps({"qid": query, "seq": 3}))
    wait_until(lambda: told == [3], LIMIT_S)
    assert [path.name for path in (short_folder / f"rmq-spark-{os.getuid()}").iterdir()] == [query]
    receiver.close()


def test_where_the_path_of_a_socket_is_too_long_a_driver_hears_of_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    long = tmp_path / ("f" * 100)
    long.mkdir()
    monkeypatch.setattr(commits.tempfile, "gettempdir", lambda: str(long))
    with caplog.at_level("INFO", "rmq.spark"):
        receiver = CommitReceiver(query := uuid.uuid4().hex, lambda _: None)
    assert "cannot listen for commits: AF_UNIX path too long" in caplog.text
    assert not tell(json.dumps({"qid": query, "seq": 3}))
    receiver.close()


@pytest.mark.parametrize("kind", [TopicType.PRIORITY, TopicType.RANGE_MERGE])
def test_what_is_committed_does_not_come_again_after_a_stop_longer_than_the_lease(
    kind: TopicType, sender: RmqClient, make_topic: MakeTopic, make_query: MakeQuery
) -> None:
    topic = make_topic(kind, slots=2, lease=timedelta(seconds=1))
    if kind is TopicType.PRIORITY:
        fill(sender, topic, 100)
    else:
        short = timedelta(milliseconds=1)
        sender.producer(topic).send_many(RangeMergeMessage(f"m{n}", short) for n in range(100))
        wait_until(lambda: sender.inspect(topic).stats().due_now == 100, LIMIT_S)
    query = make_query(topic)
    assert query.plan() == 100
    assert len(query.read()) == 100
    query.driver.close()  # committed, and killed before the ack
    taken: list[str] = []
    with sender.consumer(topic) as consumer:

        def sweep() -> bool:
            for delivery in consumer.poll(max_messages=1, timeout=0.2):
                taken.append(delivery.text)
                delivery.ack()
            return sender.inspect(topic).stats().total("expired") == 100

        wait_until(sweep, LIMIT_S)
    assert sender.inspect(topic).stats().backlog == 100 - len(taken)
    query.restart()
    assert query.plan() == 0
    stats = sender.inspect(topic).stats()
    assert (stats.backlog, stats.in_flight, stats.total("acked"), stats.unaccounted) == (0, 0, 100, 0)


def test_leases_of_a_batch_of_many_chunks_are_kept(
    sender: RmqClient, make_topic: MakeTopic, make_query: MakeQuery
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4, lease=timedelta(seconds=3))
    sent = fill(sender, topic, 6_000)
    query = make_query(topic)
    assert query.plan() == 6_000
    assert query.read() == sent
    stats = sender.inspect(topic).stats
    with sender.consumer(topic) as consumer:
        until_s = time.monotonic() + 7
        while time.monotonic() < until_s:
            assert consumer.poll(timeout=0.5) == []
    assert (stats().total("expired"), stats().in_flight) == (0, 6_000)
    query.driver.ack(query.batch)
    assert (stats().total("acked"), stats().in_flight) == (6_000, 0)


def commands(redis_client: redis.Redis) -> int:
    return int(redis_client.info("stats")["total_commands_processed"])  # pyright: ignore[reportIndexIssue]


def test_an_idle_source_with_64_slots_costs_few_commands_and_finds_what_comes(
    redis_client: redis.Redis,
    sender: RmqClient,
    make_topic: MakeTopic,
    make_query: MakeQuery,
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=64)
    producer = sender.producer(topic)
    query = make_query(topic)
    assert query.plan() == query.plan() == 0
    before, triggers, until_s = commands(redis_client), 0, time.monotonic() + 4
    while time.monotonic() < until_s:
        assert query.plan() == 0
        triggers += 1
    assert (commands(redis_client) - before) / 4 <= 50
    assert triggers >= 4, "a query with other sources goes on meanwhile"
    producer.send(PriorityMessage("new", 1_000))
    wait_until(lambda: query.plan() == 1, LIMIT_S)
    assert query.read() == ["new"]


def test_a_delayed_message_is_planned_when_it_is_due(
    sender: RmqClient, make_topic: MakeTopic, make_query: MakeQuery
) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, slots=4)
    sender.producer(topic).send(RangeMergeMessage("before", timedelta(seconds=1)))
    query = make_query(topic)
    assert query.plan() == 0
    wait_until(lambda: query.plan() == 1, LIMIT_S)
    assert query.read() == ["before"]
    query.driver.ack(query.batch)
    assert query.plan() == 0
    sender.producer(topic).send(RangeMergeMessage("after", timedelta(seconds=1)))
    wait_until(lambda: query.plan() == 1, LIMIT_S)
    assert query.read() == ["after"]


def test_what_no_hint_told_of_is_found_all_the_same(
    redis_url: str, redis_client: redis.Redis, sender: RmqClient, make_topic: MakeTopic
) -> None:
    # pitfall 25
    topic = make_topic(TopicType.PRIORITY, slots=2 * LOOK_SLOTS, checked=False)
    sender.producer(topic)
    connections = Connections(parse_url(redis_url))
    waiting = Waiting(connections, topic)
    try:
        waiting.rest()
        assert not waiting.is_over(0.01)
        redis_client.zadd(f"{topic.name}_{topic.slots - 1}", {"silent": 1_000})
        wait_until(lambda: waiting.is_over(0.2), LIMIT_S)
        waiting.rest()
        assert waiting.is_over(0.0), "something is due"
        waiting.rest()
        assert not waiting.is_over(0.01), "nobody could plan it: others have it"
        assert waiting.is_over(LIMIT_S)
    finally:
        waiting.close()
        connections.close()
        redis_client.delete(f"{topic.name}_{topic.slots - 1}")


def test_a_batch_waits_for_its_fewest_messages(
    sender: RmqClient, redis_client: redis.Redis, make_topic: MakeTopic, make_query: MakeQuery
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=64)
    fill(sender, topic, 99)
    query = make_query(topic, minMessagesPerTrigger="100", maxTriggerDelay="1h")
    assert query.plan() == 0
    before = commands(redis_client)
    assert [query.plan() for _ in range(3)] == [0, 0, 0]
    assert commands(redis_client) - before < 20, "it counts again after more than a second"
    sender.producer(topic).send(PriorityMessage("last", 1_000))
    numbers: list[int] = []
    wait_until(lambda: numbers.append(query.plan()) or numbers[-1] > 0, LIMIT_S)
    assert numbers[-1] == 100
    assert len(query.read()) == 100
    query.driver.ack(query.batch)


def test_fewer_messages_are_taken_when_their_delay_is_over_or_nothing_else_will_come(
    sender: RmqClient, make_topic: MakeTopic, make_query: MakeQuery
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    fill(sender, topic, 5)
    query = make_query(topic, minMessagesPerTrigger="100", maxTriggerDelay="600ms")
    assert query.plan() == 0
    wait_until(lambda: query.plan() == 5, LIMIT_S)
    assert len(query.read()) == 5
    fill(sender, topic, 5)
    query.driver.freeze()
    assert query.plan() == 5, "availableNow"
    query.read()
    query.driver.ack(query.batch)


def test_what_is_left_of_a_lease_that_has_ended_is_available_now(
    sender: RmqClient, redis_client: redis.Redis, make_topic: MakeTopic, make_query: MakeQuery
) -> None:
    topic = make_topic(TopicType.PRIORITY, lease=timedelta(seconds=1))
    fill(sender, topic, 5)
    with sender.consumer(topic) as consumer:
        assert len(consumer.poll(max_messages=3)) == 3
        claimed_s = redis_client.time()[0]
    wait_until(lambda: redis_client.time()[0] > claimed_s + 2, LIMIT_S)
    assert sender.inspect(topic).stats().in_flight == 3, "nobody has swept"
    query = make_query(topic)
    query.driver.freeze()
    assert query.plan() == 5
    assert len(query.read()) == 5
    query.driver.ack(query.batch)


def test_a_batch_that_redis_forgot_is_told_of_and_not_acked_in_silence(
    sender: RmqClient, redis_client: redis.Redis, make_topic: MakeTopic, make_query: MakeQuery
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2)
    for options in ({}, {"failOnDataLoss": "false"}):
        fill(sender, topic, 10)
        query = make_query(topic, **options)
        assert query.plan() == 10
        query.read()
        query_key = query_keys(topic.name, 0, query.batch.query).query
        older = redis_client.dump(query_key)
        generation = redis_client.hget(query_key, "generation")
        for change in ("emptied", "an older copy"):
            if change == "emptied":
                redis_client.delete(query_key)
            else:
                redis_client.hset(query_key, "generation", int(generation or 0) - 1)
            if options:
                break
            with pytest.raises(BatchError, match=r"the record of query .* was gone before batch 1 was acked; set fail"):
                query.plan()
            redis_client.restore(query_key, 0, older or b"", replace=True)
        query.plan()
        assert query.driver.plan(query.batch, None) is None
        fill(sender, topic, 3)
        assert query.plan() == 3
        query.read()
        assert query.plan() == 0


def test_an_idle_query_learns_that_its_topic_is_gone_or_another_one(
    sender: RmqClient,
    redis_client: redis.Redis,
    make_topic: MakeTopic,
    make_query: MakeQuery,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("rmq.spark.source.driver.CHECK_S", 0.0)
    topic = make_topic(TopicType.PRIORITY, slots=2)
    fill(sender, topic, 10)
    strict, lenient = make_query(topic), make_query(topic, failOnDataLoss="false")
    assert strict.plan() == 10
    strict.read()
    assert strict.plan() == lenient.plan() == 0
    kept = redis_client.hget("rmq:topics", topic.name)
    assert kept is not None
    redis_client.hdel("rmq:topics", topic.name)

    def raises(query: Query, error: type[RmqError], words: str) -> None:
        def told() -> bool:
            try:
                query.plan()
            except error as found:
                return words in str(found)
            return False

        wait_until(told, LIMIT_S)

    raises(strict, BatchError, "the topic is no longer registered; set failOnDataLoss to false")
    wait_until(lambda: not lenient.plan() and "no longer registered; continuing" in caplog.text, LIMIT_S)
    with RmqClient(sender.url) as other:
        other.producer(replace(topic, slots=8))
    raises(strict, TopicMismatchError, "was registered again while the query was running, as PRIORITY with 8 slots")
    raises(lenient, TopicMismatchError, "the query started with PRIORITY, 2 slots and merge=None: restart it")
    redis_client.hset("rmq:topics", topic.name, kept)
    assert strict.plan() == 0
    meta = [slot_keys(topic.name, slot).meta for slot in range(2)]
    totals = [redis_client.dump(key) for key in meta]
    redis_client.delete(*meta)
    fill(sender, topic, 1)
    raises(strict, BatchError, "most of the messages that were sent to slots")
    redis_client.delete(*(slot_keys(topic.name, slot).store for slot in range(2)))
    for key, dump in zip(meta, totals, strict=True):
        redis_client.restore(key, 0, dump or b"", replace=True)


def test_a_checkpoint_knows_its_topic(redis_url: str, sender: RmqClient, make_topic: MakeTopic) -> None:
    one, other = (make_topic(TopicType.PRIORITY) for _ in range(2))
    readers: list[RmqStreamReader] = []
    for topic in (one, other):
        sender.producer(topic)
        source = RmqDataSource({"url": redis_url, "topic": topic.name})
        reader = source.streamReader(source.schema())
        assert isinstance(reader, RmqStreamReader)
        readers.append(reader)
    offset = readers[0].initialOffset()
    limit = readers[1].getDefaultReadLimit()
    with pytest.raises(InvalidValueError, match=f"belongs to topic {one.name}, but option topic is {other.name}"):
        readers[1].latestOffset(offset, limit)
    without = {name: value for name, value in offset.items() if name != "topic"}
    assert readers[1].latestOffset(without, limit) == without, "one of an older version"
    for reader in readers:
        reader.stop()
