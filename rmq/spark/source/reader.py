"""The streaming source: drains a topic in batches that come back identical after a crash, and acks what Spark commits.

The driver's process plans, keeps leases and acks (`driver.py`); tasks claim their part of a batch when they read
it, and read the same messages as often as they are asked to.
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
"""Chunks are put together into one record batch: so many, or until they have more bytes than this."""


@dataclass
class BatchPartition(InputPartition):
    """Part of a batch that one task reads: its chunks, with the topic's definition, which tasks then need not read."""

    topic: Topic
    reading: Reading
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        super().__init__(self.parts)


class RmqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a topic for Structured Streaming.

    Guarantee: a batch that is run again has the same rows; nothing is acked before Spark has committed it, and nothing
    that others have taken meanwhile is.
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
        """Ack the batch that ends at `start`, which Spark has committed, and plan the next; claims nothing."""
        last, driver = self._batch(start), self._query()
        driver.ack(last)
        quotas = driver.plan(limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        return last.next(quotas, wary=driver.wary).to_offset() if quotas else dict(start)

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the query to the messages that are due now."""
        self._query().freeze()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return, for Spark's progress report, the topic, what the query has done, and what it has left."""
        return None if self._driver is None else self._driver.figures.progress()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Return the parts of the batch that ends at `end`; from now on its leases are kept."""
        batch, query = self._batch(end), self._query()
        if batch.seq == Batch.from_offset(start).seq:
            return []
        return self._parts(query, batch)

    def _parts(self, query: QueryDriver, batch: Batch, part: float = 1.0) -> list[InputPartition]:
        """Begin a batch, and return its tasks; `part`: how much of all the query's tasks and bytes it gets."""
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
        """Claim, or claim again, one part of a batch, a chunk at a time."""
        partition = cast(BatchPartition, partition)
        time = RedisTime()
        with closing(self._options.connections()) as connections:
            for chunks in _chunks(connections, partition, time):
                batch = to_arrow(self._schema, partition.topic, chunks)
                if batch.num_rows:
                    yield batch
            report_task(connections, partition.topic.name, partition.reading.driver.query, time)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Ack what Spark has committed, where the next `latestOffset` has not done so."""
        self._query().committed(self._batch(end))

    def stop(self) -> None:
        """Stop renewing leases, and give owned slots back. No message is released: the batch may be run again."""
        if self._driver is not None:
            self._driver.close()

    def _batch(self, offset: Mapping[str, Any]) -> Batch:
        return Batch.from_offset(offset).of(self._options.needed_topic())

    def _query(self) -> QueryDriver:
        if self._driver is None:
            self._driver = QueryDriver(self._options)
        return self._driver


def _chunks(connections: Connections, partition: BatchPartition, time: RedisTime) -> Iterator[list[tuple[int, Chunk]]]:
    """Read a partition's chunks, each with its slot, some together; the next one is on its way meanwhile.

    Only one: Redis works off what one client has sent without a break, and a chunk takes it some milliseconds.
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
    """Return (slot, chunk) pairs as one record batch with the columns that Spark asks for: the same at each read.

    `priority` and `due` are null where the message had been rolled back before; `retries_left` is null, since it
    differs from one read to the next. `attempt` is that of the first read.
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
