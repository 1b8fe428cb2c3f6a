"""The streaming source: reads a topic in batches that are identical after a crash, and acks committed batches.

The driver's process plans batches, renews their leases and acks them (`driver.py`). Tasks claim their part of a batch
when they first read it, and read the same messages at every later attempt.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from math import ceil
from typing import Any, cast

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from rmq._model.scores import ages_for
from rmq._model.topics import Topic
from rmq._transport.connections import Connections
from rmq._transport.dispatch import Dispatch
from rmq.spark.arrow import pa, pc, spark_types
from rmq.spark.calls import Chunk, Reading, read
from rmq.spark.option_checks import check_source
from rmq.spark.options import Options
from rmq.spark.redis_time import RedisTime
from rmq.spark.schema import MORE
from rmq.spark.selection import more_of, parts_of
from rmq.spark.sends import sends_of
from rmq.spark.source.batches import Batch, Part, cut, default_replays
from rmq.spark.source.driver import QueryDriver
from rmq.spark.source.figures import report_task

TOGETHER, BATCH_BYTES = 4, 8 << 20
"""Number of chunks combined in one record batch, and size in bytes above which it gets no more chunks."""


@dataclass
class BatchPartition(InputPartition):
    """Part of a batch that one task reads: its chunks, and the topic's definition, so that tasks need not fetch it."""

    topic: Topic
    reading: Reading
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        super().__init__(self.parts)


class RmqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a topic for Structured Streaming.

    Guarantee: a batch that is run again has the same rows. Messages are acked only after Spark has committed their
    batch, and not if other workers have claimed them meanwhile.
    """

    def __init__(self, schema: StructType, options: Options) -> None:
        check_source(options)
        self._schema, self._options = schema, options
        self._driver: QueryDriver | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return the first offset of a new query, with a new query id."""
        return Batch(uuid.uuid4().hex, topic=self._options.needed_topic()).to_offset()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that `maxMessagesPerTrigger` sets."""
        return ReadMaxRows(self._options.max_messages)

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Ack the batch that ends at `start`, which Spark has committed, and plan the next one, without claiming."""
        last, driver = self._batch(start), self._query()
        driver.ack(last)
        quotas = driver.plan(limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        return last.next(quotas, wary=driver.wary).to_offset() if quotas else dict(start)

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the query to the messages that are due now."""
        self._query().freeze()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the topic, metrics and numbers of remaining messages of the query, for Spark's progress report."""
        return None if self._driver is None else self._driver.figures.progress()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of the batch that ends at `end`, and start renewing its leases."""
        batch, query = self._batch(end), self._query()
        if batch.seq == Batch.from_offset(start).seq:
            return []
        return self._parts(query, batch)

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

    def commit(self, end: Mapping[str, Any]) -> None:
        """Ack a committed batch, unless `latestOffset` has already done so."""
        self._query().committed(self._batch(end))

    def stop(self) -> None:
        """Stop renewing leases, and release owned slots. Messages stay claimed, since the batch may be run again."""
        if self._driver is not None:
            self._driver.close()

    def _batch(self, offset: Mapping[str, Any]) -> Batch:
        return Batch.from_offset(offset).of(self._options.needed_topic())

    def _query(self) -> QueryDriver:
        if self._driver is None:
            self._driver = QueryDriver(self._options)
        return self._driver


def _chunks(connections: Connections, partition: BatchPartition, time: RedisTime) -> Iterator[list[tuple[int, Chunk]]]:
    """Yield a partition's chunks with their slots, several at a time, while the next chunk is being read.

    Only one chunk is read ahead: it takes Redis some milliseconds, and a pipeline is executed without a break.
    """
    parts = partition.parts

    def ask(number: int) -> Dispatch:
        return connections.dispatch([read(partition.topic, partition.reading, *parts[number])])

    under_way = ask(0)
    try:
        found: list[tuple[int, Chunk]] = []
        size = 0
        for number, (slot, *_) in enumerate(parts):
            with time.counted():
                (chunk,) = under_way.results()
            if number + 1 < len(parts):
                under_way = ask(number + 1)
            if isinstance(chunk, Exception):
                raise chunk
            found.append((slot, chunk))
            size += chunk.size_bytes
            if len(found) == TOGETHER or size > BATCH_BYTES:
                yield found
                found, size = [], 0
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
