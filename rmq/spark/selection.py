"""Which columns a read has, which it offers beside them, and what Redis has to send for them."""

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
"""Stands for the usual columns in the option `columns`."""

_OF_BODIES = frozenset("body trace merged first_sent last_sent value items wanted version".split())
_OF_REASONS = frozenset("error_type error_message attempts first_failed last_failed".split())


def offered(topic: Topic, options: Options, usual: StructType) -> StructType:
    """Return the columns that a read can give: the usual ones, and those that have to be asked for."""
    if topic.type is TopicType.STREAM:
        return usual
    return StructType(
        [*usual.fields, *(field for field in more_columns(options.queue) if field.name not in usual.names)]
    )


def chosen(topics: Sequence[Topic], options: Options, usual: StructType) -> StructType:
    """Return the columns of a read of some topics: the usual ones, unless the option `columns` names others.

    Raises:
        InvalidValueError: One that a read of this topic does not have.
    """
    if options.columns is None:
        return usual
    there = offered(topics[0], options, usual)
    names = [each for name in options.columns for each in (usual.names if name == USUAL else [name])]
    for name in names:
        if name not in there.names:
            raise InvalidValueError(
                f"option columns names {shown(name, 60)}, which is not a column of a read of topic "
                f"{names_of(topics)}: {told(name, there)}"
            )
    return StructType([there[name] for name in dict.fromkeys(names)])


def check_chosen(options: Options, schema: StructType) -> None:
    """Refuse a schema of the user's own beside the option `columns`, where the two differ.

    Raises:
        InvalidValueError: It names the column.
    """
    for name in options.columns or ():
        if name not in (USUAL, *schema.names):
            raise InvalidValueError(
                f"option columns names {name}, and schema() is without it: give one of the two, columns or schema()"
            )


def parts_of(topic: Topic, names: Collection[str]) -> Parts:
    """Return what has to be read for columns with these names, beside contents and scores."""
    bodies = not _OF_BODIES.isdisjoint(names) or (topic.merge is not None and "sent" in names)
    return Parts(bodies=bodies, reasons=not _OF_REASONS.isdisjoint(names))


def attempt_of(topic: Topic, place: AnyPlace, score: int) -> int | None:
    """Return the number of a message's delivery, from 1: of the one in flight, else of the next one."""
    if place == "dead":
        return None
    left = meaning_of(topic, place, score)[1]
    return 1 if left is None else topic.max_retries - left + (2 if place == "retry" else 1)


def sent_of(topic: Topic, place: AnyPlace, scores: Sequence[int]) -> list[int | None]:
    """Return when messages were sent, in microseconds, where their scores in store say so; else `None` for each."""
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
    """Return those of the columns that have to be asked for which are among `names`.

    Args:
        names: The columns that are wanted.
        topic: The definition.
        place: Where the messages lie.
        scores: Their scores there.
        traces: The trace contexts that came with them, empty for none.
        sends: Of a topic that merges: what its records say, see `sends_of`.
    """
    found: dict[str, Sequence[Any]] = {}
    if "attempt" in names:
        found["attempt"] = [attempt_of(topic, place, score) for score in scores]
    if "sent" in names:
        found["sent"] = sent_of(topic, place, scores) if sends is None else sends["first_sent"]
    if "trace" in names:
        found["trace"] = [trace or None for trace in (traces if sends is None else sends["trace"])]
    return found
