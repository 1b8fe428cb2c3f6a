"""The topics of a read: one, several, or all whose names match a pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pyspark.sql.types import StructField, StructType

from rmq._broker.registry import Registry
from rmq._model.topics import Topic, TopicType
from rmq._transport.connections import Connections
from rmq.errors import InvalidValueError
from rmq.spark.option_kinds import quoted
from rmq.spark.options import Options

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
        raise InvalidValueError(f"{number} topics are named; a read can have at most {MOST_TOPICS}: split the read")


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
