"""The sink with `redrive`: moves dead messages that were read as rows back into the backlog, each atomically."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType, TimestampType

from rmq import Redriven, Topic
from rmq.errors import InvalidMessageError, InvalidValueError
from rmq.spark.arrow import pa
from rmq.spark.figures import RedisTime
from rmq.spark.options import PLAN_S, Options, given
from rmq.spark.schema import lowered
from rmq.spark.sink.columns import TEXT, WHOLE
from rmq.spark.sink.sender import Counts, Limit, TaskPace, limit_of
from rmq.spark.sink.writer import Reporting, Written
from rmq.spark.slots import queue_topic
from rmq.spi.scripts import NACK_BATCH, Call, Connections, call_in_parts, new_score, redrive_dead

_NOT_OF_REDRIVES = frozenset(
    "type slots idempotent once txn_app txn_version merge merge_rows trust_slot when_passed bad_rows".split()
)
_NEEDED = {"slot": WHOLE, "content": TEXT, "died": (TimestampType,)}


class RedriveWriter(Reporting, DataSourceArrowWriter):
    """Moves dead messages, identified by slot, content and time of death, back into the backlog.

    Args:
        schema: Columns as a read with `queue=dead` returns them; `slot`, `content` and `died` are required.
        options: `time_range` or `priority` sets when they are due; by default at once, or at the lowest priority.
        limit: The rate limit; by default that of `max_rate`.

    Guarantee: each message is either dead or in the backlog at any time, even if the job fails. A message that is no
    longer dead, or that has died again since it was read, is skipped, so tasks can be retried.

    Raises:
        InvalidValueError: A column is missing or has another type, or an option cannot be combined with `redrive`.
        UnknownTopicError: The topic is not registered.
    """

    done = "redriven"

    def __init__(self, schema: StructType, options: Options, limit: Limit | None = None) -> None:
        refused = given(replace(options, idempotent=options.idempotent or None), _NOT_OF_REDRIVES)
        if refused:
            raise InvalidValueError(
                f"redrive cannot be combined with {', '.join(refused)}: it moves dead messages unchanged"
            )
        self._options = options
        with closing(options.connections(sending=True, most_s=PLAN_S)) as connections:
            name = options.needed_topic()
            self.topic = queue_topic(connections, name, "redrive its dead entries with rmq dead redrive")
        self.where = f"topic {name}"
        self._names = [name.lower() for name in schema.names]
        _check_columns(lowered(schema), self.topic)
        due_in = None if options.time_range_ms is None else timedelta(milliseconds=options.time_range_ms)
        self._score = new_score(self.topic, options.priority, due_in)
        self._overwrite = options.priority is not None or options.time_range_ms is not None
        self._limit = limit or limit_of(options.max_rate)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Move the dead messages of one task's rows, and return its counts."""
        counts = Counts()
        with closing(self._options.connections(sending=True)) as connections:
            pace = None if self._limit is None else TaskPace(connections, self.topic, self._limit)
            for batch in iterator:
                for slot, rows in _by_slot(self.topic, batch.rename_columns(self._names)).items():
                    self._move(connections, pace, slot, rows, counts)
                counts.rows += batch.num_rows
        return Written({self.topic.name: counts})

    def _move(
        self,
        connections: Connections,
        pace: TaskPace | None,
        slot: int,
        rows: Sequence[tuple[bytes, int]],
        counts: Counts,
    ) -> None:
        most = NACK_BATCH if self._limit is None else min(NACK_BATCH, self._limit.burst)
        for first in range(0, len(rows), most):
            part = rows[first : first + most]
            if pace is not None:
                pace.wait(len(part))
            time = RedisTime()
            with time.counted():
                answers = call_in_parts(connections, partial(self._call, slot), part)
            counts.redis_us += round(time.seconds * 1_000_000)
            absent = answers.count(Redriven.ABSENT)
            counts.new += answers.count(Redriven.DONE)
            counts.merged += answers.count(Redriven.MERGED)
            counts.skipped += absent
            if pace is not None:
                pace.give_back(absent)

    def _call(self, slot: int, rows: Sequence[tuple[bytes, int]]) -> Call[list[Redriven]]:
        contents, died_ms = [content for content, _ in rows], [died_ms for _, died_ms in rows]
        return redrive_dead(
            self.topic, slot, self._score, overwrite=self._overwrite, contents=contents, died_ms=died_ms
        )


def _check_columns(schema: StructType, topic: Topic) -> None:
    types = {field.name: field.dataType for field in schema.fields}
    for name, kinds in _NEEDED.items():
        if not isinstance(types.get(name), kinds):
            found = types[name].simpleString() if name in types else "missing"
            raise InvalidValueError(
                f"column {name} is {found}: a redrive on topic {topic.name} needs columns slot, content and "
                "died as spark.read with queue=dead returns them"
            )


def _by_slot(topic: Topic, batch: Any) -> dict[int, list[tuple[bytes, int]]]:
    """Return the rows of a batch by slot, as pairs of content and time of death in ms."""
    names = batch.schema.names
    content = batch.column("content").cast(pa.binary()).to_pylist()
    slot = batch.column("slot").cast(pa.int64()).to_pylist()
    died = batch.column("died")
    died_us = died.cast(pa.timestamp("us", died.type.tz)).cast(pa.int64()).to_pylist()
    topics = batch.column("topic").to_pylist() if "topic" in names else [topic.name] * len(slot)
    found: dict[int, list[tuple[bytes, int]]] = {}
    for row in zip(content, slot, died_us, topics, strict=True):
        if None in row or not 0 <= row[1] < topic.slots or row[3] != topic.name:
            raise InvalidMessageError(
                f"row (content, slot, died in us, topic) is {row!r:.400}; it must have no null, topic "
                f"{topic.name}, and a slot from 0 to {topic.slots - 1}",
                topic=topic.name,
            )
        found.setdefault(row[1], []).append((row[0], row[2] // 1_000))
    return found
