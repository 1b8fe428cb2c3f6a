"""The sinks: write a frame, or each micro-batch of a stream, to a topic."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmq._model.topics import Topic, TopicType
from rmq._sending.backpressure import blocks
from rmq._slots.registry import Registry
from rmq._transport.connections import Connections
from rmq._transport.durability import parse_durability
from rmq._transport.urls import parse_url
from rmq.errors import InvalidValueError
from rmq.spark.calls import Mark
from rmq.spark.options import Options
from rmq.spark.sink.bad_rows import BadRows
from rmq.spark.sink.columns import layout_of
from rmq.spark.sink.encoding import encode_rows
from rmq.spark.sink.pacing import Limit, TaskPace, limit_of
from rmq.spark.sink.sender import Counts, Sending, TaskSender

log = logging.getLogger("rmq.spark")


@dataclass
class Written(WriterCommitMessage):
    """The counts that a task reports to the driver."""

    counts: Counts


class _Sink:
    """What both sinks share. Made on the driver, where the topic and the columns are checked; then pickled.

    Raises:
        InvalidValueError: The columns do not fit the topic.
        UnknownTopicError: Nobody has registered the topic, and no option says what it is.
    """

    def __init__(self, schema: StructType, options: Options) -> None:
        if options.zookeeper:
            raise InvalidValueError("a sink takes no zookeeper: sending needs no ownership; leave the option out")
        self._options = options
        topic = _topic_of(options)
        self._layout = layout_of(schema, topic, options)
        self._limit = None if options.max_rate is None else limit_of(options.max_rate)
        self._sending = _sending(topic, options, self._limit)

    def _write(self, iterator: Iterator[Any], name: str, mark: Mark | None = None) -> Written:
        options, layout = self._options, self._layout
        folder = options.bad_rows_path if options.bad_rows == "collect" else None
        bad_rows = BadRows(layout, folder, name)
        connections = sink_connections(options)
        pace = None if self._limit is None else TaskPace(connections, layout.topic, self._limit)
        sender = TaskSender(connections, layout.topic, self._sending, bad_rows, mark, pace)
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
        finally:
            connections.close()
        counts.bad = bad_rows.count
        return Written(counts)

    def _report(self, messages: list[Any]) -> None:
        total = Counts()
        for message in messages:
            if isinstance(message, Written):
                total.add(message.counts)
        level = logging.WARNING if total.bad else logging.INFO
        log.log(level, "topic %s: %s", self._layout.topic.name, total)


class BatchWriter(_Sink, DataSourceArrowWriter):
    """Writes a frame to a topic.

    Guarantee: at least once. A task that is tried again sends again what it had sent: that merges with the backlog, is
    delivered once more where it was consumed meanwhile, and is a second entry in a stream.
    """

    def __init__(self, schema: StructType, options: Options) -> None:
        if options.idempotent:
            raise InvalidValueError(
                "idempotent is for writeStream: only there a batch that is run again has the same number as before"
            )
        super().__init__(schema, options)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Send one task's rows."""
        context = task_context()
        return self._write(iterator, f"part-{context.partitionId():05d}-{context.taskAttemptId()}")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log what was written."""
        self._report(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log what was written: nothing is taken back."""
        self._report(messages)


class StreamWriter(_Sink, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream to a topic.

    Guarantee: at least once, as `BatchWriter`. With `idempotent` a chunk that was sent is not sent again when its batch
    is run again with the same rows in the same partitions and order.
    """

    def __init__(self, schema: StructType, options: Options) -> None:
        super().__init__(schema, options)
        topic = self._layout.topic
        if options.idempotent and not takes_marks(topic):
            raise InvalidValueError(
                f"topic {topic.name} waits for room, drops what is too much, or is PRIORITY with a ttl: it cannot be "
                "combined with idempotent"
            )

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Send one task's rows of a batch."""
        context, mark = task_context(), None
        batch, query = (
            context.getLocalProperty("streaming.sql.batchId"),
            context.getLocalProperty("sql.streaming.queryId"),
        )
        if self._options.idempotent:
            if batch is None or query is None:
                raise InvalidValueError("Spark does not say which batch this is: idempotent needs micro-batches")
            mark = Mark(query, int(batch), context.partitionId(), self._options.mark_ttl_s)
        return self._write(iterator, f"batch-{batch}-part-{context.partitionId():05d}-{context.taskAttemptId()}", mark)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log what was written."""
        self._report(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log what was written: nothing is taken back."""
        self._report(messages)


def _topic_of(options: Options) -> Topic:
    """Register the topic that the options define, or read the one that they name."""
    connections = sink_connections(options)
    try:
        registry, new = Registry(connections), options.new_topic()
        return registry.get(options.needed_topic()) if new is None else registry.register(new)
    finally:
        connections.close()


def takes_marks(topic: Topic) -> bool:
    """Return whether chunks can be marked, so that they are sent once: not where a send may wait, drop or age."""
    return not (topic.drops or blocks(topic) or (topic.ttl and topic.type is TopicType.PRIORITY))


def _sending(topic: Topic, options: Options, limit: Limit | None) -> Sending:
    stream = topic.type is TopicType.STREAM
    if stream and options.merge == "partition":
        raise InvalidValueError(f"topic {topic.name} is STREAM: its entries never merge; leave option merge out")
    fold = not stream and options.merge != "none"
    chunk = options.chunk_size if limit is None else min(options.chunk_size, limit.burst)
    return Sending(fold, options.merge_rows, chunk, options.pipeline_depth)


def sink_connections(options: Options) -> Connections:
    """Return connections as a task's options say."""
    durability = parse_durability(options.durability, options.replicas)
    return Connections(parse_url(options.url), deadline_s=float(options.deadline_s), durability=durability)


def task_context() -> TaskContext:
    """Return the context of the running task.

    Raises:
        InvalidValueError: There is none.
    """
    context = TaskContext.get()
    if context is None:
        raise InvalidValueError("a sink can write only in a task of Spark")
    return context
