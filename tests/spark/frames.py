"""Frames for the sinks, and what they have written as the core client reads it."""

from __future__ import annotations

from pyspark.sql import DataFrame, DataFrameWriter

from rmq import RmqClient, Topic


def sink_of(frame: DataFrame, url: str, topic: Topic, **options: object) -> DataFrameWriter:
    """Return a writer of a frame to a topic that nobody need have registered."""
    writer = frame.write.format("rmq").mode("append").option("url", url)
    given = {"topic": topic.name, "type": topic.type.name, "slots": topic.slots} | options
    for name, value in given.items():
        writer = writer.option(name, str(value).lower() if isinstance(value, bool) else str(value))
    return writer


def stored(client: RmqClient, topic: Topic) -> dict[bytes, tuple[int, int, bytes | None]]:
    """Return the backlog: content -> slot, priority or else score, body."""
    inspection = client.inspect(topic)
    return {
        message.content: (message.slot, message.priority or message.score, message.body)
        for slot in range(topic.slots)
        for message in inspection.pages(slot, "store")
    }
