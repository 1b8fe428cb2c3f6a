"""Writes to several topics: rows are divided by their column `topic`, and each topic gets the columns of its type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.types import StringType, StructType

from rmq._model.topics import Topic, TopicType, is_name
from rmq.errors import InvalidMessageError, InvalidValueError
from rmq.spark.arrow import pc
from rmq.spark.option_kinds import quoted
from rmq.spark.options import Options
from rmq.spark.schema import of_reads
from rmq.spark.sink.columns import ANY, VALUE_COLUMNS, VALUES, check_type

COLUMN = "topic"


def routes(schema: StructType, options: Options) -> bool:
    """Return whether each row names its topic; option `topic` overrides the column, as with Spark's Kafka sink.

    Raises:
        InvalidValueError: The column `topic` is not of type string, or options define a new topic.
    """
    if options.topic is not None or COLUMN not in schema.names:
        return False
    kind = schema[COLUMN].dataType
    if not isinstance(kind, StringType):
        kind_name = kind.simpleString()
        raise InvalidValueError(f"column topic is {kind_name}; it must be string, unless option topic is set")
    if options.type is not None or options.slots is not None:
        raise InvalidValueError("options type and slots define one topic; topics of a column must be registered")
    return True


def check_routed(schema: StructType, options: Options) -> None:
    """Raise an error for columns that no topic accepts, whichever topics the rows name.

    Raises:
        InvalidValueError: A column is unknown or has a type that no topic accepts, or `content` is missing.
    """
    names = [name for name in schema.names if name != COLUMN]
    read = of_reads(schema.names)
    for field in schema.fields:
        name = field.name
        if name in ANY and (name in VALUES or name not in read):
            check_type(name, field.dataType, ANY[name], "rows that name their topics")
        elif name not in (*ANY, *read):
            raise InvalidValueError(f"column {quoted(name)} is not a column of any topic; rename or drop it")
    if "content" not in names and "fields" not in names:
        raise InvalidValueError(
            f"column content is missing for rows that name their topics; the frame has topic, {', '.join(names)}"
        )
    if options.trust_slot and not {"slot", "content"} <= {*names}:
        raise InvalidValueError("trustSlot needs columns slot and content")


def columns_for(topic: Topic, schema: StructType) -> StructType:
    """Return the columns of a frame for several topics, without columns for topics of other types than this one."""
    own = VALUE_COLUMNS.get(topic.type)
    others = set(VALUE_COLUMNS.values()) - {own}
    if topic.type is not TopicType.STREAM:
        others.add("fields")
    return StructType([field for field in schema.fields if field.name not in others and field.name != COLUMN])


def by_topic(batch: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name of each topic in the rows of a record batch, and its rows in order.

    Raises:
        InvalidMessageError: The topic of a row is null, or not a valid name.
    """
    column = batch.column(COLUMN)
    for name in pc.unique(column).to_pylist():
        if name is None:
            row = batch.filter(pc.is_null(column)).slice(0, 1).to_pylist()[0]
            raise InvalidMessageError(f"row {row!r:.400}: column topic is null, and option topic is not set")
        if not is_name(name):
            rule = "it must be 1 to 128 characters of A-Z a-z 0-9 . _ -"
            raise InvalidMessageError(f"a row's topic is {name!r:.200}; {rule}")
        yield name, batch.filter(pc.equal(column, name))
