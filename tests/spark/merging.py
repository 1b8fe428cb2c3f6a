"""Topics that merge, for tests of Spark: writers to them, and what they hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import redis
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

from rmq import RmqClient, Topic
from tests.support.core import Record, read_record, slot_keys


class Value(NamedTuple):
    """What the sends of a content came to."""

    count: int
    number: float
    body: bytes | None
    items: tuple[bytes, ...]


def sink_of(frame: DataFrame, url: str, topic: Topic, **options: object) -> DataFrameWriter:
    """Return a writer of a frame to a topic that is registered."""
    writer = frame.write.format("rmq").mode("append").option("url", url).option("topic", topic.name)
    for name, value in options.items():
        writer = writer.option(name, str(value).lower() if isinstance(value, bool) else str(value))
    return writer


def read_of(spark: SparkSession, url: str, topic: Topic, queue: str = "backlog") -> DataFrame:
    """Return one place of a topic as a frame."""
    reader = spark.read.format("rmq").option("url", url).option("topic", topic.name)
    return reader.option("queue", queue).load()


def value_of(record: Record) -> Value:
    """Return what a record says."""
    return Value(record.count, record.number, record.body, record.items)


def stored(client: RmqClient, topic: Topic, places: Iterable[str] = ("body",)) -> dict[bytes, Value]:
    """Return what the records of a topic say, of those in the backlog unless told."""
    found: dict[bytes, Value] = {}
    connection = redis.Redis.from_url(client.url)
    for slot in range(topic.slots):
        for place in places:
            values: dict[bytes, bytes] = connection.hgetall(getattr(slot_keys(topic.name, slot), place))  # pyright: ignore[reportAssignmentType]
            for content, body in values.items():
                record = read_record(body)
                assert record is not None
                found[content] = value_of(record)
    connection.close()
    return found
