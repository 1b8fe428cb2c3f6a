"""Columns of reads that have to be asked for, and what Redis sends for those that are not, without Spark."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import redis

from rmq import Merge, PriorityMessage, RangeMergeMessage, RmqClient, Sum, Topic, TopicType
from rmq.errors import InvalidValueError
from rmq.spark import Refused, RmqDataSource, refuse_rows
from rmq.spark.batch_reader import RmqReader
from rmq.spark.source.batches import Batch
from rmq.spark.source.reader import RmqStreamReader
from tests.conftest import MakeTopic
from tests.support.core import EncodedMessage, QueueBroker, query_keys, slot_keys, wrap

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def read(url: str, topic: Topic, **options: str) -> list[dict[str, Any]]:
    """Return the rows of a batch read, by their contents."""
    source = RmqDataSource({"url": url, "topic": topic.name, **options})
    reader = source.reader(source.schema())
    assert isinstance(reader, RmqReader)
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: row.get("content", b""))


class Stream:
    """A query that reads one batch."""

    def __init__(self, url: str, topic: Topic, **options: str) -> None:
        source = RmqDataSource({"url": url, "topic": topic.name, **options})
        reader = source.streamReader(source.schema())
        assert isinstance(reader, RmqStreamReader)
        self.reader, self._start = reader, reader.initialOffset()
        self._end = reader.latestOffset(self._start, reader.getDefaultReadLimit())
        self.batch = Batch.from_offset(self._end)

    def rows(self) -> list[dict[str, Any]]:
        parts = self.reader.partitions(self._start, self._end)
        rows = [row for part in parts for batch in self.reader.read(part) for row in batch.to_pylist()]
        return sorted(rows, key=lambda row: row.get("content", b""))

    def end(self, redis_client: redis.Redis, topic: Topic) -> None:
        self.reader.commit(self._end)
        self.reader.stop()
        for slot in range(topic.slots):
            own = query_keys(topic.name, slot, self.batch.query)
            redis_client.delete(own.query, own.body)


def test_attempts_times_of_sending_and_traces(
    redis_url: str, redis_client: redis.Redis, sender: RmqClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    began_ms = time.time() * 1_000 - 1_000
    sender.producer(topic).send_many([PriorityMessage("a", 1_000), PriorityMessage("b", 900, body="plain")])
    [delivery] = sender.consumer(topic).poll(max_messages=1, timeout=5)
    assert delivery.nack(delay="0s")
    traced = EncodedMessage(0, b"c", 800, wrap(b"body", TRACE))
    QueueBroker(sender._connections, topic).send(0, [traced])
    columns = {"columns": "content, body, attempt, SENT, trace"}
    rows = read(redis_url, topic, **columns)
    assert [(row["content"], row["body"], row["attempt"], row["trace"]) for row in rows] == [
        (b"a", None, 2, None),
        (b"b", b"plain", 1, None),
        (b"c", b"body", 1, TRACE),
    ]
    assert rows[0]["sent"] is None, "its score says the retries left since"
    assert all(began_ms <= row["sent"].timestamp() * 1_000 <= time.time() * 1_000 + 1_000 for row in rows[1:])
    stream = Stream(redis_url, topic, **columns)
    assert stream.rows() == rows
    assert stream.rows() == rows, "a second read"
    in_flight = read(redis_url, topic, queue="inflight", **columns)
    assert [(row["attempt"], row["sent"], row["trace"]) for row in in_flight] == [
        (2, None, None),
        (1, None, None),
        (1, None, TRACE),
    ]
    stream.end(redis_client, topic)


@pytest.mark.parametrize("ties", ["oldest", "any"])
def test_what_is_due_behind_many_twins_in_flight_is_read(
    ties: Any, redis_url: str, redis_client: redis.Redis, sender: RmqClient, make_topic: MakeTopic
) -> None:
    """A call searches about 2,000 messages; those behind were read only when enough of the twins were settled."""
    topic = make_topic(TopicType.PRIORITY, slots=1, ties=ties)
    twins, behind = [PriorityMessage(f"twin{n:04}", 900) for n in range(4_500)], [b"x%02d" % n for n in range(30)]
    sender.producer(topic).send_many(twins)
    consumer = sender.consumer(topic)
    while consumer.poll(1_000):
        pass
    sender.producer(topic).send_many([*twins, *(PriorityMessage(name, 100) for name in behind)])
    stream = Stream(redis_url, topic, maxMessagesPerTrigger="20")
    rows = [row["content"] for row in stream.rows()]
    assert (len(rows), {*rows} <= {*behind}) == (20, True)
    assert [row["content"] for row in stream.rows()] == rows
    stream.end(redis_client, topic)


def test_what_waits_will_be_the_next_attempt(redis_url: str, sender: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, max_retries=3)
    sender.producer(topic).send(PriorityMessage("a", 1_000))
    for attempt in (1, 2):
        [delivery] = sender.consumer(topic).poll(timeout=5)
        assert delivery.attempt == attempt
        assert delivery.nack(delay="0s" if attempt == 1 else "1h")
    assert read(redis_url, topic, queue="waiting", columns="attempt") == [{"attempt": 3}]


def test_topics_that_merge_tell_of_the_first_send(
    redis_url: str, redis_client: redis.Redis, sender: RmqClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, merge=Merge(Sum()))
    producer = sender.producer(topic)
    producer.send_many(RangeMergeMessage("a", time_range_ms=1, body=n) for n in (2, 3))
    columns = "value, merged, first_sent, sent, attempt, trace"
    [row] = read(redis_url, topic, columns=columns)
    assert (row["value"], row["merged"], row["attempt"], row["trace"]) == (5.0, 2, 1, None)
    assert row["sent"] == row["first_sent"] is not None
    time.sleep(0.002)
    stream = Stream(redis_url, topic, columns=columns)
    assert stream.rows() == [row]
    stream.end(redis_client, topic)


@pytest.mark.parametrize("queue", ["backlog", "dead"])
@pytest.mark.parametrize("snapshot", ["scan", "atomic"])
def test_bodies_and_reasons_stay_in_redis_where_no_column_needs_them(
    redis_url: str, redis_client: redis.Redis, sender: RmqClient, make_topic: MakeTopic, queue: str, snapshot: str
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    sender.producer(topic).send_many(PriorityMessage(f"m{n}", 1_000, body=b"x" * 100_000) for n in range(10))
    if queue == "dead":
        for delivery in sender.consumer(topic).poll(max_messages=10, timeout=5):
            assert delivery.bury(ValueError("y" * 900))

    def sent_bytes(columns: str) -> int:
        before = int(redis_client.info("stats")["total_net_output_bytes"])
        assert len(read(redis_url, topic, queue=queue, snapshot=snapshot, columns=columns)) == 10
        return int(redis_client.info("stats")["total_net_output_bytes"]) - before

    assert sent_bytes("content, body") > 1_000_000
    assert sent_bytes("content, trace") > 1_000_000, "it travels with the body"
    lean = sent_bytes("content, slot, sent")
    assert lean < 100_000
    if queue == "dead":
        assert 9_000 < sent_bytes("content, error_type") - lean < 100_000


def test_a_batch_of_a_stream_brings_no_bodies_where_no_column_needs_them(
    redis_url: str, redis_client: redis.Redis, sender: RmqClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    sender.producer(topic).send_many(PriorityMessage(f"m{n}", 1_000, body=b"x" * 100_000) for n in range(10))
    stream = Stream(redis_url, topic, columns="content")
    before = int(redis_client.info("stats")["total_net_output_bytes"])
    assert stream.rows() == stream.rows() == [{"content": f"m{n}".encode()} for n in range(10)]
    assert int(redis_client.info("stats")["total_net_output_bytes"]) - before < 100_000
    stream.end(redis_client, topic)
    assert redis_client.hlen(slot_keys(topic.name, 0).body) == 0


def test_the_usual_columns_and_more(redis_url: str, sender: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    sender.producer(topic)
    usual = ["topic", "slot", "content", "body", "score", "priority", "due", "retries_left"]
    for columns, names in [(None, usual), ("*", usual), ("*, trace", [*usual, "trace"]), ("slot,*", None)]:
        given = {} if columns is None else {"columns": columns}
        schema = RmqDataSource({"url": redis_url, "topic": topic.name, **given}).schema()
        assert schema.names == (names or ["slot", *(name for name in usual if name != "slot")])


def test_rows_are_refused_where_they_are(
    redis_url: str, redis_client: redis.Redis, sender: RmqClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    sender.producer(topic).send_many(PriorityMessage(f"m{n}", 1_000) for n in range(40))
    stream = Stream(redis_url, topic, columns="*, claim")
    rows = stream.rows()
    assert refuse_rows(rows[:7], ValueError("bad price"), url=redis_url) == Refused(7, 0)
    text = [{**row, "content": row["content"].decode()} for row in rows[7:10]]
    assert refuse_rows(text, "not now", delay=timedelta(hours=1), url=redis_url) == Refused(3, 0)
    assert refuse_rows([{**rows[0], "content": b"other"}], url=redis_url) == Refused(0, 1)
    assert refuse_rows([], url=redis_url) == Refused(0, 0)
    assert [{**row, "claim": ""} for row in stream.rows()] == [{**row, "claim": ""} for row in rows]
    stream.end(redis_client, topic)
    stats = sender.inspect(topic).stats()
    assert (stats.dead, stats.waiting, stats.total("acked"), stats.unaccounted) == (7, 3, 30, 0)
    [query] = sender.inspect(topic).spark_queries()
    assert query.totals == {"acked": 30, "refused": 10, "redelivered": 0, "lost": 0}
    dead = {(each.content, each.error_type, each.error_message) for each in sender.dead(topic).list()}
    assert dead == {(row["content"], "ValueError", "bad price") for row in rows[:7]}
    assert sender.inspect(topic).find(rows[7]["content"]).failure is not None


@pytest.mark.parametrize(
    ("row", "delay", "message"),
    [
        ({"claim": None}, None, "a row to refuse has no claim"),
        ({"claim": "mine"}, None, "claim is 'mine'; it must be a value of the column claim of readStream"),
        ({}, "0s", "delay is '0s'; it must be more than 0, or omitted"),
        ({}, timedelta(-1), r"delay is datetime.timedelta\(days=-1\); it must lie between 0 and 100 years"),
        ({}, 5, "delay is 5: is it '5ms' or '5s'?"),
    ],
)
def test_what_cannot_be_refused(
    redis_url: str, sender: RmqClient, make_topic: MakeTopic, row: dict[str, Any], delay: Any, message: str
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    sender.producer(topic)
    whole = {"topic": topic.name, "slot": 0, "content": b"a", "claim": f"{'a' * 32}:1:1:0"} | row
    with pytest.raises(InvalidValueError, match=message):
        refuse_rows([whole], delay=delay, url=redis_url)
