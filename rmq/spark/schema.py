"""What rows look like that come out of RMQ. Content and body are bytes: `CAST(content AS STRING)` shows text."""

from __future__ import annotations

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)


def _rows(*columns: tuple[str, DataType, bool]) -> StructType:
    return StructType([StructField(name, kind, nullable) for name, kind, nullable in columns])


_MESSAGE: tuple[tuple[str, DataType, bool], ...] = (
    ("topic", StringType(), False),
    ("slot", IntegerType(), False),
    ("content", BinaryType(), False),
    ("body", BinaryType(), True),
)

QUEUE = _rows(
    *_MESSAGE,
    ("score", LongType(), False),
    ("priority", LongType(), True),
    ("due", TimestampType(), True),
    ("retries_left", IntegerType(), True),
)
"""Backlog, in flight and waiting. `due`: when it is due, its lease ends, or its retry starts; null where at once."""

DEAD = _rows(
    *_MESSAGE,
    ("died", TimestampType(), False),
    ("error_type", StringType(), False),
    ("error_message", StringType(), False),
    ("attempts", IntegerType(), False),
    ("first_failed", TimestampType(), False),
    ("last_failed", TimestampType(), False),
)
"""Dead messages and why they died."""
