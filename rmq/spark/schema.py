"""What a read selects: its topics, its default and optional columns, and the parts of messages that these require.

Contents and bodies are binary; `CAST(content AS STRING)` converts them to text.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

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

from rmq import Merge, Topic, TopicType
from rmq.errors import InvalidValueError
from rmq.spark.calls import Parts
from rmq.spark.option_kinds import quoted
from rmq.spark.options import Options
from rmq.spi import AnyPlace, shown
from rmq.spi.scripts import ITEMS, NUMBERS, Connections, Registry, ages_for, meaning_of, read_record

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


USUAL = "*"
"""Stands for the default columns in option `columns`."""

_OF_BODIES = frozenset("body trace merged first_sent last_sent value items wanted version".split())
_OF_REASONS = frozenset("error_type error_message attempts first_failed last_failed".split())


def offered(topic: Topic, options: Options, usual: StructType) -> StructType:
    """Return all columns of a read, the default and optional ones."""
    if topic.type is TopicType.STREAM:
        return usual
    return StructType(
        [*usual.fields, *(field for field in more_columns(options.queue) if field.name not in usual.names)]
    )


def chosen(topics: Sequence[Topic], options: Options, usual: StructType) -> StructType:
    """Return the columns of a read of topics: those of option `columns`, or the default ones.

    Raises:
        InvalidValueError: Option `columns` names a column that the read does not have.
    """
    if options.columns is None:
        return usual
    there = offered(topics[0], options, usual)
    names = [each for name in options.columns for each in (usual.names if name == USUAL else [name])]
    for name in names:
        if name not in there.names:
            raise InvalidValueError(
                f"option columns names {shown(name, 60)}, but a read of topic {names_of(topics)} has no such "
                f"column; its columns are {told(name, there)}"
            )
    return StructType([there[name] for name in dict.fromkeys(names)])


def check_chosen(options: Options, schema: StructType) -> None:
    """Check that a user's schema has all columns of option `columns`.

    Raises:
        InvalidValueError: The option names a column that the schema does not have.
    """
    for name in options.columns or ():
        if name not in (USUAL, *schema.names):
            raise InvalidValueError(
                f"option columns names {name}, which schema() does not have: use one of the two, columns or schema()"
            )


def parts_of(topic: Topic, names: Collection[str]) -> Parts:
    """Return the optional parts of messages that these columns require."""
    bodies = not _OF_BODIES.isdisjoint(names) or (topic.merge is not None and "sent" in names)
    return Parts(bodies=bodies, reasons=not _OF_REASONS.isdisjoint(names))


def attempt_of(topic: Topic, place: AnyPlace, score: int) -> int | None:
    """Return the number of a message's delivery, from 1: the current one if it is in flight, otherwise the next one."""
    if place == "dead":
        return None
    left = meaning_of(topic, place, score)[1]
    return 1 if left is None else topic.max_retries - left + (2 if place == "retry" else 1)


def sent_of(topic: Topic, place: AnyPlace, scores: Sequence[int]) -> list[int | None]:
    """Return the send times of messages, in microseconds, if their scores contain them; otherwise `None` for each."""
    if topic.type is not TopicType.PRIORITY or place != "store":
        return [None] * len(scores)
    sent_ms = ages_for(topic.max_priority).sent_ms
    times = (sent_ms(score) if score > topic.max_retries else None for score in scores)
    return [None if time_ms is None else time_ms * 1_000 for time_ms in times]


def more_of(
    names: Collection[str],
    topic: Topic,
    place: AnyPlace,
    scores: Sequence[int],
    traces: Sequence[str | None],
    sends: Mapping[str, Sequence[Any]] | None,
) -> dict[str, Sequence[Any]]:
    """Return the optional columns that are among `names`.

    Args:
        names: Names of the requested columns.
        topic: The definition.
        place: The state of the messages.
        scores: Their scores.
        traces: Their trace contexts, empty for messages without one.
        sends: Columns from the records of a topic with `merge=`, see `sends_of`; otherwise `None`.
    """
    found: dict[str, Sequence[Any]] = {}
    if "attempt" in names:
        found["attempt"] = [attempt_of(topic, place, score) for score in scores]
    if "sent" in names:
        found["sent"] = sent_of(topic, place, scores) if sends is None else sends["first_sent"]
    if "trace" in names:
        found["trace"] = [trace or None for trace in (traces if sends is None else sends["trace"])]
    return found


def sends_of(bodies: Iterable[bytes | None]) -> dict[str, list[Any]]:
    """Return the additional columns of a topic with `merge=`, decoded from the record of each row, if it has one."""
    records = [read_record(body) for body in bodies]
    return {
        "body": [record.unwrapped[0] for record in records],
        "trace": [record.unwrapped[1] for record in records],
        "merged": [record.count for record in records],
        "first_sent": [record.first_ms * 1_000 or None for record in records],
        "last_sent": [record.last_ms * 1_000 or None for record in records],
        "value": [float(record.number) if record.kind in NUMBERS else None for record in records],
        "items": [list(record.items) if record.kind in ITEMS else None for record in records],
        "wanted": [record.wanted or None for record in records],
        "version": [record.version for record in records],
    }


MOST_TOPICS = 100
"""Maximum number of topics of a read: the driver of a query has connections and threads for each."""


_SHOWN = 3


def topics_of(connections: Connections, options: Options, *, whole: bool = True) -> list[Topic]:
    """Return the registered definitions of the topics of a read.

    Args:
        connections: Connections to Redis.
        options: The options of the read.
        whole: If true, raise an error if the pattern matches a topic that cannot be read together with others; if
            false, omit such topics, see `ManyStreamReader`.

    Raises:
        InvalidValueError: No topic is named, the pattern matches none, there are too many, or one of several is a
            STREAM.
        UnknownTopicError: A topic is not registered.
    """
    registry = Registry(connections)
    if not options.several:
        return [registry.get(options.needed_topic())]
    if options.topics is not None:
        _check_number(len(options.topics))
        found = [registry.get(name) for name in options.topics]
    else:
        known = registry.definitions().topics
        found = fitting(known, options)
        if not found:
            raise InvalidValueError(
                f"topicPattern {quoted(options.topic_pattern or '')} matches none of {len(known)} registered "
                "topics; it must match the whole name"
            )
        if not whole:
            found = [topic for topic in found if topic.type is not TopicType.STREAM][:MOST_TOPICS] or found[:1]
        _check_number(len(found))
    for topic in found:
        check_several(topic)
    return found


def fitting(known: Iterable[Topic], options: Options) -> list[Topic]:
    """Return the topics whose names match the pattern of a read, sorted by name."""
    return sorted((topic for topic in known if fits(options, topic.name)), key=lambda topic: topic.name)


def check_several(topic: Topic) -> None:
    """Raise `InvalidValueError` for a topic that a read of several topics cannot include."""
    if topic.type is TopicType.STREAM:
        raise InvalidValueError(
            f"topic {topic.name} is STREAM, and a read of several topics cannot include a STREAM topic: read it alone",
            topic=topic.name,
        )


def check_room(topic: Topic, number: int) -> None:
    """Raise `InvalidValueError` if a read already has the maximum number of topics."""
    if number >= MOST_TOPICS:
        raise InvalidValueError(
            f"topic {topic.name} cannot be added: the query reads {number} topics, the maximum of one "
            "read. Use a narrower pattern, or split the query",
            topic=topic.name,
        )


def _check_number(number: int) -> None:
    if number > MOST_TOPICS:
        raise InvalidValueError(f"the read selects {number} topics; the maximum is {MOST_TOPICS}: split the read")


def fits(options: Options, name: str) -> bool:
    """Return whether a topic's name matches the pattern of a read."""
    return options.topic_pattern is not None and re.fullmatch(options.topic_pattern, name) is not None


def for_one(options: Options, name: str) -> Options:
    """Return the options of a read of several topics, changed to read one of them."""
    return replace(options, topic=name, topics=None, topic_pattern=None)


def together(each: Sequence[StructType]) -> StructType:
    """Return the union of the columns of several topics; a column that one of them lacks is null in its rows."""
    fields: dict[str, StructField] = {}
    for columns in each:
        for field in columns.fields:
            fields.setdefault(field.name, field)
    everywhere = set[str].intersection(*(set(columns.names) for columns in each))
    return StructType(
        [StructField(name, field.dataType, field.nullable or name not in everywhere) for name, field in fields.items()]
    )


def names_of(topics: Sequence[Topic]) -> str:
    """Return the names of a read's topics for an error; if there are many, only the first ones."""
    names = [topic.name for topic in topics]
    return ", ".join(names) if len(names) <= _SHOWN else f"{', '.join(names[:_SHOWN])} and {len(names) - _SHOWN} more"
