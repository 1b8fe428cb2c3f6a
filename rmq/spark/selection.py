"""The default and optional columns of a read, and the parts of messages that they require from Redis."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pyspark.sql.types import StructType

from rmq._model.display import shown
from rmq._model.scores import ages_for
from rmq._model.topics import Topic, TopicType
from rmq._model.whereabouts import AnyPlace, meaning_of
from rmq.errors import InvalidValueError
from rmq.spark.calls import Parts
from rmq.spark.options import Options
from rmq.spark.schema import more_columns, told
from rmq.spark.subscription import names_of

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
