"""The sinks: write a frame, or each micro-batch of a stream, to a topic."""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmq._model.topics import Topic, TopicType
from rmq._scripts.keys import sent_key
from rmq._sending.backpressure import blocks
from rmq._slots.registry import Registry
from rmq.errors import InvalidValueError, RmqError
from rmq.spark.arrow import pa
from rmq.spark.marks import Mark
from rmq.spark.options import Options
from rmq.spark.sink.bad_rows import BadRows
from rmq.spark.sink.columns import layout_of
from rmq.spark.sink.encoding import encode_rows
from rmq.spark.sink.pacing import TaskPace, limit_of
from rmq.spark.sink.sender import Counts, Sending, TaskSender

log = logging.getLogger("rmq.spark")


PASSED_S = 3_600
"""How long the marks of a write are kept that has ended, seconds: a task that was given up may still be at work."""


@dataclass
class Written(WriterCommitMessage):
    """What a task reports to the driver: its counts, and the slots that it left marks in."""

    counts: Counts
    marked: frozenset[int] = frozenset()


class Reporting:
    """Logs what all tasks of a write did, also where it is aborted: nothing is taken back."""

    topic: Topic
    done = "written"

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:
        """Log what was done."""
        total = Counts.total(message.counts for message in messages if isinstance(message, Written))
        log.log(logging.WARNING if total.bad else logging.INFO, "topic %s: %s: %s", self.topic.name, self.done, total)

    abort = commit


class _Sink(Reporting):
    """What both sinks share. Made on the driver, where the topic and the columns are checked; then pickled.

    Raises:
        InvalidValueError: The columns do not fit the topic.
        UnknownTopicError: Nobody has registered the topic, and no option says what it is.
    """

    def __init__(self, schema: StructType, options: Options) -> None:
        self._options, new = options, options.new_topic()
        with closing(options.connections(sending=True)) as connections:
            registry = Registry(connections)
            self.topic = registry.get(options.needed_topic()) if new is None else registry.register(new)
        self._layout = layout_of(schema, self.topic, options)
        self._limit = limit_of(options.max_rate)
        stream = self.topic.type is TopicType.STREAM
        if stream and options.merge == "partition":
            raise InvalidValueError(
                f"topic {self.topic.name} is STREAM: its entries never merge; leave option merge out"
            )
        chunk = options.chunk_size if self._limit is None else min(options.chunk_size, self._limit.burst)
        if blocks(self.topic) and self.topic.merge is not None:  # a marked chunk waits for room as a whole
            chunk = max(1, min(chunk, self.topic.max_backlog_per_slot // 2))
        fold = not stream and options.merge != "none"
        self._sending = Sending(fold, options.merge_rows, chunk, options.pipeline_depth)

    def _write(self, iterator: Iterator[Any], name: str, mark: Mark | None = None) -> Written:
        options, layout = self._options, self._layout
        folder = options.bad_rows_path if options.bad_rows == "collect" else None
        bad_rows = BadRows(layout, folder, name)
        with closing(options.connections(sending=True)) as connections:
            pace = None if self._limit is None else TaskPace(connections, self.topic, self._limit)
            sender = TaskSender(connections, self.topic, self._sending, bad_rows, mark, pace)
            sample = True
            try:
                for batch in iterator:
                    good, bad = encode_rows(layout, batch, sample=sample)
                    sample = sample and not batch.num_rows
                    bad_rows.take(batch, bad)
                    sender.add(good, batch.nbytes)
                    sender.counts.rows += batch.num_rows
                counts = sender.finish()
                bad_rows.keep()
            except BaseException:
                sender.close()
                bad_rows.drop()
                raise
        counts.bad = bad_rows.count
        return Written(counts, frozenset() if mark is None else sender.slots)


class BatchWriter(_Sink, DataSourceArrowWriter):
    """Writes a frame to a topic.

    Guarantee: at least once. A task that is tried again sends again what it had sent: that merges with the backlog, is
    delivered once more where it was consumed meanwhile, and is a second entry in a stream. Where the topic merges by
    `merge=`, each row counts once, also in a task that is tried again with the same rows; and in a job that is, with
    the same `once`.
    """

    def __init__(self, schema: StructType, options: Options) -> None:
        if options.new_topic() is not None:  # such a topic does not merge: said before it is registered
            _check_names(options, merges=False)
        super().__init__(schema, options)
        merges = self.topic.merge is not None
        _check_names(options, merges=merges)
        name = uuid.uuid4().hex if options.once is None else _digest(options.once)
        self._name = name if merges and options.idempotent is not False else None

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Send one task's rows."""
        context, mark = task_context(), None
        if self._name is not None:
            mark = Mark(f"write-{self._name}", 0, context.partitionId(), self._options.mark_ttl_s)
        return self._write(iterator, f"part-{context.partitionId():05d}-{context.taskAttemptId()}", mark)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:
        """Log what was done, and let the marks of a write that nobody can repeat go soon."""
        super().commit(messages, batchId)
        slots = frozenset[int]().union(*(message.marked for message in messages if isinstance(message, Written)))
        if self._name is None or self._options.once is not None:
            return
        try:
            with closing(self._options.connections()) as connections:
                for slot in slots:
                    key = sent_key(self.topic.name, slot, f"write-{self._name}")
                    connections.command("EXPIRE", key, PASSED_S, key=key)
        except RmqError as error:  # the write has succeeded; its marks go by themselves, later
            log.warning("topic %s: marks of a write are kept for longer: %s", self.topic.name, error)


class StreamWriter(_Sink, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream to a topic.

    Guarantee: at least once, as `BatchWriter`. With `idempotent`, which is the default where the topic merges by
    `merge=`, a chunk that was sent is not sent again when its batch is run again with the same rows in the same
    partitions and order; where the topic merges, the order makes no difference for as many contents as `mergeRows`.
    """

    def __init__(self, schema: StructType, options: Options) -> None:
        super().__init__(schema, options)
        if options.once is not None:
            raise InvalidValueError("once is for write: a stream is named by its checkpoint")
        self._marks = self.topic.merge is not None if options.idempotent is None else options.idempotent
        if self._marks and not takes_marks(self.topic):
            raise InvalidValueError(
                f"topic {self.topic.name} waits for room, drops what is too much, or is PRIORITY with a ttl: it cannot "
                "be combined with idempotent"
            )

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Send one task's rows of a batch."""
        context, mark = task_context(), None
        batch = context.getLocalProperty("streaming.sql.batchId")
        query = context.getLocalProperty("sql.streaming.queryId")
        if self._marks:
            if batch is None or query is None:
                raise InvalidValueError("Spark does not say which batch this is: idempotent needs micro-batches")
            mark = Mark(query, int(batch), context.partitionId(), self._options.mark_ttl_s)
        return self._write(iterator, f"batch-{batch}-part-{context.partitionId():05d}-{context.taskAttemptId()}", mark)


def takes_marks(topic: Topic) -> bool:
    """Return whether chunks can be marked, so that they are sent once.

    Without `merge=` not where a send may wait, drop or age: there it merges.
    """
    if topic.merge is not None:
        return True
    return not (topic.drops or blocks(topic) or (topic.ttl and topic.type is TopicType.PRIORITY))


def _check_names(options: Options, *, merges: bool) -> None:
    """Refuse options that name the calls of a `write` where they can't be named."""
    if options.idempotent and not merges:
        raise InvalidValueError(
            "idempotent is for writeStream, and for topics with merge=: only in a stream a batch that is run again has "
            "the same number as before"
        )
    if options.once is not None and (not merges or options.idempotent is False):
        raise InvalidValueError(f"once is {options.once!r}; it is for topics with merge=, without idempotent=false")


def _digest(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()


def task_context() -> TaskContext:
    """Return the context of the running task.

    Raises:
        InvalidValueError: There is none.
    """
    context = TaskContext.get()
    if context is None:
        raise InvalidValueError("a sink can write only in a task of Spark")
    return context


def write_counted(frame: DataFrame, writer: DataSourceArrowWriter) -> Counts:
    """Write a frame as the sink does, and return the counts of all tasks, each as its last attempt saw them.

    A data source's own write has no answer.
    """

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        written = cast("Written", cast("Any", writer).write(batches))
        yield pa.RecordBatch.from_pylist([asdict(written.counts)])

    columns = ", ".join(f"{field.name} bigint" for field in fields(Counts))
    rows = cast("Any", frame).mapInArrow(write, columns).collect()  # mapInArrow has no full types
    return Counts.total(Counts(**row.asDict()) for row in rows)
