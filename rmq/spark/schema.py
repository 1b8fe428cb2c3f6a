"""What rows look like that come out of RMQ. Content and body are bytes: `CAST(content AS STRING)` shows text."""

from __future__ import annotations

from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_MESSAGE = (
    StructField("topic", StringType(), False),
    StructField("slot", IntegerType(), False),
    StructField("content", BinaryType(), False),
    StructField("body", BinaryType(), True),
)

QUEUE = StructType(
    [
        *_MESSAGE,
        StructField("score", LongType(), False),
        StructField("priority", LongType(), True),
        StructField("due", TimestampType(), True),
        StructField("retries_left", IntegerType(), True),
    ]
)
"""Backlog, in flight and waiting. `due`: when it is due, its lease ends, or its retry starts; null where at once."""

DEAD = StructType(
    [
        *_MESSAGE,
        StructField("died", TimestampType(), False),
        StructField("error_type", StringType(), False),
        StructField("error_message", StringType(), False),
        StructField("attempts", IntegerType(), False),
        StructField("first_failed", TimestampType(), False),
        StructField("last_failed", TimestampType(), False),
    ]
)
"""Dead messages and why they died."""
