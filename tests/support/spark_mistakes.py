"""Mistakes of users of `format("rmq")`, tried as Spark would on the driver, before it starts any task."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import redis
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from rmq import Fixed, Merge, Newest, Sum, Topic, TopicType, WhenFull
from rmq.errors import InvalidValueError, RmqError
from rmq.spark import RmqDataSource

MOST_CHARACTERS = 300

IMAGE = Topic("typed-image", TopicType.RANGE_MERGE, slots=8)
MAIL = Topic("typed-mail", TopicType.PRIORITY, slots=4)
OFFER = Topic("typed-offer", TopicType.FIXED_TIME, slots=4)
CLICKS = Topic("typed-clicks", TopicType.STREAM, slots=4)
STOCK = Topic("typed-stock", TopicType.RANGE_MERGE, slots=4, merge=Merge(Sum(), window=Fixed("5s")))
STATE = Topic("typed-state", TopicType.PRIORITY, slots=4, merge=Merge(Newest()))
FULL = Topic("typed-full", TopicType.PRIORITY, slots=4, max_backlog=8, when_full=WhenFull.BLOCK)
TOPICS = (IMAGE, MAIL, OFFER, CLICKS, STOCK, STATE, FULL)

COLUMNS = {
    IMAGE.name: "content string, time_range long",
    MAIL.name: "content string, priority int",
    OFFER.name: "content string, fixed_time timestamp",
    CLICKS.name: "content string, body binary",
    STOCK.name: "content string, value double",
    STATE.name: "content string, body string, version long, priority int",
    FULL.name: "content string, priority int",
}
"""Columns of a frame that fit each topic."""

TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "long": LongType(),
    "double": DoubleType(),
    "decimal": DecimalType(10, 2),
    "date": DateType(),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
    "void": NullType(),
    "binary[]": ArrayType(BinaryType()),
    "string->int": MapType(StringType(), IntegerType()),
    "string->string": MapType(StringType(), StringType()),
    "string->binary": MapType(StringType(), BinaryType()),
}

REPR = re.compile(
    r"\b(Options|Struct\w+|Topic|TopicType|Layout|Target|frozenset|dict|mappingproxy)[(.]|<\w+[. ]|\w+\(\) got"
)
"""What a Python repr of something inside looks like."""


class Mistake(NamedTuple):
    """What was typed, and what it ends in.

    Attributes:
        says: Pattern of the error.
        options: Those of the read or the write; `None`: left out.
        columns: Of the schema of a read, or of the frame of a write; by default those that fit.
        error: Its type.
    """

    says: str
    options: Mapping[str, object] = MappingProxyType({})
    columns: str = ""
    error: type[RmqError] = InvalidValueError


def schema_of(columns: str) -> StructType:
    """Return the schema of columns as `name type, name type`."""
    pairs = (each.split(" ") for each in columns.split(", "))
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


def typed(value: object) -> str:
    """Return the value of an option as PySpark hands it on."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class Driver:
    """Does what Spark does on the driver before it starts a task, in the same order.

    Args:
        url: Redis.
        client: A plain client of it.
    """

    def __init__(self, url: str, client: redis.Redis) -> None:
        self._url, self._client = url, client

    def source(self, topic: Topic | None, options: Mapping[str, object]) -> RmqDataSource:
        """Make the data source; `topic` where the options name none."""
        named = {} if topic is None or {"topics", "topicPattern"} & set(options) else {"topic": topic.name}
        given: dict[str, object] = {"url": self._url, "deadlineSeconds": 1, **named, **options}
        made: Any = CaseInsensitiveDict({name: typed(value) for name, value in given.items() if value is not None})
        return pickle.loads(pickle.dumps(RmqDataSource(made)))

    def read(self, topic: Topic, mistake: Mistake) -> None:
        """Plan `spark.read`."""
        source = self.source(topic, mistake.options)
        source.reader(schema_of(mistake.columns) if mistake.columns else source.schema()).partitions()

    def read_stream(self, topic: Topic, mistake: Mistake) -> None:
        """Begin `spark.readStream`."""
        source = self.source(topic, mistake.options)
        source.streamReader(schema_of(mistake.columns) if mistake.columns else source.schema()).initialOffset()

    def write(self, topic: Topic | None, mistake: Mistake, *, overwrite: bool = False) -> None:
        """Begin `frame.write`."""
        self.source(topic, mistake.options).writer(_frame(topic, mistake), overwrite)

    def write_stream(self, topic: Topic | None, mistake: Mistake, *, overwrite: bool = False) -> None:
        """Begin a batch of `frame.writeStream`."""
        self.source(topic, mistake.options).streamWriter(_frame(topic, mistake), overwrite)

    def refuses(self, does: Any, topic: Topic | None, mistake: Mistake, **more: bool) -> None:
        """Check that a mistake ends in one line that people can read, and leaves nothing in Redis."""
        before = self._everything()
        with pytest.raises(mistake.error) as found:
            does(self, topic, mistake, **more)
        line = str(found.value)
        assert re.search(mistake.says, line), line
        assert len(line.splitlines()) == 1
        assert line.isprintable()
        assert len(line) <= MOST_CHARACTERS, line
        assert not REPR.search(line), line
        assert self._everything() == before

    def _everything(self) -> dict[bytes, Any]:
        keys: Any = self._client.keys("*")
        return {key: self._client.dump(key) for key in keys}


def _frame(topic: Topic | None, mistake: Mistake) -> StructType:
    return schema_of(mistake.columns or COLUMNS[topic.name if topic is not None else IMAGE.name])


def case_name(value: object) -> str:
    """Return the name of a test case."""
    if isinstance(value, Topic):
        return value.name
    if isinstance(value, Mistake):
        return (
            ",".join(f"{name}={each}"[:30] for name, each in value.options.items()) or value.columns[:40] or "nothing"
        )
    return "none"
