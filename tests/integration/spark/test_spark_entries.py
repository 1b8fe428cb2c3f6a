"""Reads of STREAM topics on a real Redis, without Spark: ranges, what a group has done, and what is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, MapType, StringType, StructField, StructType

from rmq import RmqClient, StreamDelivery, StreamMessage, Topic, TopicType
from rmq.errors import BatchLostError, InvalidValueError
from rmq.spark import RmqDataSource
from rmq.spark.batch_reader import EntriesPartition, RmqReader, topic_columns
from rmq.spark.options import parse_options
from rmq.spark.schema import ENTRIES
from tests.conftest import MakeTopic


@pytest.fixture
def log(make_topic: MakeTopic, sender: RmqClient) -> Topic:
    topic = make_topic(TopicType.STREAM, slots=4, checked=False)
    sender.producer(topic)
    return topic


def read(url: str, topic: Topic, columns: str = "", **given: str) -> list[dict[str, Any]]:
    options = parse_options({"url": url, "topic": topic.name, **given})
    schema = topic_columns(topic, options)
    reader = RmqReader(schema if not columns else type(schema)([schema[name] for name in columns.split()]), options)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def test_a_range_has_what_a_view_has(redis_url: str, sender: RmqClient, log: Topic) -> None:
    sender.producer(log).send_many(StreamMessage(f"e{n}", body=b"b" if n % 2 else None) for n in range(3_000))
    sender.producer(log).send(StreamMessage({"a": "1", "b": "2"}))
    entries = list(sender.stream(log).range())
    rows = read(redis_url, log)
    assert sorted((row["slot"], row["id"], row["content"], row["body"]) for row in rows) == sorted(
        (entry.slot, entry.id, entry.content, entry.body) for entry in entries
    )
    assert [dict(row["fields"]) for row in rows if b'"a"' in row["content"]] == [{"a": b"1", "b": b"2"}]
    assert {row["only_group"] for row in rows} == {None}
    first, last = entries[1_000].id, entries[2_000].id
    ranged = {row["id"] for row in read(redis_url, log, "id", first=first, last=last)}
    assert ranged == {entry.id for entry in sender.stream(log).range(first, last)}
    cut_ms = entries[0].time_ms + 1
    cut = datetime.fromtimestamp(cut_ms / 1_000, UTC).isoformat()
    assert len(read(redis_url, log, "id", first=cut)) == len(list(sender.stream(log).range(cut_ms)))


def test_fields_come_with_a_schema_in_words(redis_url: str, sender: RmqClient, log: Topic) -> None:
    sender.producer(log).send(StreamMessage({"a": "1"}))
    source = RmqDataSource({"url": redis_url, "topic": log.name})
    # as "id string, fields map<string,binary>" is read
    named = StructType([StructField("id", StringType()), StructField("fields", MapType(StringType(), BinaryType()))])
    reader: Any = source.reader(named)
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert [dict(row["fields"]) for row in rows] == [{"a": b"1"}]


def test_a_range_ends_where_it_ended_when_it_was_planned(redis_url: str, sender: RmqClient, log: Topic) -> None:
    sender.producer(log).send_many(StreamMessage(f"e{n}") for n in range(20))
    options = parse_options({"url": redis_url, "topic": log.name, "maxPartitions": "2"})
    reader = RmqReader(topic_columns(log, options), options)
    parts = reader.partitions()
    assert all(isinstance(part, EntriesPartition) for part in parts)
    assert len(parts) == 2
    sender.producer(log).send_many(StreamMessage(f"later{n}") for n in range(20))
    assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == 20


def test_each_entry_tells_what_a_group_has_done_with_it(redis_url: str, sender: RmqClient, log: Topic) -> None:
    sender.producer(log).send_many(StreamMessage(f"e{n}") for n in range(40))
    expected: dict[str, str] = {}
    with sender.consumer(log, group="mail", name="me", start="all") as consumer:
        deliveries = consumer.poll(max_messages=20, timeout=5)
        assert all(isinstance(delivery, StreamDelivery) for delivery in deliveries)
        for number, delivery in enumerate(deliveries):
            expected[delivery.text] = ["acked", "in_flight", "waiting", "dead"][number % 4]
            match number % 4:
                case 0:
                    delivery.ack()
                case 2:
                    delivery.nack(delay="600ms")
                case 3:
                    delivery.bury("bad")
                case _:
                    pass
        rows = read(redis_url, log, statesOf="mail")
        found = {row["content"].decode(): row for row in rows}
        assert len(rows) == 40
        assert {text: row["state"] for text, row in found.items()} == {
            f"e{n}": expected.get(f"e{n}", "unread") for n in range(40)
        }
        for row in rows:
            held = row["state"] == "in_flight"
            assert (row["consumer"], row["deliveries"]) == (("me", 1) if held else (None, row["deliveries"]))
            assert (row["idle_ms"] is None) == (row["state"] not in ("in_flight", "waiting"))
    assert {row["state"] for row in read(redis_url, log, "state", statesOf="nobody")} == {"unread"}


def test_copies_for_one_group_are_not_for_others(redis_url: str, sender: RmqClient, log: Topic) -> None:
    sender.producer(log).send(StreamMessage("a"))
    with sender.consumer(log, group="mail", start="all") as consumer:
        [delivery] = consumer.poll(timeout=5)
        delivery.bury("bad")
    [entry] = sender.stream(log).range()
    sender.stream(log).delete(entry.id, slot=entry.slot)
    assert sender.stream(log).dead("mail").redrive()
    assert [row["only_group"] for row in read(redis_url, log, "only_group")] == ["mail"]
    assert len(read(redis_url, log, "id", statesOf="mail")) == 1
    assert read(redis_url, log, "id", statesOf="other") == []


def test_ranges_are_read_as_they_are_named(redis_url: str, sender: RmqClient, log: Topic) -> None:
    sender.producer(log).send_many(StreamMessage(f"e{n}") for n in range(40))
    found: dict[int, list[str]] = {}
    for entry in sender.stream(log).range():
        found.setdefault(entry.slot, []).append(entry.id)
    slots = sorted(found)[:2]
    ranges = json.dumps({str(slot): [found[slot][1], found[slot][-2]] for slot in slots})
    rows = read(redis_url, log, ranges=ranges)
    assert sorted((row["slot"], row["id"]) for row in rows) == [
        (slot, entry_id) for slot in slots for entry_id in found[slot][1:-1]
    ]
    assert read(redis_url, log, "id", ranges="{}") == []
    sender.stream(log).delete(found[slots[0]][1], slot=slots[0])
    with pytest.raises(BatchLostError, match=f"entries of slot {slots[0]} from .* were trimmed or deleted"):
        read(redis_url, log, "id", ranges=ranges)
    with pytest.raises(InvalidValueError, match="remove first and last"):
        RmqDataSource({"url": redis_url, "topic": log.name, "ranges": ranges, "first": "7"}).reader(ENTRIES)
    with pytest.raises(InvalidValueError, match="ranges names slot 99"):
        read(redis_url, log, "id", ranges='{"99": ["1-0", "2-0"]}')
