"""Several topics in one read, without Spark: a list, a pattern, one offset for all."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, cast
from unittest import mock

import pytest
import redis

from rmq import (
    PER_MESSAGE,
    Collect,
    FixedTimeMessage,
    JoinMessage,
    Merge,
    Newest,
    PriorityMessage,
    RangeMergeMessage,
    RmqClient,
    Sliding,
    StreamMessage,
    Sum,
    Topic,
    TopicType,
)
from rmq.errors import InvalidValueError, UnknownTopicError
from rmq.spark import RmqDataSource
from rmq.spark.source import reader
from rmq.spark.source.commits import tell
from rmq.spark.source.reader import ManyStreamReader, RmqStreamReader, from_offset
from tests.conftest import MakeTopic
from tests.support.core import query_keys, slot_keys
from tests.support.waiting import wait_until

LIMIT_S = 30


class Query:
    """A query on several topics, as Spark would have it run."""

    def __init__(self, url: str, client: redis.Redis, **options: str) -> None:
        self._url, self._client, self._options = url, client, options
        self.reader = self._make()
        self.start: dict[str, Any] = self.reader.initialOffset()
        self.end = self.start

    def _make(self) -> ManyStreamReader:
        source = RmqDataSource({"url": self._url, **self._options})
        reader = source.streamReader(source.schema())
        assert isinstance(reader, ManyStreamReader)
        return reader

    def restart(self, **options: str) -> None:
        self.reader.stop()
        self._options |= options
        self.reader = self._make()

    def plan(self) -> dict[str, int]:
        """Ack the last batch, and plan the next; return how many messages it takes from each topic."""
        self.start, self.end = self.end, self.reader.latestOffset(self.end, self.reader.getDefaultReadLimit())
        before, after = from_offset(self.start), from_offset(self.end)
        return {name: batch.size for name, batch in after.items() if batch != before.get(name)}

    def read(self) -> list[tuple[str, str]]:
        parts = self.reader.partitions(self.start, self.end)
        rows = [row for part in parts for batch in self.reader.read(part) for row in batch.to_pylist()]
        return sorted((row["topic"], row["content"].decode()) for row in rows)

    def close(self) -> None:
        self.reader.stop()
        for name, batch in {**from_offset(self.start), **from_offset(self.end)}.items():
            for slot in range(4):
                own = query_keys(name, slot, batch.query)
                self._client.delete(own.query, own.body)


MakeQuery = Callable[..., Query]


@pytest.fixture
def make_query(redis_url: str, redis_client: redis.Redis, make_topic: MakeTopic) -> Iterator[MakeQuery]:
    """Make queries with options."""
    del make_topic  # its check comes after this one has removed its keys
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(contextlib.closing(Query(redis_url, redis_client, **options)))


@pytest.fixture
def topics(make_topic: MakeTopic) -> tuple[Topic, Topic]:
    """Two topics of different types."""
    return make_topic(TopicType.PRIORITY, slots=2), make_topic(TopicType.PRIORITY, slots=4)


def fill(sender: RmqClient, topic: Topic, number: int) -> list[tuple[str, str]]:
    sender.producer(topic).send_many(PriorityMessage(f"m{n:03}", 1_000) for n in range(number))
    return [(topic.name, f"m{n:03}") for n in range(number)]


def test_a_batch_is_shared_by_the_topics_and_comes_back_the_same(
    sender: RmqClient, topics: tuple[Topic, Topic], make_query: MakeQuery
) -> None:
    few, more = topics
    sent = fill(sender, few, 100) + fill(sender, more, 300)
    query = make_query(topics=f"{few.name}, {more.name}", maxMessagesPerTrigger="200")
    assert query.plan() == {few.name: 50, more.name: 150}
    first = query.read()
    query.restart()
    assert query.read() == first
    assert query.plan() == {few.name: 50, more.name: 150}
    assert sender.inspect(more).stats().in_flight == 0, "the first batch is acked"
    assert sorted(first + query.read()) == sorted(sent)
    told = query.reader.reportLatestOffset()
    assert told is not None
    assert sorted((each["topic"], each["behind"]) for each in told["topics"]) == sorted(((few.name, 0), (more.name, 0)))
    assert (told["behind"], told["backlog"]) == (0, 0)
    assert query.plan() == {}
    for topic, number in ((few, 100), (more, 300)):
        stats = sender.inspect(topic).stats()
        assert (stats.in_flight, stats.total("acked")) == (0, number)


def test_spark_tells_of_a_commit_to_all_topics(
    sender: RmqClient, topics: tuple[Topic, Topic], make_query: MakeQuery
) -> None:
    for topic in topics:
        fill(sender, topic, 5)
    query = make_query(topics=",".join(topic.name for topic in topics))
    query.plan()
    assert len(query.read()) == 10
    assert tell(json.dumps(query.end))
    wait_until(lambda: all(sender.inspect(topic).stats().total("acked") == 5 for topic in topics), LIMIT_S)


def test_a_pattern_finds_new_topics_and_names_that_are_left_out_are_acked(
    sender: RmqClient, topics: tuple[Topic, Topic], make_query: MakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "FIND_S", 0.0)
    one, two = topics
    fill(sender, one, 5)
    query = make_query(topicPattern=f"{one.name}|{two.name}")
    assert query.plan() == {one.name: 5}
    query.read()
    fill(sender, two, 7)
    assert query.plan() == {two.name: 7}
    query.read()
    query.restart(topicPattern=one.name)
    fill(sender, one, 3)
    assert query.plan() == {one.name: 3}
    assert sender.inspect(two).stats().total("acked") == 7
    assert from_offset(query.end).keys() == {one.name}
    query.read()
    assert query.plan() == {}


def test_fewest_messages_count_over_all_topics_and_the_end_takes_less(
    sender: RmqClient, topics: tuple[Topic, Topic], make_query: MakeQuery
) -> None:
    names = ",".join(topic.name for topic in topics)
    fill(sender, topics[0], 6)
    sender.producer(topics[1])
    query = make_query(topics=names, minMessagesPerTrigger="10")
    assert query.plan() == {}
    fill(sender, topics[1], 4)
    wait_until(lambda: query.plan() == {topics[0].name: 6, topics[1].name: 4}, LIMIT_S)
    query.read()
    fill(sender, topics[1], 2)
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    fill(sender, topics[0], 9)
    assert query.plan() == {topics[1].name: 2}
    query.read()
    assert query.plan() == {}
    fill(sender, topics[0], 9)


def test_columns_of_topics_that_merge_are_null_for_the_others(
    redis_url: str, sender: RmqClient, make_topic: MakeTopic, make_query: MakeQuery
) -> None:
    sums = make_topic(TopicType.RANGE_MERGE, merge=Merge(Sum()))
    plain = make_topic(TopicType.PRIORITY)
    sender.producer(sums).send(RangeMergeMessage("a", time_range_ms=1, body=5))
    sender.producer(plain).send(PriorityMessage("b", 1_000))
    names = f"{sums.name},{plain.name}"
    source = RmqDataSource({"url": redis_url, "topics": names, "columns": "topic, content, value, merged, priority"})
    schema = source.schema()
    assert schema["merged"].nullable
    reader = source.reader(schema)
    rows = [
        row for part in reader.partitions() for batch in reader.read(part) for row in cast("Any", batch).to_pylist()
    ]
    found = sorted((row["content"], row["value"], row["merged"], row["priority"]) for row in rows)
    assert found == [(b"a", 5.0, 1, None), (b"b", None, None, 1_000)]
    wait_until(lambda: sender.inspect(sums).stats().due_now == 1, LIMIT_S)
    query = make_query(topics=names)
    assert query.plan() == {sums.name: 1, plain.name: 1}
    assert query.read() == sorted([(sums.name, "a"), (plain.name, "b")])
    assert query.plan() == {}


def test_a_checkpoint_of_one_topic_is_not_one_of_several(
    redis_url: str, sender: RmqClient, topics: tuple[Topic, Topic], make_query: MakeQuery
) -> None:
    for topic in topics:
        sender.producer(topic)
    query = make_query(topics=",".join(topic.name for topic in topics))
    source = RmqDataSource({"url": redis_url, "topic": topics[0].name})
    alone = source.streamReader(source.schema())
    assert isinstance(alone, RmqStreamReader)
    with pytest.raises(InvalidValueError, match="cannot be read as an offset of a read of several topics"):
        query.reader.latestOffset(alone.initialOffset(), query.reader.getDefaultReadLimit())
    with pytest.raises(InvalidValueError, match="cannot be read as an offset of RMQ"):
        alone.latestOffset(query.start, alone.getDefaultReadLimit())
    alone.stop()


def test_a_topic_of_the_checkpoint_that_is_gone_is_told_of(
    redis_client: redis.Redis, sender: RmqClient, topics: tuple[Topic, Topic], make_query: MakeQuery
) -> None:
    for topic in topics:
        fill(sender, topic, 1)
    query = make_query(topics=",".join(topic.name for topic in topics))
    query.plan()
    query.read()
    assert query.plan() == {}
    kept = redis_client.hget("rmq:topics", topics[1].name)
    assert kept is not None
    redis_client.hdel("rmq:topics", topics[1].name)
    query.restart(topics=topics[0].name)
    with pytest.raises(UnknownTopicError, match="which is part of this checkpoint, is no longer registered; set fail"):
        query.plan()
    query.restart(failOnDataLoss="false")
    assert query.plan() == {}
    redis_client.hset("rmq:topics", topics[1].name, kept)


PATTERN_KINDS = {
    "plain": {"type": TopicType.PRIORITY},
    "times": {"type": TopicType.FIXED_TIME},
    "sums": {"type": TopicType.PRIORITY, "merge": Merge(Sum())},
    "newest": {"type": TopicType.PRIORITY, "merge": Merge(Newest())},
    "lists": {"type": TopicType.PRIORITY, "merge": Merge(Collect())},
    "joins": {
        "type": TopicType.RANGE_MERGE,
        "merge": Merge(Collect(unique=True), Sliding(max_wait="1m"), PER_MESSAGE),
    },
    "paused": {"type": TopicType.PRIORITY},
}


def test_a_pattern_meets_ten_kinds_of_new_topics(
    redis_client: redis.Redis,
    sender: RmqClient,
    make_topic: MakeTopic,
    make_query: MakeQuery,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What can be read is read with its payloads; the others are left out with a warning, and keep their messages."""
    monkeypatch.setattr(reader, "FIND_S", 0.0)
    first = make_topic(TopicType.PRIORITY)
    fill(sender, first, 2)
    pattern = f".*{first.name.rpartition('-')[2]}"
    query = make_query(topicPattern=pattern, maxReplays="3")
    assert query.plan() == {first.name: 2}
    query.read()
    made = {
        name: make_topic(settings.pop("type"), slots=1, **settings)
        for name, settings in ((name, dict(settings)) for name, settings in PATTERN_KINDS.items())
    }
    log = make_topic(TopicType.STREAM, checked=False)
    owned = make_topic(TopicType.PRIORITY, slots=1)
    brief = make_topic(TopicType.PRIORITY, max_retries=2)
    soon_ms = int(time.time() * 1_000) + 2_000
    bodies: dict[str, Any] = {"sums": 7, "lists": "item", "newest": "new"}
    for name, topic in made.items():
        if name == "times":
            sender.producer(topic).send(FixedTimeMessage("m", fixed_time_ms=soon_ms, body="b"))
        elif name == "joins":
            sender.producer(topic).send(JoinMessage("m", "p1", of=1))
        elif name == "newest":
            sender.producer(topic).send(PriorityMessage("m", 1_000, body="new", version=4))
        else:
            sender.producer(topic).send(PriorityMessage("m", 1_000, body=bodies.get(name, "b")))
    sender.control(made["paused"]).pause()
    sender.producer(log).send(StreamMessage("m"))
    for topic in (owned, brief):
        sender.producer(topic).send(PriorityMessage("m", 1_000))
    redis_client.hset(slot_keys(owned.name, 0).meta, mapping={"epoch": 7, "ensemble": "e"})
    read = {made[name].name: 1 for name in made if name != "paused"}
    wait_until(lambda: sum(sender.inspect(made[name]).stats().due_now for name in ("times", "joins")) == 2, LIMIT_S)
    with caplog.at_level("WARNING", "rmq.spark"):
        assert query.plan() == read
    parts = query.reader.partitions(query.start, query.end)
    rows = [row for part in parts for batch in query.reader.read(part) for row in batch.to_pylist()]
    names = {topic.name: name for name, topic in made.items()}
    said = {names[row["topic"]]: row for row in rows}
    assert (said["plain"]["body"], said["times"]["body"]) == (b"b", b"b")
    assert (said["sums"]["value"], said["newest"]["body"], said["newest"]["version"]) == (7.0, b"new", 4)
    assert (said["lists"]["items"], said["joins"]["items"], said["joins"]["wanted"]) == ([b"item"], [b"p1"], 1)
    assert query.plan() == {}
    for name in made:
        assert sender.inspect(made[name]).stats().total("acked") == (0 if name == "paused" else 1)
    reasons = {log.name: "is STREAM", owned.name: "zookeeper", brief.name: "maxReplays is 3"}
    for name, words in reasons.items():
        [told] = [
            record.getMessage()
            for record in caplog.records
            if f"topic {name} matches topicPattern, but" in record.getMessage()
        ]
        assert words in told
    progress = query.reader.reportLatestOffset()
    assert progress is not None
    assert progress["left_out"].keys() == reasons.keys()
    query.restart()
    assert query.plan() == {}, "it starts again beside the STREAM topic"
    redis_client.hdel(slot_keys(owned.name, 0).meta, "epoch", "ensemble")
    sender.control(made["paused"]).resume()
    assert query.plan() == {owned.name: 1, made["paused"].name: 1}
    query.read()
    query.restart()
    assert query.plan() == {}
    assert len(list(sender.stream(log).range())) == sender.inspect(brief).stats().backlog == 1
    query.reader.stop()
    with mock.patch("rmq.spark.schema.MOST_TOPICS", 8):
        late = make_topic(TopicType.PRIORITY)
        fill(sender, late, 1)
        query.restart()
        assert query.plan() == {}, "those of the checkpoint stay"
        told = query.reader.reportLatestOffset()
        assert told is not None
        assert "cannot be added: the query reads" in told["left_out"][late.name]


def test_at_once_a_pattern_leaves_out_no_topic_of_its_checkpoint(
    sender: RmqClient, topics: tuple[Topic, Topic], make_topic: MakeTopic, make_query: MakeQuery
) -> None:
    """With `Trigger.AvailableNow`, too, the checkpoint's topics come first, whatever their names and settings."""
    for topic in topics:
        fill(sender, topic, 2)
    query = make_query(topicPattern=f".*{topics[0].name.rpartition('-')[2]}", maxReplays="3")
    assert query.plan() == {topic.name: 2 for topic in topics}
    query.read()
    assert query.plan() == {}
    late = make_topic(TopicType.PRIORITY)
    for topic in (*topics, late):
        fill(sender, topic, 3)
    sender.change_topic(topics[0].changed(max_retries=2))  # a new topic would be refused with it
    with mock.patch("rmq.spark.schema.MOST_TOPICS", 2):
        query.restart()
        query.reader.prepareForTriggerAvailableNow()
        fill(sender, topics[1], 5)
        assert query.plan() == {topic.name: 3 for topic in topics}
        query.read()
        assert query.plan() == {}
        told = query.reader.reportLatestOffset()
    assert told is not None
    assert told["left_out"].keys() == {late.name}
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    assert query.plan() == {topics[1].name: 2, late.name: 3}
    query.read()
    assert query.plan() == {}


def test_a_pattern_reads_no_topic_without_its_payloads(
    sender: RmqClient, make_topic: MakeTopic, make_query: MakeQuery
) -> None:
    plain = make_topic(TopicType.PRIORITY)
    lists = make_topic(TopicType.PRIORITY, merge=Merge(Collect()))
    for topic in (plain, lists):
        sender.producer(topic).send(PriorityMessage("m", 1_000, body="b"))
    options = {"topicPattern": f"{plain.name}|{lists.name}"}
    query = make_query(columns="topic, content, body", **options)
    assert query.plan() == {plain.name: 1}
    told = query.reader.reportLatestOffset()
    assert told is not None
    assert "are in column items, which this read does not have" in told["left_out"][lists.name]
    query.read()
    query.restart(columns="topic, content")
    assert query.plan() == {lists.name: 1}, "no payloads were asked for"
    query.read()
    assert query.plan() == {}
    alone = make_query(topicPattern=lists.name, columns="topic, body")
    with pytest.raises(InvalidValueError, match="none of the topics that match topicPattern can be read"):
        alone.plan()
