"""The streaming source of STREAM topics: a query reads with a group, offsets are ids, and a batch is a range of ids."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, cast

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from rmq._model.entries import StreamEntry
from rmq._model.topics import Topic
from rmq.errors import BatchLostError
from rmq.spark import entries
from rmq.spark.option_checks import check_log_source
from rmq.spark.options import Options
from rmq.spark.redis_time import RedisTime
from rmq.spark.schema import check_topic_has, entry_columns
from rmq.spark.source.figures import report_task
from rmq.spark.source.log_batches import LogBatch, cut_slots
from rmq.spark.source.log_driver import LogDriver

log = logging.getLogger("rmq.spark")


@dataclass
class SpansPartition(InputPartition):
    """Part of a batch that one task reads: for each slot its range of ids and its number of entries."""

    spans: tuple[tuple[int, str, str, int], ...]

    def __post_init__(self) -> None:
        super().__init__(self.spans)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a STREAM topic for Structured Streaming.

    Guarantee: a batch that is run again has the same rows. By default, retention keeps entries that Spark has not
        committed.

    Raises:
        InvalidValueError: Option `group` is missing, or an option has no effect on this source.
    """

    def __init__(self, schema: StructType, options: Options, topic: Topic) -> None:
        check_log_source(topic, options)
        check_topic_has(topic.name, entry_columns(grouped=False), schema)
        self._schema, self._options, self._topic = schema, options, topic
        self._driver: LogDriver | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return the first offset of a new query; its group is created with the first batch."""
        return LogBatch(uuid.uuid4().hex, self._topic.name, self._options.needed_group(self._topic)).to_offset()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that `maxMessagesPerTrigger` sets."""
        return ReadMaxRows(self._options.max_messages)

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Commit the batch that ends at `start`, and plan the next one; return its end, or `start` if it is empty."""
        last, driver = LogBatch.from_offset(start), self._query()
        driver.ack(last)
        batch = driver.plan(last, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        return dict(start) if batch is None else batch.to_offset()

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the query to the entries that exist now."""
        self._query().freeze()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the metrics of the query and its number of remaining entries, for Spark's progress report."""
        if (driver := self._driver) is None:
            return None
        return {"topic": self._topic.name, "group": driver.group, "behind": driver.behind, **driver.figures.progress()}

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of the batch that ends at `end`."""
        batch = LogBatch.from_offset(end)
        if batch.seq == LogBatch.from_offset(start).seq:
            return []
        self._query().open(batch)
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

    def commit(self, end: Mapping[str, Any]) -> None:
        """Move the group to the end of a committed batch, unless `latestOffset` has already done so."""
        self._query().ack(LogBatch.from_offset(end))

    def stop(self) -> None:
        """Stop listening for commits; the group keeps its position."""
        if self._driver is not None:
            self._driver.close()

    def _query(self) -> LogDriver:
        if self._driver is None:
            self._driver = LogDriver(self._options, self._topic)
        return self._driver

    def _lost(self, slot: int, number: int, after: str, end: str) -> None:
        text = (
            f"topic {self._topic.name}: {number} entries of slot {slot} between {after} and {end} were "
            "trimmed or deleted after this batch was planned"
        )
        if self._options.fail_on_data_loss:
            raise BatchLostError(f"{text}; set failOnDataLoss to false to continue", topic=self._topic.name, slot=slot)
        log.warning("%s; continuing, since failOnDataLoss is false", text)


def _next(pages: Iterator[list[StreamEntry]], time: RedisTime) -> list[StreamEntry]:
    """Return the next page, empty at the end."""
    with time.counted():
        return next(pages, list[StreamEntry]())
