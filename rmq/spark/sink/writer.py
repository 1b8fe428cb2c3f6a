"""The sinks: write a frame, or each micro-batch of a stream, to one topic, or each row to the topic that it names."""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from math import inf
from operator import attrgetter
from typing import Any, cast

from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmq import Topic, TopicType
from rmq.errors import InvalidValueError, RmqError, UnknownTopicError
from rmq.spark.arrow import pa
from rmq.spark.figures import report_write
from rmq.spark.marks import Mark, counts, note_cut
from rmq.spark.options import PLAN_S, Options, check_values
from rmq.spark.schema import PARTITION, lowered
from rmq.spark.sink.columns import KeyedRows, by_topic, check_routed, columns_for, keyed_by, routes
from rmq.spark.sink.encoding import open_folder
from rmq.spark.sink.sender import HELD_BYTES, Counts, Target, TaskWrite, WhenPassed, limit_of, target_of
from rmq.spi.scripts import Connections, Registry, blocks, confirm_all, sent_key

log = logging.getLogger("rmq.spark")


PASSED_S = 3_600
"""Lifetime of the marks of a finished write, seconds: an abandoned task may still be running."""

DONE = "done"
"""Field of a transaction's marks on slot 0 with the last version of which all rows were sent."""


@dataclass
class Written(WriterCommitMessage):
    """Report of a task to the driver: counts and marked slots by topic, and the query."""

    topics: dict[str, Counts]
    marked: dict[str, frozenset[int]] = field(default_factory=dict[str, frozenset[int]])
    query: str | None = None

    @property
    def counts(self) -> Counts:
        """The counts of all topics."""
        return Counts.total(self.topics.values())

    def to_json(self) -> str:
        """Return the counts as JSON, the form in which tasks of `write_parts` return them."""
        topics = {topic: asdict(counts) for topic, counts in self.topics.items()}
        return json.dumps([topics, {topic: list(slots) for topic, slots in self.marked.items()}])

    @classmethod
    def from_json(cls, text: str) -> Written:
        """Parse the result of `to_json`."""
        topics, marked = json.loads(text)
        counts = {topic: Counts(**found) for topic, found in topics.items()}
        return cls(counts, {topic: frozenset(slots) for topic, slots in marked.items()})


def totals(messages: Iterable[WriterCommitMessage | None]) -> dict[str, dict[str, int]]:
    """Return the total counts of all tasks by topic."""
    sums: dict[str, Counts] = {}
    for message in messages:
        for topic, task in message.topics.items() if isinstance(message, Written) else ():
            sums[topic] = Counts.total([sums.get(topic, Counts()), task])
    return {topic: asdict(total) for topic, total in sums.items()}


class Reporting:
    """Logs the counts of all tasks of a write, also if it is aborted: messages that were sent stay sent."""

    where = ""
    done = "written"

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:
        """Log the counts of all tasks."""
        total = Counts.total(message.counts for message in messages if isinstance(message, Written))
        log.log(logging.WARNING if total.bad else logging.INFO, "%s: %s: %s", self.where, self.done, total)

    abort = commit


class _Sink(Reporting, ABC):
    """Common base of both sinks. Created on the driver, which checks the topic and the columns; then pickled.

    If the rows name their topics, a task checks the columns when it reads the first row of a topic.

    Raises:
        InvalidValueError: The columns do not fit the topic.
        UnknownTopicError: The topic is not registered, and no options define it.
    """

    passed: WhenPassed = "fail"
    again = ""
    """The kind of write that may repeat a failed batch with other tasks, for an error; empty if none does."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self._given, self._options = lowered(schema), options
        self._keyed = keyed_by(self._given)
        self._schema = self._given
        if self._keyed is not None:
            self._schema = StructType([field for field in self._given.fields if field.name != PARTITION])
        if options.bad_rows_folder is not None:
            open_folder(options.bad_rows_folder)
        self._limit = limit_of(options.max_rate)
        self._target: Target | None = None
        self.where = "topics that the rows name"
        if routes(self._schema, options):
            check_routed(self._schema, options)
            return
        name, new = options.needed_topic(", or add a column topic with the topic of each row"), options.new_topic()
        # where a `foreachBatch` writes, Redis was there before, and may be away for a while
        most_s = PLAN_S if options.txn_app is None else inf
        with closing(options.connections(sending=True, most_s=most_s)) as connections:
            topic = self._registered(Registry(connections), name, new)
        self._target = self._target_on(topic)
        self.where = f"topic {topic.name}"

    def _registered(self, registry: Registry, name: str, new: Topic | None) -> Topic:
        """Return the topic's definition; registers `new` if given, unless the columns do not fit it."""
        try:
            topic = registry.get(name)
        except UnknownTopicError as error:
            if new is None:
                raise UnknownTopicError(f"{error}, or a write with type and slots", topic=name) from None
            topic = new
            self._target_on(topic)
        return topic if new is None else registry.register(new)

    def _target_on(self, topic: Topic) -> Target:
        check_values(topic, self._options)
        self._check(topic)
        target = target_of(self._schema, topic, self._options, self._limit)
        self._check_keyed(topic)
        return target

    def _check(self, topic: Topic) -> None:
        """Raise an error for options that the topic does not support."""

    def _check_keyed(self, topic: Topic) -> None:
        """Raise an error for rows that a retry may send from other partitions, if the topic counts every send."""
        if self._keyed is None and self.again and self._marks(topic) and counts(topic):
            raise InvalidValueError(
                f"topic {topic.name} counts every send, and {self.again} may send rows twice, from different "
                "partitions. Call rmq.spark.keyed(frame, partitions=n), with the same n each time, as the "
                "last step before the write"
            )

    @abstractmethod
    def _marks(self, topic: Topic) -> bool:
        """Return whether chunks sent to a topic are marked, so that they are not sent again."""

    @abstractmethod
    def _mark(self, topic: Topic) -> Mark:
        """Return the mark that identifies the running task."""

    def _is_done(self, connections: Connections, topic: Topic) -> bool:
        """Return whether all rows of this write for a topic were sent before."""
        del connections, topic
        return False

    def _write(self, iterator: Iterator[Any], name: str) -> Written:
        writes: dict[str, TaskWrite] = {}
        with closing(self._options.connections(sending=True)) as connections, ExitStack() as undo:
            for batch in self._batches(iterator):
                parts = by_topic(batch) if self._target is None else [(self._target.topic.name, batch)]
                for topic, rows in parts:
                    if topic not in writes:
                        if self._keyed is not None:  # one topic comes after the other
                            _flush(writes.values())
                        writes[topic] = self._begin(connections, topic, name)
                        undo.callback(writes[topic].close)
                    writes[topic].take(rows)
                    if self._keyed is None:
                        self._relieve(writes.values())
            topics = {topic: write.finish() for topic, write in writes.items()}
            undo.pop_all()
        return Written(topics, {topic: write.slots for topic, write in writes.items()})

    def _batches(self, iterator: Iterator[Any]) -> Iterator[Any]:
        batches = (given.rename_columns(self._given.names) for given in iterator)
        if self._keyed is None:
            return batches
        return KeyedRows(self._keyed, task_context().partitionId(), self._schema.names).of(batches)

    def _relieve(self, writes: Collection[TaskWrite]) -> None:
        """Send the buffers of the topics with the most bytes while the task holds more than its limit."""
        if len(writes) == 1:
            return
        while (over := sum(write.held.size_bytes for write in writes) > HELD_BYTES) or (
            sum(write.held.number for write in writes) > self._options.merge_rows
        ):
            key = attrgetter("held.size_bytes" if over else "held.number")
            _flush([max(writes, key=key)])

    def _begin(self, connections: Connections, name: str, task: str) -> TaskWrite:
        target = self._target
        if target is None:
            topic = Registry(connections).get(name)
            self._check(topic)
            self._check_keyed(topic)
            schema = columns_for(topic, self._schema)
            target = replace(target_of(schema, topic, self._options, self._limit), columns=tuple(schema.names))
        else:  # Redis may have been emptied since the write or the query began, and the topic registered anew
            Registry(connections).register(target.topic)
        mark = self._mark(target.topic) if self._marks(target.topic) else None
        task = task if target is self._target else f"{task}-{name}"  # a file of bad rows has no column topic
        passed = cast("WhenPassed", self._options.when_passed or self.passed)
        done = self._is_done(connections, target.topic)
        if self._keyed is not None and mark is not None and counts(target.topic) and not done:
            note_cut(connections, target.topic, mark, target.cut(self._keyed.partitions))
        return TaskWrite(connections, target, self._options.bad_rows_folder, task, mark, passed, done=done)


class BatchWriter(_Sink, DataSourceArrowWriter):
    """Writes a frame to a topic.

    Guarantee: at least once. A task that is retried sends its messages again: they merge with the backlog, are
    delivered again if they were consumed meanwhile, and are second entries in a stream. On a topic with `merge=` each
    row counts once, even if a task is retried with the same rows, or a job is run again with the same `once`. With
    `txnAppId` and `txnVersion`, a version that was written completely is not written again; one that failed is
    continued if its rows are in the same partitions and order.
    """

    def __init__(self, schema: StructType, options: Options) -> None:
        self.passed = "collect" if options.bad_rows == "collect" else "fail"
        self._name = f"write-{uuid.uuid4().hex if options.once is None else _digest(options.once)}"
        if options.txn_app is not None:
            self._name = f"txn-{_digest(options.txn_app)}"
        named = {"txnAppId": options.txn_app, "once": options.once}
        self.again = next((f"a write with {name}" for name, value in named.items() if value is not None), "")
        super().__init__(schema, options)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Send the rows of one task, and return its counts."""
        context = task_context()
        return self._write(iterator, f"part-{context.partitionId():05d}-{context.taskAttemptId()}")

    def _check(self, topic: Topic) -> None:
        _check_names(self._options, merges=topic.merge is not None)
        if self._options.txn_app is not None and not takes_marks(topic):
            raise _no_marks(topic, "txnAppId")

    def _marks(self, topic: Topic) -> bool:
        options = self._options
        return options.txn_app is not None or (topic.merge is not None and options.idempotent is not False)

    def _mark(self, topic: Topic) -> Mark:
        options = self._options
        return Mark(self._name, options.txn_version or 0, task_context().partitionId(), options.mark_ttl_s)

    def _is_done(self, connections: Connections, topic: Topic) -> bool:
        options = self._options
        if options.txn_app is None:
            return False
        done = _last_done(connections, topic.name, self._name) >= (options.txn_version or 0)
        if done:  # who wrote it may have asked for less than `durability`
            confirm_all(connections, topic)
        return done

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:
        """Log the counts, record a transaction's version, and shorten the lifetime of marks that no retry can use."""
        super().commit(messages, batchId)
        marked: dict[str, frozenset[int]] = {}
        for message in messages:
            for topic, slots in (message.marked if isinstance(message, Written) else {}).items():
                marked[topic] = marked.get(topic, frozenset()) | slots
        app = self._options.txn_app
        if app is not None:
            report_write(self._options, "write", app, self._options.txn_version or 0, totals(messages))
        try:
            with closing(self._options.connections()) as connections:
                if app is not None:
                    self._note_done(connections, marked)
                elif self._options.once is None:
                    self._forget_soon(connections, marked)
        except RmqError as error:  # the write has succeeded; its marks tell the same, and go by themselves, later
            log.warning(
                "%s: the write succeeded, but the marks of its rows in Redis were not updated: %s", self.where, error
            )

    def _note_done(self, connections: Connections, marked: dict[str, frozenset[int]]) -> None:
        version = self._options.txn_version or 0
        for topic in marked:
            key = sent_key(topic, 0, self._name)
            if _last_done(connections, topic, self._name) < version:
                connections.command("HSET", key, DONE, version, key=key)
                connections.command("EXPIRE", key, self._options.mark_ttl_s, key=key)

    def _forget_soon(self, connections: Connections, marked: dict[str, frozenset[int]]) -> None:
        for topic, slots in marked.items():
            for slot in slots:
                key = sent_key(topic, slot, self._name)
                connections.command("EXPIRE", key, PASSED_S, key=key)


class StreamWriter(_Sink, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream to a topic.

    Guarantee: at least once, as for `BatchWriter`. With `idempotent`, the default for topics with `merge=`, chunks are
    not sent again if their batch is run again with the same rows in the same partitions and order. On topics with
    `merge=` the order makes no difference for up to `mergeRows` contents.
    """

    passed, again = "now", "a streaming query"

    def __init__(self, schema: StructType, options: Options) -> None:
        if options.once is not None or options.txn_app is not None:
            raise InvalidValueError(
                "once and txnAppId are options of write. A stream is identified by its checkpoint: use idempotent"
            )
        super().__init__(schema, options)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Send the rows of one task of a batch, and return its counts."""
        context = task_context()
        batch = context.getLocalProperty("streaming.sql.batchId")
        name = f"batch-{batch}-part-{context.partitionId():05d}-{context.taskAttemptId()}"
        return replace(self._write(iterator, name), query=context.getLocalProperty("sql.streaming.queryId"))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:
        """Log the counts, and add them to the metrics of the query."""
        super().commit(messages, batchId)
        query = next((each.query for each in messages if isinstance(each, Written)), None)
        if query is not None:
            report_write(self._options, "sink", query, batchId, totals(messages))

    def _check(self, topic: Topic) -> None:
        if self._marks(topic) and not takes_marks(topic):
            raise _no_marks(topic, "idempotent")

    def _marks(self, topic: Topic) -> bool:
        given = self._options.idempotent
        return topic.merge is not None if given is None else given

    def _mark(self, topic: Topic) -> Mark:
        context = task_context()
        batch = context.getLocalProperty("streaming.sql.batchId")
        query = context.getLocalProperty("sql.streaming.queryId")
        if batch is None or query is None:
            raise InvalidValueError("idempotent needs micro-batches: Spark passed no batch number")
        return Mark(query, int(batch), context.partitionId(), self._options.mark_ttl_s)


def _flush(writes: Iterable[TaskWrite]) -> None:
    for write in writes:
        write.flush()


def _last_done(connections: Connections, topic: str, name: str) -> int:
    """Return the last version of a transaction that was written completely, -1 for none."""
    key = sent_key(topic, 0, name)
    found = connections.command("HGET", key, DONE, key=key)
    return int(found) if found else -1


def _no_marks(topic: Topic, option: str) -> InvalidValueError:
    return InvalidValueError(
        f"{option} cannot be used on topic {topic.name}: a topic without merge= must neither block nor drop "
        "sends when it is full, nor be PRIORITY with a ttl"
    )


def takes_marks(topic: Topic) -> bool:
    """Return whether chunks for a topic can be marked, so that they are sent once.

    Without `merge=` they cannot if sends may wait or be dropped, or messages age by a `ttl`.
    """
    if topic.merge is not None:
        return True
    return not (topic.drops or blocks(topic) or (topic.ttl and topic.type is TopicType.PRIORITY))


def _check_names(options: Options, *, merges: bool) -> None:
    """Raise an error for options that identify the calls of a `write` if these cannot be identified."""
    if options.idempotent and not merges and options.txn_app is None:
        raise InvalidValueError(
            "idempotent is for writeStream, and for topics with merge=: only a stream repeats a batch under the "
            "same number. In foreachBatch, set txnAppId, and set txnVersion to the number of the batch"
        )
    if options.once is not None and (not merges or options.idempotent is False):
        raise InvalidValueError(
            f"once is {options.once!r}; it can be used only on topics with merge=, and not with idempotent=false"
        )


def _digest(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()


def task_context() -> TaskContext:
    """Return the context of the running task.

    Raises:
        InvalidValueError: No Spark task is running.
    """
    context = TaskContext.get()
    if context is None:
        raise InvalidValueError("the sink must be called in a Spark task")
    return context


def write_parts(frame: DataFrame, writer: DataSourceArrowWriter) -> list[Written]:
    """Write a frame as the sink does, and return the report of each task's last attempt.

    Spark's own write of a data source returns nothing.
    """

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        written = cast("Written", cast("Any", writer).write(batches))
        yield pa.RecordBatch.from_pylist([{"written": written.to_json()}])

    rows = cast("Any", frame).mapInArrow(write, "written string").collect()  # mapInArrow has no full types
    return [Written.from_json(row["written"]) for row in rows]


def write_counted(frame: DataFrame, writer: DataSourceArrowWriter) -> Counts:
    """Write a frame as the sink does, and return the total counts of each task's last attempt."""
    return Counts.total(part.counts for part in write_parts(frame, writer))
