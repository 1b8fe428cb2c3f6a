"""The rows of the streaming source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql.types import StructType

from rmq.spark.arrow import pa, spark_types
from rmq.spark_calls import Chunk
from rmq.topics import Topic


def to_arrow(schema: StructType, topic: Topic, slot: int, chunk: Chunk) -> Any:
    """Return a chunk with the columns that Spark asks for, the same each time it is read.

    `priority` and `due` are null where the message had been rolled back before; `retries_left` is null, since it
    differs from one read to the next.
    """
    contents, scores, bodies = zip(*chunk.rows, strict=True)
    fresh = [score if score > topic.max_retries else None for score in scores]
    none: list[None] = [None] * len(scores)
    timed = topic.type.timed
    columns: dict[str, Sequence[Any]] = {
        "topic": [topic.name] * len(scores),
        "slot": [slot] * len(scores),
        "content": contents,
        "body": bodies,
        "score": scores,
        "priority": none if timed else fresh,
        "due": [None if score is None else score * 1_000 for score in fresh] if timed else none,
        "retries_left": none,
    }
    form = spark_types.to_arrow_schema(schema, timezone="UTC")
    arrays: list[Any] = [pa.array(columns[name], form.field(name).type) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=form)
