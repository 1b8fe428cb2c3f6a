"""Checks and encodes the messages of one topic, one after the other: what is the same for all is worked out once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias
from zlib import crc32

from rmq._model.messages import MESSAGE_TYPES, Message, encode
from rmq._model.payloads import checked_body, payload_bytes
from rmq._model.times import MAX_DUE_MS, MAX_DURATION_MS
from rmq._model.topics import Topic, TopicType

Row: TypeAlias = tuple[int, bytes, int, bytes | None, tuple[bytes, ...]]
"""The fields of an `Encoded`."""

_VALUES = {
    TopicType.RANGE_MERGE: "time_range_ms",
    TopicType.PRIORITY: "priority",
    TopicType.FIXED_TIME: "fixed_time_ms",
}


def score_bounds(topic: Topic) -> tuple[int, int]:
    """Return the smallest and the largest value of a message of a topic: time range in ms, priority or epoch ms."""
    if topic.type is TopicType.PRIORITY:
        return topic.priorities
    return (1, MAX_DURATION_MS) if topic.type is TopicType.RANGE_MERGE else (1, MAX_DUE_MS)


def encoder_of(topic: Topic) -> Callable[[Message], Row]:
    """Return what does to a message of a topic the same as `encode`, in half the time where the message is plain.

    Of a stream topic, and of one that merges, it is `encode` itself.
    """
    if topic.type is TopicType.STREAM or topic.merge is not None:
        return partial(encode, topic)
    kind: Any = MESSAGE_TYPES[topic.type]
    value_of = attrgetter(_VALUES[topic.type])
    lowest, highest = score_bounds(topic)
    most, mask = topic.max_content_bytes, topic.slots - 1

    def encode_plain(message: Any) -> Row:
        if type(message) is kind and message.weight == 1 and message.version is None:
            content, score, basis, body = message.content, value_of(message), message.slot_basis, message.body
            if type(content) is not bytes:
                content = payload_bytes(content, "content")
            if type(score) is int and lowest <= score <= highest and 0 < len(content) <= most:
                basis = content if basis is None else payload_bytes(basis, "slot_basis")
                if body is not None:
                    body = checked_body(topic, content, body)
                return crc32(basis) & mask, content, score, body, ()
        return encode(topic, message)  # which says what is wrong, where something is

    return encode_plain
