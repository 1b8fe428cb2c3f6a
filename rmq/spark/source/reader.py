"""The streaming source: reads a topic in batches that are identical after a crash, and acks committed batches.

The driver's process plans batches and acks them (`driver.py`, `log_driver.py`). `RmqStreamReader` reads queues: tasks
claim their part of a batch when they first read it, and read the same messages at every later attempt.
`LogStreamReader` reads a STREAM topic with a group: offsets are ids, and a batch is a range of ids. `ManyStreamReader`
reads several topics, with a separate driver for each, and one offset for all.
"""

from __future__ import annotations

import logging
import uuid
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from math import ceil
from typing import Any, Generic, TypeVar, cast

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from rmq import StreamEntry, Topic
from rmq.errors import InvalidValueError, RedisUnavailableError, ReplyLostError, RmqError, UnknownTopicError
from rmq.spark import entries
from rmq.spark.arrow import pa, pc, spark_types
from rmq.spark.calls import Chunk, Reading, read
from rmq.spark.figures import RedisTime, report_task
from rmq.spark.options import Options, check_log_source, check_replays, check_source, check_topic
from rmq.spark.schema import (
    MORE,
    check_payload,
    check_room,
    check_several,
    check_topic_has,
    entry_columns,
    fitting,
    for_one,
    more_of,
    parts_of,
    sends_of,
)
from rmq.spark.source.batches import VERSION, Batch, LogBatch, Part, cut, cut_slots, default_replays, parsed
from rmq.spark.source.driver import QueryDriver, data_lost, gathering_of, plan_together
from rmq.spark.source.log_driver import LogDriver
from rmq.spark.source.waiting import Gathering
from rmq.spi import monotonic_s
from rmq.spi.scripts import Connections, Dispatch, Registry, ages_for

TOGETHER, BATCH_BYTES = 4, 8 << 20
"""Number of chunks combined in one record batch, and size in bytes above which it gets no more chunks."""


@dataclass
class BatchPartition(InputPartition):
    """Part of a batch that one task reads: its chunks, and the topic's definition, so that tasks need not fetch it."""

    topic: Topic
    reading: Reading
    parts: tuple[Part, ...]


@dataclass
class SpansPartition(InputPartition):
    """Part of a batch that one task reads: for each slot its range of ids and its number of entries."""

    spans: tuple[tuple[int, str, str, int], ...]


D = TypeVar("D", QueryDriver, LogDriver)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[D]):
    """The steps of a query on one topic in the order in which Spark asks for them."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self._schema, self._options = schema, options
        self._driver: D | None = None

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that `maxMessagesPerTrigger` sets."""
        return ReadMaxRows(self._options.max_messages)

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Ack the batch that ends at `start`, which Spark has committed, and plan the next one, without claiming."""
        last, driver = self._batch(start), self._query()
        driver.ack(last)
        batch = driver.plan(last, rows_of(limit))
        return dict(start) if batch is None else batch.to_offset()

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the query to the messages that are due now, or the entries that exist now."""
        self._query().freeze()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return topic, metrics and number of remaining messages of the query, for Spark's progress report."""
        return None if self._driver is None else self._driver.figures.progress()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of the batch that ends at `end`, and keep it for its tasks."""
        batch, query = self._batch(end), self._query()
        return [] if batch.seq == self._batch(start).seq else self._parts(query, batch)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Ack a committed batch, unless `latestOffset` has already done so."""
        self._query().committed(self._batch(end))

    def stop(self) -> None:
        """Close the driver. Messages stay claimed and a group keeps its position, since the batch may be run again."""
        if self._driver is not None:
            self._driver.close()

    def _query(self) -> D:
        if self._driver is None:
            self._driver = self._new_driver()
        return self._driver

    @abstractmethod
    def _new_driver(self) -> D: ...

    @abstractmethod
    def _batch(self, offset: Mapping[str, Any]) -> Any:
        """Return the batch that ends at a logged offset."""

    @abstractmethod
    def _parts(self, query: D, batch: Any) -> list[InputPartition]:
        """Open a batch, and return its partitions."""


class RmqStreamReader(_StreamReader[QueryDriver]):
    """Reads a topic for Structured Streaming.

    Guarantee: a batch that is run again has the same rows. Messages are acked only after Spark has committed their
    batch, and not if other workers have claimed them meanwhile.
    """

    def __init__(self, schema: StructType, options: Options) -> None:
        check_source(options)
        super().__init__(schema, options)

    def initialOffset(self) -> dict[str, Any]:
        """Return the first offset of a new query, with a new query id."""
        return Batch(uuid.uuid4().hex, topic=self._options.needed_topic()).to_offset()

    def _new_driver(self) -> QueryDriver:
        return QueryDriver(self._options)

    def _batch(self, offset: Mapping[str, Any]) -> Batch:
        return Batch.from_offset(offset).of(self._options.needed_topic())

    def _parts(self, query: QueryDriver, batch: Batch, part: float = 1.0) -> list[InputPartition]:
        """Open a batch, and return its partitions; `part` is its share of the query's tasks and bytes."""
        driver, batch, owners = query.open(batch)
        fewest, most = self._options.task_numbers
        fewest = ceil(fewest * part)
        if owners:  # one task for all of a slot: its messages run one after the other
            fewest = min(fewest, len(batch.quotas))
        cuts = cut(batch, fewest, max(1, int(most * part)))
        given = self._options.max_replays
        given = default_replays(query.topic.max_retries) if given is None else given
        replays = 0 if batch.wary else given
        most_bytes = self._options.max_bytes
        share = batch.chunk_bytes(None if most_bytes is None else ceil(most_bytes * part))
        strict = self._options.fail_on_lease_lost
        bodies = parts_of(query.topic, self._schema.names).bodies
        reading = Reading(driver, batch.seq, batch.size, replays, strict, share, bodies)
        if not owners:
            return [BatchPartition(query.topic, reading, parts) for parts in cuts]
        own = [{slot: owners[slot] for slot, *_ in parts} for parts in cuts]
        return [
            BatchPartition(query.topic, replace(reading, owners=mine), parts)
            for mine, parts in zip(own, cuts, strict=True)
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one partition of a batch, a chunk at a time, claiming its messages the first time."""
        partition = cast(BatchPartition, partition)
        time = RedisTime()
        with closing(self._options.connections()) as connections:
            for chunks in _chunks(connections, partition, time):
                batch = to_arrow(self._schema, partition.topic, chunks)
                if batch.num_rows:
                    yield batch
            report_task(connections, partition.topic.name, partition.reading.driver.query, time)


class LogStreamReader(_StreamReader[LogDriver]):
    """Reads a STREAM topic for Structured Streaming.

    Guarantee: a batch that is run again has the same rows. By default, retention keeps entries that Spark has not
        committed.

    Raises:
        InvalidValueError: Option `group` is missing, or an option has no effect on this source.
    """

    def __init__(self, schema: StructType, options: Options, topic: Topic) -> None:
        check_log_source(topic, options)
        check_topic_has(topic.name, entry_columns(grouped=False), schema)
        super().__init__(schema, options)
        self._topic = topic

    def initialOffset(self) -> dict[str, Any]:
        """Return the first offset of a new query; its group is created with the first batch."""
        return LogBatch(uuid.uuid4().hex, self._topic.name, self._options.needed_group(self._topic)).to_offset()

    def _new_driver(self) -> LogDriver:
        return LogDriver(self._options, self._topic)

    def _batch(self, offset: Mapping[str, Any]) -> LogBatch:
        return LogBatch.from_offset(offset)

    def _parts(self, query: LogDriver, batch: LogBatch) -> list[InputPartition]:
        query.open(batch)
        found: list[InputPartition] = []
        for slots in cut_slots(batch, *self._options.task_numbers):
            spans = [(slot, batch.spans[slot].after, batch.ends[slot], batch.spans[slot].number) for slot in slots]
            found.append(SpansPartition(tuple(spans)))
        return found

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one partition of a batch, a page at a time."""
        group = self._options.needed_group(self._topic)
        time = RedisTime()
        with closing(self._options.connections()) as connections:
            for slot, after, end, number in cast(SpansPartition, partition).spans:
                found = 0
                pages = entries.pages(connections, self._topic, slot, f"({after}", end)
                while page := _next(pages, time):
                    found += len(page)
                    own = entries.for_group(page, group)
                    if own:
                        yield entries.to_arrow(self._schema, own)
                if found < number:
                    self._lost(slot, number - found, after, end)
            report_task(connections, self._topic.name, group, time)

    def _lost(self, slot: int, number: int, after: str, end: str) -> None:
        text = (
            f"topic {self._topic.name}: {number} entries of slot {slot} between {after} and {end} were "
            "trimmed or deleted after this batch was planned"
        )
        data_lost(self._options, text, self._topic.name, slot=slot)


def _next(pages: Iterator[list[StreamEntry]], time: RedisTime) -> list[StreamEntry]:
    """Return the next page, empty at the end."""
    with time.counted():
        return next(pages, list[StreamEntry]())


def rows_of(limit: ReadLimit) -> int | None:
    """Return the number of messages of a read limit; `None` for no limit."""
    return limit.max_rows if isinstance(limit, ReadMaxRows) else None


def _chunks(connections: Connections, partition: BatchPartition, time: RedisTime) -> Iterator[list[tuple[int, Chunk]]]:
    """Yield a partition's chunks with their slots, several at a time, while the next chunk is being read.

    Only one chunk is read ahead: it takes Redis some milliseconds, and a pipeline is executed without a break.
    """
    parts = partition.parts

    def ask(number: int, start: int = 0) -> Dispatch:
        return connections.dispatch([read(partition.topic, partition.reading, *parts[number], start)])

    under_way = ask(0)
    try:
        found: list[tuple[int, Chunk]] = []
        for number, (slot, *_) in enumerate(parts):
            with time.counted():
                (chunk,) = under_way.results()
                while isinstance(chunk, Chunk) and chunk.resume:
                    under_way = ask(number, chunk.resume)
                    (chunk,) = under_way.results()
            if number + 1 < len(parts):
                under_way = ask(number + 1)
            if isinstance(chunk, Exception):
                raise chunk
            found.append((slot, chunk))
            if len(found) == TOGETHER or sum(each.size_bytes for _, each in found) > BATCH_BYTES:
                yield found
                found = []
        if found:
            yield found
    finally:  # Spark may leave the rest unread
        under_way.close()


def to_arrow(schema: StructType, topic: Topic, chunks: Sequence[tuple[int, Chunk]]) -> Any:
    """Return chunks, given with their slots, as one record batch with the requested columns, the same at each read.

    `priority` and `due` are null for messages that were returned to the backlog before. `retries_left` is null, since
    it would differ between reads. `attempt` is that of the first read.
    """
    names = frozenset(schema.names)
    form = spark_types.to_arrow_schema(schema, timezone="UTC")
    scores = pa.array(list(chain.from_iterable(chunk.scores for _, chunk in chunks)), pa.int64())
    fresh = pc.if_else(pc.greater(scores, topic.max_retries), scores, None)
    columns: dict[str, Any] = {
        "topic": pa.repeat(topic.name, len(scores)),
        "slot": _joined([pa.repeat(slot, len(chunk.contents)) for slot, chunk in chunks]),
        "content": _joined([pa.array(chunk.contents, pa.binary()) for _, chunk in chunks]),
        "score": scores,
    }
    bodies = [chunk.bodies or [None] * len(chunk.contents) for _, chunk in chunks]
    sends: dict[str, list[Any]] | None = None
    if topic.merge is None:
        columns["body"] = _joined([pa.array(each, pa.binary()) for each in bodies])
    else:
        sends = sends_of(chain.from_iterable(bodies))
        columns |= {name: pa.array(sends[name], form.field(name).type) for name in sends if name in names}
    if "claim" in names:
        columns["claim"] = _joined([pa.repeat(chunk.claim, len(chunk.contents)) for _, chunk in chunks])
    if not names.isdisjoint(MORE):
        traces = [trace for _, chunk in chunks for trace in chunk.traces or [None] * len(chunk.contents)]
        more = more_of(names, topic, "store", scores.to_pylist(), traces, sends)
        columns |= {name: pa.array(each, form.field(name).type) for name, each in more.items()}
    if topic.type.timed:
        columns["due"] = pc.multiply(fresh, 1_000)
    else:
        ages = ages_for(topic.max_priority)
        priority = pc.if_else(pc.less(fresh, ages.scale), fresh, pc.divide(fresh, ages.scale))
        columns["priority"] = pc.min_element_wise(priority, ages.highest, skip_nulls=False)
    kinds = [(name, form.field(name).type) for name in schema.names]
    arrays = [columns[name].cast(kind) if name in columns else pa.nulls(len(scores), kind) for name, kind in kinds]
    return pa.RecordBatch.from_arrays(arrays, schema=form)


def _joined(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


log = logging.getLogger("rmq.spark")

FIND_S = 30.0
"""Interval at which a query looks for new topics that match its pattern, seconds."""


def to_offset(batches: Mapping[str, Batch]) -> dict[str, Any]:
    """Return the offset of a batch of several topics: topic -> its part of the batch."""
    return {"v": VERSION, "topics": {name: batch.to_offset() for name, batch in sorted(batches.items())}}


def from_offset(offset: Mapping[str, Any]) -> dict[str, Batch]:
    """Parse an offset of several topics.

    Raises:
        InvalidValueError: The offset was not written by a read of several topics.
    """

    def parse(offset: Mapping[str, Any]) -> dict[str, Batch]:
        return {str(name): Batch.from_offset(each) for name, each in offset["topics"].items()}

    return parsed(offset, parse, "a read of several topics", "; use a new checkpoint")


class ManyStreamReader(RmqStreamReader):
    """Reads several topics for Structured Streaming, with the guarantees of `RmqStreamReader` for each.

    With a pattern it reads all matching topics that can be read. A topic that cannot is omitted with a warning, and
    checked again from time to time, so that a newly registered topic does not end a running query. For topics of the
    checkpoint, such an error ends the query.
    """

    def __init__(self, schema: StructType, options: Options, names: Sequence[str]) -> None:
        super().__init__(schema, for_one(options, names[0]))
        self._given, self._names = options, list(names) if options.topic_pattern is None else []
        self._drivers: dict[str, QueryDriver] = {}
        self._new: dict[str, Batch] = {}
        self._left_out: dict[str, str] = {}
        self._find_s = 0.0
        self._frozen = self._found_frozen = False
        self._gathering: Gathering | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return the first offset of a new query, which has no topics."""
        return to_offset({})

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Ack the batch that ends at `start` on all topics, and plan the next one, without claiming."""
        last = from_offset(start)
        for name, batch in last.items():
            driver = self._driver_of_logged(name)
            if driver is not None:
                driver.ack(batch)
        if not self._found_frozen:
            self._find(last)
            self._freeze_found()
        for name in self._names:
            if name not in last:
                self._driver_of(name).join(self._begun(name).query)
        drivers = {name: self._driver_of(name) for name in self._names}
        if self._gathering is None:
            self._gathering = gathering_of(self._given, sum(driver.topic.slots for driver in drivers.values()))
        quotas = plan_together(drivers, self._gathering, rows_of(limit))
        if not quotas:
            return dict(start)
        following = {name: batch for name, batch in last.items() if name in self._names}
        for name, taken in quotas.items():
            batch = last.get(name) or self._begun(name)
            following[name] = batch.next(taken, wary=self._drivers[name].wary)
        return to_offset(following)

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the query to the messages that are due now in all topics."""
        self._frozen = True
        for name in self._names:
            self._driver_of(name).freeze()
        for topic in self._matching():  # `latestOffset` says why one is left out, or ends the query
            self._refusal(topic, self._freeze)

    def _freeze(self, topic: Topic) -> None:
        self._check(topic)
        self._driver_of(topic.name).freeze()

    def _matching(self) -> list[Topic]:
        """Return the topics that match the pattern now; none without a pattern."""
        if self._given.topic_pattern is None:
            return []
        with closing(self._given.connections()) as connections:
            return fitting(Registry(connections).definitions().topics, self._given)

    def _freeze_found(self) -> None:
        """Freeze topics that are not frozen yet: those of the checkpoint are known only at the first offset."""
        if self._frozen:
            self._found_frozen = True
            for driver in map(self._driver_of, self._names):
                if not driver.frozen:
                    driver.freeze()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the totals of remaining messages and the metrics of each topic, for Spark's progress report."""
        told = [self._drivers[name].figures.progress() for name in sorted(self._drivers)]
        sums = {name: sum(each[name] for each in told) for name in ("behind", "backlog", "in_flight")}
        left_out = {"left_out": self._left_out} if self._left_out else {}
        return {**sums, "topics": told, **left_out} if told else None

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of the batch that ends at `end`, and start renewing its leases."""
        before = from_offset(start)
        begun = {
            name: batch
            for name, batch in from_offset(end).items()
            if batch.seq > (before[name].seq if name in before else 0)
        }
        size = sum(batch.size for batch in begun.values())
        found: list[InputPartition] = []
        for name, batch in begun.items():
            found += self._parts(self._driver_of(name), batch, batch.size / size)
        return found

    def commit(self, end: Mapping[str, Any]) -> None:
        """Ack a committed batch, unless `latestOffset` has already done so."""
        for name, batch in from_offset(end).items():
            driver = self._driver_of_logged(name)
            if driver is not None:
                driver.committed(batch)

    def stop(self) -> None:
        """Stop renewing leases, and release owned slots. Messages stay claimed, since the batch may be run again."""
        for driver in self._drivers.values():
            driver.close()

    def _driver_of(self, name: str) -> QueryDriver:
        if name not in self._drivers:
            self._drivers[name] = QueryDriver(for_one(self._given, name))
        return self._drivers[name]

    def _driver_of_logged(self, name: str) -> QueryDriver | None:
        """Return the driver of a topic of the checkpoint; `None` if it is gone and `failOnDataLoss` is false."""
        try:
            return self._driver_of(name)
        except UnknownTopicError as error:
            if self._given.fail_on_data_loss:
                raise UnknownTopicError(
                    f"topic {name}, which is part of this checkpoint, is no longer registered; set failOnDataLoss "
                    "to false to continue without it",
                    topic=name,
                ) from error
            log.warning("topic %s is no longer registered; continuing without it, since failOnDataLoss is false", name)
            return None

    def _find(self, last: Collection[str]) -> None:
        """Add new topics that match the pattern, once per `FIND_S`; `last` has the topics of the checkpoint."""
        if self._given.topic_pattern is None or monotonic_s() < self._find_s:
            return
        found = {topic.name: topic for topic in self._matching()}
        for name in self._drivers.keys() - found.keys():  # the next look at it says that it is gone
            self._drivers.pop(name).close()
        known = [name for name in found if name in last or name in self._names]
        left_out = dict[str, str]()
        self._names = [*known]
        for name, topic in found.items():
            if name not in known and (why := self._refusal(topic, self._admit)):
                left_out[name] = why
            elif name not in known:
                log.info("the query now also reads topic %s", name)
                self._names.append(name)
        self._left_out, before = left_out, self._left_out
        for name, why in left_out.items() - before.items():
            log.warning("topic %s matches topicPattern, but cannot be read: %s", name, why)
        if left_out and not self._names:
            raise InvalidValueError(f"none of the topics that match topicPattern can be read: {left_out}")
        self._find_s = monotonic_s() + FIND_S

    def _refusal(self, topic: Topic, take: Callable[[Topic], None]) -> str:
        """Take a topic into the query; return the reason if it cannot be read, otherwise an empty text."""
        try:
            take(topic)
        except (RedisUnavailableError, ReplyLostError):
            raise
        except RmqError as error:
            driver = self._drivers.pop(topic.name, None)
            if driver is not None:
                driver.close()
            return str(error)
        return ""

    def _check(self, topic: Topic) -> None:
        """Raise an error for a topic that this query cannot read, by its definition."""
        options = for_one(self._given, topic.name)
        check_several(topic)
        check_topic(topic, options)
        check_replays(topic, options)
        check_payload(topic, self._schema.names)

    def _admit(self, topic: Topic) -> None:
        """Add a topic to the query.

        Raises:
            RmqError: The query cannot read the topic, for the reason in the message.
        """
        check_room(topic, len(self._names))
        self._check(topic)
        driver = self._driver_of(topic.name)
        driver.join(self._begun(topic.name).query)
        driver.probe()

    def _begun(self, name: str) -> Batch:
        """Return the initial batch of a topic that is not in the checkpoint."""
        return self._new.setdefault(name, Batch(uuid.uuid4().hex))
