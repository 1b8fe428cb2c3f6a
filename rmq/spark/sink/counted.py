"""Writes a frame as the sink does, and says what came of it: a data source's own write has no answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any, Protocol, cast

from pyspark.sql import DataFrame
from pyspark.sql.datasource import WriterCommitMessage

from rmq.spark.arrow import pa
from rmq.spark.sink.sender import Counts
from rmq.spark.sink.writer import Written

_COLUMNS = ", ".join(f"{field.name} bigint" for field in fields(Counts))


class Writer(Protocol):
    """A sink, of which one task needs no more than this."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write one task's rows."""
        ...


def write_counted(frame: DataFrame, writer: Writer) -> Counts:
    """Write a frame and return the counts of all tasks, each as its last attempt saw them.

    Args:
        frame: What is written.
        writer: A sink made for the frame's columns.
    """

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        written = cast("Written", writer.write(batches))
        yield pa.RecordBatch.from_pylist([asdict(written.counts)])

    total = Counts()
    frames = cast("Any", frame)  # mapInArrow has no full types
    for row in frames.mapInArrow(write, _COLUMNS).collect():
        total.add(Counts(**row.asDict()))
    return total
