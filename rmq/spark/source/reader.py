"""The streaming source: drains a topic in batches that come back identical after a crash, and acks what Spark commits.

The driver's process plans, keeps leases and acks (`query_driver.py`); tasks claim their part of a batch when they read
it, and read the same messages as often as they are asked to.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from rmq._model.topics import Topic
from rmq._transport.connections import Connections
from rmq._transport.urls import parse_url
from rmq.spark.calls import Chunk, Driver
from rmq.spark.options import Options, check_source
from rmq.spark.slots import QuerySlots
from rmq.spark.source.batches import Batch, Part, cut, default_replays
from rmq.spark.source.driver import QueryDriver
from rmq.spark.source.rows import ArrowRows

AHEAD = 4
"""Chunks that a task asks for at once, while Spark works on those before."""

BATCH_BYTES = 8 << 20
"""Chunks are put together into one record batch until they have more bytes than this."""


@dataclass
class BatchPartition(InputPartition):
    """What one task reads of a batch.

    Attributes:
        topic: The definition, so that tasks need not ask for it.
        driver: Who planned the batch.
        seq: Number of the batch.
        size: Most messages in the batch.
        max_replays: After so many replays the batch is halved with each further one.
        parts: Its chunks.
    """

    topic: Topic
    driver: Driver
    seq: int
    size: int
    max_replays: int
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
        """Return where a new query begins: with an identity of its own."""
        return Batch(uuid.uuid4().hex).to_offset()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that `maxMessagesPerTrigger` sets."""
        return ReadMaxRows(self._options.max_messages)

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Ack the batch that ends at `start`, which Spark has committed, and plan the next; claims nothing."""
        last, driver = Batch.from_offset(start), self._query()
        driver.ack(last)
        quotas = driver.plan(self._most(limit))
        return last.next(quotas, wary=driver.wary).to_offset() if quotas else dict(start)

    def prepareForTriggerAvailableNow(self) -> None:
        """Take what is due now as all that the query shall read."""
        self._query().freeze()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return, for Spark's progress report, what is left behind the batches planned so far."""
        if self._driver is None:
            return None
        behind = self._driver.behind
        return {"behind": behind.due, "backlog": behind.backlog, "in_flight": behind.in_flight}

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Return the parts of the batch that ends at `end`; from now on its leases are kept."""
        batch, query = Batch.from_offset(end), self._query()
        if batch.seq == Batch.from_offset(start).seq:
            return []
        driver = query.open(batch)
        cuts = cut(batch, *self._options.task_numbers)
        given = self._options.max_replays
        given = default_replays(query.topic.max_retries) if given is None else given
        replays = 0 if batch.wary else given
        return [BatchPartition(query.topic, driver, batch.seq, batch.size, replays, parts) for parts in cuts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Claim, or claim again, one part of a batch, a chunk at a time."""
        partition = cast(BatchPartition, partition)
        connections = Connections(parse_url(self._options.url), deadline_s=float(self._options.deadline_s))
        try:
            rows = ArrowRows(self._schema, partition.topic)
            for chunks in _chunks(connections, partition, self._options):
                batch = rows.batch(chunks)
                if batch.num_rows:
                    yield batch
        finally:
            connections.close()

    def commit(self, end: Mapping[str, Any]) -> None:
        """Ack what Spark has committed, where the next `latestOffset` has not done so."""
        self._query().committed(Batch.from_offset(end))

    def stop(self) -> None:
        """Stop renewing leases; nothing is released: the batch may be run again."""
        if self._driver is not None:
            self._driver.close()

    def _query(self) -> QueryDriver:
        if self._driver is None:
            options = self._options
            self._driver = QueryDriver(
                options.url,
                options.needed_topic(),
                deadline_s=float(options.deadline_s),
                fail_on_data_loss=options.fail_on_data_loss,
            )
        return self._driver

    def _most(self, limit: ReadLimit) -> int | None:
        return limit.max_rows if isinstance(limit, ReadMaxRows) else None


def _chunks(connections: Connections, partition: BatchPartition, options: Options) -> Iterator[list[tuple[int, Chunk]]]:
    """Read a partition's chunks, some at a time, each with its slot; the next ones are on their way meanwhile."""
    slots = QuerySlots(connections, partition.topic)
    parts = partition.parts

    def ask(first: int) -> Any:
        return slots.submit_read(
            partition.driver,
            partition.seq,
            parts[first : first + AHEAD],
            size=partition.size,
            max_replays=partition.max_replays,
            strict=options.fail_on_lease_lost,
        )

    answers = ask(0)
    for first in range(0, len(parts), AHEAD):
        results = answers()
        if first + AHEAD < len(parts):
            answers = ask(first + AHEAD)
        found: list[tuple[int, Chunk]] = []
        size = 0
        for (slot, *_), chunk in zip(parts[first : first + AHEAD], results, strict=True):
            if isinstance(chunk, Exception):
                raise chunk
            found.append((slot, chunk))
            size += chunk.size_bytes
            if size > BATCH_BYTES:
                yield found
                found, size = [], 0
        if found:
            yield found
