"""The schemas of reads. Contents and bodies are binary; `CAST(content AS STRING)` converts them to text."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rmq import Merge, Topic
from rmq.errors import InvalidValueError
from rmq.spi import shown
from rmq.spi.scripts import ITEMS, NUMBERS

_MESSAGE = (
    StructField("topic", StringType(), False),
    StructField("slot", IntegerType(), False),
    StructField("content", BinaryType(), False),
    StructField("body", BinaryType(), True),
)

QUEUE = StructType(
    [
        *_MESSAGE,
        StructField("score", LongType(), False),
        StructField("priority", LongType(), True),
        StructField("due", TimestampType(), True),
        StructField("retries_left", IntegerType(), True),
    ]
)
"""Columns of messages in the backlog, in flight or waiting. `due` is the due time, the end of the lease, or the time of
the retry; null if due at once."""

DEAD = StructType(
    [
        *_MESSAGE,
        StructField("died", TimestampType(), False),
        StructField("error_type", StringType(), False),
        StructField("error_message", StringType(), False),
        StructField("attempts", IntegerType(), False),
        StructField("first_failed", TimestampType(), False),
        StructField("last_failed", TimestampType(), False),
    ]
)
"""Columns of dead messages, with the reason of death."""

ENTRIES = StructType(
    [
        *_MESSAGE,
        StructField("id", StringType(), False),
        StructField("sent", TimestampType(), False),
        StructField("fields", MapType(StringType(), BinaryType(), False), False),
        StructField("only_group", StringType(), True),
    ]
)
"""Columns of entries of a STREAM topic. `sent` is the time of its addition, `only_group` the group of a redriven
copy."""

_STATE = (
    StructField("state", StringType(), False),
    StructField("consumer", StringType(), True),
    StructField("deliveries", LongType(), True),
    StructField("idle_ms", LongType(), True),
)

_SENDS = (
    StructField("merged", LongType(), False),
    StructField("first_sent", TimestampType(), True),
    StructField("last_sent", TimestampType(), True),
)
_VALUE = StructField("value", DoubleType(), True)
_ITEMS = StructField("items", ArrayType(BinaryType(), False), True)
_WANTED = StructField("wanted", LongType(), True)
_VERSION = StructField("version", LongType(), True)
_OF_MERGES = (*_SENDS, _VALUE, _ITEMS, _WANTED, _VERSION)

_MORE = (
    StructField("attempt", IntegerType(), True),
    StructField("sent", TimestampType(), True),
    StructField("trace", StringType(), True),
    StructField("claim", StringType(), True),
)


_PAYLOADS = frozenset(("body", "items", "value"))

MORE = frozenset(field.name for field in _MORE)
"""Columns of a read of a queue that are returned on request only."""


def more_columns(queue: str) -> tuple[StructField, ...]:
    """Return the columns that a read returns on request only; `claim` is for `readStream`, which reads the backlog."""
    missing = {"dead": ("attempt", "claim"), "backlog": ()}.get(queue, ("claim",))
    return tuple(field for field in _MORE if field.name not in missing)


def entry_columns(*, grouped: bool) -> StructType:
    """Return the columns of a read of a STREAM topic; `grouped` adds the state of each entry in a group."""
    return StructType([*ENTRIES.fields, *_STATE]) if grouped else ENTRIES


def columns_of(queue: str, merge: Merge | None) -> StructType:
    """Return the columns of a read of a topic other than STREAM.

    Args:
        queue: The state to read: `backlog`, `inflight`, `waiting` or `dead`.
        merge: The topic's merge settings, or `None`. With them, a row also has the number and times of its sends, and,
            depending on the reducer, `value`, `items`, `wanted` or `version`.
    """
    columns = DEAD if queue == "dead" else QUEUE
    if merge is None:
        return columns
    more = [*_SENDS]
    if merge.kind in NUMBERS:
        more.append(_VALUE)
    if merge.kind in ITEMS:
        more.append(_ITEMS)
    if merge.joins:
        more.append(_WANTED)
    if merge.kind == "N":
        more.append(_VERSION)
    return StructType([*columns.fields, *more])


def every_column(queue: str) -> StructType:
    """Return all columns of reads of a queue, of topics with and without `merge=`."""
    return StructType([*columns_of(queue, None).fields, *_OF_MERGES])


def check_payload(topic: Topic, names: Collection[str]) -> None:
    """Raise an error for a topic whose payloads a read of several topics would omit, since it lacks their columns.

    Raises:
        InvalidValueError: The payloads of the topic would be acked without being read.
    """
    kind = "" if topic.merge is None else topic.merge.kind
    own = {"items"} if kind in ITEMS else {"body", "value"} if kind in NUMBERS else {"body"}
    if own.isdisjoint(names) and not _PAYLOADS.isdisjoint(names):
        raise InvalidValueError(
            f"the payloads of topic {topic.name} are in column {' or '.join(sorted(own))}, which this read "
            f"does not have, so its messages would be acked unread. The columns of the read are {', '.join(names)}",
            topic=topic.name,
        )


def check_topic_has(topic: str, columns: StructType, schema: StructType) -> None:
    """Raise `InvalidValueError` for a column that only reads of other topics have.

    Args:
        topic: Name of the topic.
        columns: The columns of its reads.
        schema: The requested columns.
    """
    for name in schema.names:
        if name not in columns.names:
            raise InvalidValueError(
                f"a read of topic {topic} has no column {shown(name, 60)}; its columns are {told(name, columns)}",
                topic=topic,
            )


def told(name: str, columns: StructType) -> str:
    """Return the names of the columns of a read, for the error that one is missing."""
    of_state = name in [field.name for field in _STATE] and "only_group" in columns.names
    return ", ".join(columns.names) + ("; option statesOf of spark.read adds it" if of_state else "")


_ALIKE = ((BinaryType, StringType), (IntegerType, LongType))


def check_schema(queue: str, schema: StructType) -> None:
    """Check a user's schema of a read: it may omit columns, and have content and body as text.

    Args:
        queue: The state to read.
        schema: The argument of `schema()`.

    Raises:
        InvalidValueError: A column is unknown, or has a type to which it cannot be converted.
    """
    entries = entry_columns(grouped=True).fields if queue == "backlog" else []
    fields = (*columns_of(queue, None).fields, *more_columns(queue), *_OF_MERGES, *entries)
    known = {field.name: field.dataType for field in fields}
    for field in schema.fields:
        kind = known.get(field.name)
        if kind is None:
            name = shown(field.name, 60)
            usual = ", ".join(columns_of(queue, None).names)
            near = difflib.get_close_matches(field.name.lower(), known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InvalidValueError(f"a read of queue {queue} has no column {name}; its usual columns: {usual}{hint}")
        alike = any(isinstance(kind, pair) and isinstance(field.dataType, pair) for pair in _ALIKE)
        if not alike and not _same(kind, field.dataType):
            raise InvalidValueError(
                f"column {field.name} of a read has type {kind.simpleString()}; it cannot be read as "
                f"{field.dataType.simpleString()}"
            )


def _same(kind: DataType, asked: DataType) -> bool:
    """Return whether two types are equal apart from the nullability of their elements, which a DDL schema allows."""
    if isinstance(kind, MapType) and isinstance(asked, MapType):
        return (kind.keyType, kind.valueType) == (asked.keyType, asked.valueType)
    if isinstance(kind, ArrayType) and isinstance(asked, ArrayType):
        return kind.elementType == asked.elementType
    return kind == asked


PARTITION, PARTITIONS, SORTED = "partition", "rmq.partitions", "rmq.sorted"
"""The column that `rmq.spark.keyed` adds, and the keys of its metadata: the number of partitions, and whether the rows
of each are sorted."""


def lowered(schema: StructType) -> StructType:
    """Return a schema with lower-case names, since Spark ignores their case.

    Raises:
        InvalidValueError: Two names differ only in case, which Spark allows under `spark.sql.caseSensitive`.
    """
    known: dict[str, str] = {}
    for name in schema.names:
        if name.lower() in known:
            raise InvalidValueError(
                f"columns {shown(known[name.lower()], 60)} and {shown(name, 60)} differ only in upper and "
                "lower case, which RMQ does not distinguish: drop or rename one"
            )
        known[name.lower()] = name
    return StructType(
        [StructField(field.name.lower(), field.dataType, field.nullable, field.metadata) for field in schema.fields]
    )


_OF_ALL = frozenset([*QUEUE.names, *DEAD.names])
_OF_ENTRIES = frozenset(entry_columns(grouped=True).names)
_OF_SENDS = frozenset(field.name for field in _OF_MERGES)


def of_reads(names: Collection[str]) -> frozenset[str]:
    """Return the columns of reads that a sink ignores, so that a frame from a read can be written.

    Args:
        names: Columns of the frame. Some columns are ignored only together with others that show that the frame is a
            read: of a queue, of a topic with `merge=`, or of a STREAM topic.
    """
    tells = all(field.name in names for field in _SENDS)
    logged = all(name in names for name in ("topic", "slot", "id", "sent"))
    placed = "topic" in names and "slot" in names
    nothing = frozenset[str]()
    return (
        _OF_ALL
        | (MORE if placed else nothing)
        | (_OF_SENDS if tells else nothing)
        | (_OF_ENTRIES if logged else nothing)
    )
