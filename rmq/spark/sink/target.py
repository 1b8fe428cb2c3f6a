"""The target of a write: a topic, checked on the driver, and the write of one task to it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.types import StructType

from rmq._model.merging import Collect
from rmq._model.topics import Topic, TopicType
from rmq._sending.backpressure import blocks
from rmq._transport.connections import Connections
from rmq.errors import InvalidValueError
from rmq.spark.marks import Cut, Mark
from rmq.spark.options import Options
from rmq.spark.sink.bad_rows import BadRows
from rmq.spark.sink.columns import Layout, layout_of
from rmq.spark.sink.encoding import encode_rows
from rmq.spark.sink.pacing import Limit, TaskPace
from rmq.spark.sink.sender import Counts, Sending, TaskSender, WhenPassed

COLLECTED_BYTES = 4 * 1_048_576
"""Maximum size of the items that one chunk rewrites, by the topic's bound, bytes: a chunk is one script call."""


@dataclass(frozen=True)
class Target:
    """Settings for the writes to one topic.

    Attributes:
        layout: The columns of the frame for this topic.
        sending: Settings of the sends.
        limit: Rate limit of all tasks; `None` for no limit.
        columns: Columns to write, for a frame with rows for several topics; `None` for all columns.
    """

    layout: Layout
    sending: Sending
    limit: Limit | None = None
    columns: tuple[str, ...] | None = None

    @property
    def topic(self) -> Topic:
        """The registered definition."""
        return self.layout.topic

    def cut(self, partitions: int) -> Cut:
        """Return the division of the rows into calls, for this number of tasks."""
        return Cut(partitions, self.sending.hold if self.sending.fold else 0, self.sending.chunk)


def target_of(schema: StructType, topic: Topic, options: Options, limit: Limit | None) -> Target:
    """Return the settings for a write of a frame to a topic.

    Raises:
        InvalidValueError: The columns or options do not fit the topic.
    """
    layout = layout_of(schema, topic, options)
    stream = topic.type is TopicType.STREAM
    if stream and options.merge == "partition":
        raise InvalidValueError(f"topic {topic.name} is STREAM, and its entries are never merged: remove option merge")
    if options.when_passed is not None and topic.type is not TopicType.FIXED_TIME:
        raise InvalidValueError(
            f"whenPassed is {options.when_passed!r}, but topic {topic.name} is {topic.type.name}: the "
            "option is for FIXED_TIME topics"
        )
    chunk = options.chunk_size if limit is None else min(options.chunk_size, limit.burst)
    if blocks(topic) and topic.merge is not None:  # a marked chunk waits for room as a whole
        chunk = max(1, min(chunk, topic.max_backlog_per_slot // 2))
    if topic.merge is not None and isinstance(topic.merge.reduce, Collect):  # a chunk rewrites what is collected
        chunk = max(1, min(chunk, COLLECTED_BYTES // topic.merge.reduce.max_bytes))
    fold = not stream and options.merge != "none"
    return Target(layout, Sending(fold, options.merge_rows, chunk, options.pipeline_depth), limit)


class TaskWrite(TaskSender):
    """Write of one task to one topic, as record batches. It ends with `finish`, or with `close` after an error.

    Args:
        connections: Connections to Redis.
        target: Settings for the topic.
        folder: Folder for bad rows; `None` to fail the task at the first one.
        name: Name of the task and its attempt, for files of bad rows.
        mark: Identifies the task, so that a retry does not send its chunks again; `None` for no marks.
        passed: Handling of a fixed time that is past when it arrives at Redis.
        done: Whether all rows were sent before, so that they are only counted as skipped.
    """

    def __init__(
        self,
        connections: Connections,
        target: Target,
        folder: str | None,
        name: str,
        mark: Mark | None,
        passed: WhenPassed,
        *,
        done: bool = False,
    ) -> None:
        self._target, self._was_done = target, done
        pace = None if target.limit is None else TaskPace(connections, target.topic, target.limit)
        bad_rows = BadRows(target.layout, folder, name)
        super().__init__(connections, target.topic, replace(target.sending, passed=passed), bad_rows, mark, pace)

    def take(self, batch: Any) -> None:
        """Encode and buffer a `pyarrow.RecordBatch`, sending the buffer whenever it is full."""
        self.counts.rows += batch.num_rows
        if self._was_done:
            self.counts.skipped += batch.num_rows
            return
        if self._target.columns is not None:
            batch = batch.select(list(self._target.columns))
        good, bad = encode_rows(self._target.layout, batch)
        self._bad_rows.take(batch, bad)
        self.add(good)

    def finish(self) -> Counts:
        """Send the buffered rows, close the file of bad rows, and return the counts."""
        counts = super().finish()
        self._bad_rows.keep()
        counts.bad = self._bad_rows.count
        return counts

    def close(self) -> None:
        """Discard outstanding replies, and delete an unfinished file of bad rows."""
        super().close()
        self._bad_rows.drop()
