"""The rows of the streaming source."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from pyspark.sql.types import StructType

from rmq._model.topics import Topic
from rmq.spark.arrow import pa, pc, spark_types
from rmq.spark.calls import Chunk


class ArrowRows:
    """Makes chunks into record batches, column by column: the same each time they are read.

    Args:
        schema: The columns that Spark asks for.
        topic: The topic that is read.
    """

    def __init__(self, schema: StructType, topic: Topic) -> None:
        self._topic = topic
        self._names = schema.names
        self._form = spark_types.to_arrow_schema(schema, timezone="UTC")

    def batch(self, chunks: Sequence[tuple[int, Chunk]]) -> Any:
        """Return (slot, chunk) pairs as one record batch.

        `priority` and `due` are null where the message had been rolled back before; `retries_left` is null, since it
        differs from one read to the next.
        """
        sizes = [len(chunk.contents) for _, chunk in chunks]
        scores = pa.array(list(chain.from_iterable(chunk.scores for _, chunk in chunks)), pa.int64())
        fresh = pc.if_else(pc.greater(scores, self._topic.max_retries), scores, None)
        columns: dict[str, Any] = {
            "topic": pa.repeat(self._topic.name, len(scores)),
            "slot": _joined([pa.repeat(slot, size) for (slot, _), size in zip(chunks, sizes, strict=True)]),
            "content": _joined([pa.array(chunk.contents, pa.binary()) for _, chunk in chunks]),
            "body": _joined(
                [pa.array(chunk.bodies or [None] * len(chunk.contents), pa.binary()) for _, chunk in chunks]
            ),
            "score": scores,
        }
        if self._topic.type.timed:
            columns["due"] = pc.multiply(fresh, 1_000)
        else:
            columns["priority"] = fresh
        arrays: list[Any] = []
        for name in self._names:
            kind = self._form.field(name).type
            arrays.append(columns[name].cast(kind) if name in columns else pa.nulls(len(scores), kind))
        return pa.RecordBatch.from_arrays(arrays, schema=self._form)


def _joined(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
