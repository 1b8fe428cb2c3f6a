"""The data source `format("rmq")`, and `save`, a write that returns the counts of its rows, as Spark's own does not.

The columns of a read depend on the definition of its topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, cast

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from rmq import TopicType
from rmq.errors import InvalidValueError
from rmq.spark.options import PLAN_S, Options, check_batch, check_replays, check_sink, check_topic, parse_options
from rmq.spark.schema import check_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )

    from rmq.spark.sink.redrive_writer import RedriveWriter
    from rmq.spark.sink.writer import BatchWriter


class RmqDataSource(DataSource):
    """RMQ as a Spark data source.

    Args:
        options: The options set with `.option`, by name.

    Raises:
        InvalidValueError: An option is unknown, or a value breaks its rule.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._parsed: Options = parse_options(self.options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "rmq"

    def schema(self) -> StructType:
        """Return the columns of a read; those of a topic that merges include counts and times of its sends.

        Raises:
            InvalidValueError: No topic is named, `topicPattern` matches none, or an option does not fit the topic.
            UnknownTopicError: The topic is not registered.
        """
        from rmq.spark.batch_reader import columns_of_topics
        from rmq.spark.schema import chosen, topics_of

        with closing(self._parsed.connections(most_s=PLAN_S)) as connections:
            topics = topics_of(connections, self._parsed, whole=False)
        for topic in topics:
            check_topic(topic, self._parsed)
        return chosen(topics, self._parsed, columns_of_topics(topics, self._parsed))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader; with `pushdown`, one that accepts filters from Spark.

        Raises:
            InvalidValueError: An option has no effect on a read, or `schema` has a column that the read does not
                offer, or offers with another type.
        """
        from rmq.spark.batch_reader import PruningReader, RmqReader
        from rmq.spark.schema import check_chosen

        check_batch(self._parsed)
        check_schema(self._parsed.queue, schema)
        check_chosen(self._parsed, schema)
        if "claim" in schema.names:
            raise InvalidValueError("column claim is available with readStream only: a batch read claims no messages")
        return (PruningReader if self._parsed.pushdown else RmqReader)(schema, self._parsed)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the streaming source; for a STREAM topic, one that reads it with a consumer group.

        Raises:
            InvalidValueError: An option has no effect on the source or does not fit the topic, or `schema` has a column
                that the source does not offer, or offers with another type.
            UnknownTopicError: The topic is not registered.
        """
        from rmq.spark.batch_reader import check_columns
        from rmq.spark.schema import check_chosen, topics_of
        from rmq.spark.source.reader import LogStreamReader, ManyStreamReader, RmqStreamReader

        check_schema(self._parsed.queue, schema)
        check_chosen(self._parsed, schema)
        with closing(self._parsed.connections()) as connections:
            topics = topics_of(connections, self._parsed, whole=False)
        if topics[0].type is TopicType.STREAM:
            return LogStreamReader(schema, self._parsed, topics[0])
        for topic in topics:
            check_topic(topic, self._parsed)
            if self._parsed.topic_pattern is None:  # otherwise the query omits it
                check_replays(topic, self._parsed)
        check_columns(topics, self._parsed, schema)
        if self._parsed.several:
            return ManyStreamReader(schema, self._parsed, [topic.name for topic in topics])
        return RmqStreamReader(schema, self._parsed)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the batch sink.

        Raises:
            InvalidValueError: `mode("overwrite")` is set, an option has no effect on a write, or the columns do not fit
                the topic.
        """
        if overwrite:
            raise InvalidValueError('mode("overwrite") would delete the messages of a live queue; use mode("append")')
        check_sink(self._parsed)
        from rmq.spark.sink.redrive_writer import RedriveWriter
        from rmq.spark.sink.writer import BatchWriter

        return (RedriveWriter if self._parsed.redrive else BatchWriter)(schema, self._parsed)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the streaming sink.

        Raises:
            InvalidValueError: `outputMode("complete")` or `redrive` is set, an option has no effect on a write, or the
                columns do not fit the topic.
        """
        if overwrite:
            raise InvalidValueError(
                'outputMode("complete") would delete the messages of a live queue; use "append" or "update"'
            )
        if self._parsed.redrive:
            raise InvalidValueError(
                "redrive is not available with writeStream: read the dead messages with spark.read and use write"
            )
        check_sink(self._parsed)
        from rmq.spark.sink.writer import StreamWriter

        return StreamWriter(schema, self._parsed)


@dataclass(frozen=True, slots=True)
class SaveResult:
    """Counts of the rows of a write.

    Attributes:
        rows: Number of rows of the frame.
        folded: Rows folded into another row of their task before they were sent.
        new: Messages that were added as new entries.
        merged: Messages that merged with one in the backlog.
        skipped: Messages already sent by an earlier attempt or write; of a redrive, messages that were no longer dead.
        bad: Rows written to the folder for bad rows, with `badRows=collect`.
        redis_s: Total time that all tasks waited for calls to Redis, seconds.

    Examples:
        >>> from rmq.spark import SaveResult
        >>> SaveResult(rows=5, folded=2, new=2, merged=1).sent
        3
    """

    rows: int = 0
    folded: int = 0
    new: int = 0
    merged: int = 0
    skipped: int = 0
    bad: int = 0
    redis_s: float = 0.0

    @property
    def sent(self) -> int:
        """Messages that were sent: new and merged ones."""
        return self.new + self.merged


def save(frame: DataFrame, topic: str | None = None, **options: str | float | bool) -> SaveResult:
    """Write a frame to a topic, as `frame.write.format("rmq")` does with the same options, and return the counts.

    Args:
        frame: Frame with the columns of a sink.
        topic: Name of the topic; without it, each row goes to the topic that its column `topic` names.
        options: Options of the sink by name: `url`, `merge`, `txnAppId` and so on.

    Returns:
        The counts of the last attempts of all tasks, added up.

    Raises:
        InvalidValueError: An option is unknown, a value breaks a rule, or the columns do not fit the topic.
        UnknownTopicError: The topic is not registered, and no options define it.

    Guarantee: as for `write`: at least once. On topics with `merge=`, a task that is retried counts no row twice. With
    `txnAppId`, or with `once` on these topics, neither does a repeated job with the same rows in the same partitions.
    """
    from rmq.spark.sink.sender import Counts
    from rmq.spark.sink.writer import write_parts

    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    if topic is not None:
        given["topic"] = topic
    writer = cast("BatchWriter | RedriveWriter", RmqDataSource(given).writer(frame.schema, overwrite=False))
    parts = write_parts(frame, writer)
    writer.commit([*parts])
    *counts, redis_us = astuple(Counts.total(part.counts for part in parts))
    return SaveResult(*counts, redis_s=redis_us / 1_000_000)
