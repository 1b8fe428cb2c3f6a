"""The rows of the streaming source."""

from __future__ import annotations

from typing import Any

from rmq.spark.arrow import pa
from rmq.spark_calls import Chunk
from rmq.topics import Topic

SCHEMA = "slot int, content binary, body binary, score bigint"
"""`score` is the due time in epoch ms or the priority; null where the message was rolled back before it was read."""

_ARROW = pa.schema([("slot", pa.int32()), ("content", pa.binary()), ("body", pa.binary()), ("score", pa.int64())])


def to_arrow(topic: Topic, slot: int, chunk: Chunk) -> Any:
    """Return a chunk as Spark takes it."""
    contents, scores, bodies = zip(*chunk.rows, strict=True)
    most = topic.max_retries
    columns = [
        pa.array([slot] * len(contents), pa.int32()),
        pa.array(contents, pa.binary()),
        pa.array(bodies, pa.binary()),
        pa.array([score if score > most else None for score in scores], pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW)
