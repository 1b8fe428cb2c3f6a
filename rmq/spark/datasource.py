"""The data source `format("rmq")`. The columns of a read depend on the definition of its topic."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from rmq._model.topics import TopicType
from rmq.errors import InvalidValueError
from rmq.spark.option_checks import check_batch, check_replays, check_sink, check_topic
from rmq.spark.options import PLAN_S, Options, parse_options
from rmq.spark.schema import check_schema

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )


class RmqDataSource(DataSource):
    """RMQ as a Spark data source.

    Args:
        options: The options set with `.option`, by name.

    Raises:
        InvalidValueError: An unknown option, or a value that breaks its rule.
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
            InvalidValueError: The topic is missing.
            UnknownTopicError: The topic is not registered.
        """
        from rmq.spark.batch_reader import columns_of_topics
        from rmq.spark.selection import chosen
        from rmq.spark.subscription import topics_of

        with closing(self._parsed.connections(most_s=PLAN_S)) as connections:
            topics = topics_of(connections, self._parsed, whole=False)
        for topic in topics:
            check_topic(topic, self._parsed)
        return chosen(topics, self._parsed, columns_of_topics(topics, self._parsed))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader; with `pushdown`, one that accepts filters from Spark.

        Raises:
            InvalidValueError: An option has no effect on a read, or a column is not one of its columns.
        """
        from rmq.spark.batch_reader import PruningReader, RmqReader
        from rmq.spark.selection import check_chosen

        check_batch(self._parsed)
        check_schema(self._parsed.queue, schema)
        check_chosen(self._parsed, schema)
        if "claim" in schema.names:
            raise InvalidValueError("column claim is available with readStream only: a batch read claims no messages")
        return (PruningReader if self._parsed.pushdown else RmqReader)(schema, self._parsed)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the streaming source; for a STREAM topic, one that reads it with a consumer group.

        Raises:
            InvalidValueError: An option has no effect on the source, or a column is not one of its columns.
            UnknownTopicError: The topic is not registered.
        """
        from rmq.spark.batch_reader import check_columns
        from rmq.spark.selection import check_chosen
        from rmq.spark.source.many import ManyStreamReader
        from rmq.spark.source.reader import LogStreamReader, RmqStreamReader
        from rmq.spark.subscription import topics_of

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
            InvalidValueError: `mode("overwrite")`, or columns that do not fit the topic.
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
            InvalidValueError: `outputMode("complete")`, or columns that do not fit the topic.
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
