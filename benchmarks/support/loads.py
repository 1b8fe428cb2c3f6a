"""What is sent: the same 20-byte contents in the same random order for RMQ and for what it is compared with."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rmq import FixedTimeMessage, PriorityMessage, RangeMergeMessage, Topic, TopicType

Message = PriorityMessage | RangeMergeMessage | FixedTimeMessage
TYPES = (TopicType.RANGE_MERGE, TopicType.PRIORITY, TopicType.FIXED_TIME)
BATCH = 500
"""Messages per native command, and handed to a batch handler: what RMQ's producer sends per call."""

_PRIME = 100_000_007
_FACTOR = 48_271


def contents(number: int, start: int = 0) -> list[bytes]:
    """Return distinct contents of 20 bytes in an order that is random to a sorted set; the same at each call."""
    return list(stream(start, start + number))


def stream(start: int, stop: int) -> Iterator[bytes]:
    """Yield the contents from `start` to `stop`, of a permutation of 100 million."""
    return (b"order:%014d" % (index * _FACTOR % _PRIME) for index in range(start, stop))


def priorities(number: int) -> list[int]:
    """Return random priorities, the same at each call."""
    draw = random.Random(20)
    return [draw.randrange(1_000, 1_000_000) for _ in range(number)]


def due_times(number: int, first_ms: int, spread_ms: int) -> list[int]:
    """Return random due times within a stretch of time, epoch ms."""
    draw = random.Random(20)
    return [first_ms + draw.randrange(spread_ms) for _ in range(number)]


def merge_messages(contents: Iterable[bytes], time_range_ms: int) -> Iterator[Message]:
    """Yield merge messages with one time range, as a program would send them."""
    return (RangeMergeMessage(content, time_range_ms=time_range_ms) for content in contents)


def priority_messages(contents: Iterable[bytes], priorities: Iterable[int]) -> Iterator[Message]:
    """Yield priority messages."""
    return (PriorityMessage(content, priority) for content, priority in zip(contents, priorities, strict=False))


def fixed_messages(contents: Iterable[bytes], times_ms: Iterable[int]) -> Iterator[Message]:
    """Yield fixed-time messages."""
    return (
        FixedTimeMessage(content, fixed_time_ms=time_ms) for content, time_ms in zip(contents, times_ms, strict=False)
    )


def soon(
    topic_type: TopicType, contents: Iterable[bytes], priorities: Sequence[int], delay_ms: int
) -> Iterator[Message]:
    """Yield messages that are due after `delay_ms` (PRIORITY: at once), for consumers that run beside the sender."""
    if topic_type is TopicType.PRIORITY:
        return (PriorityMessage(content, priorities[n % len(priorities)]) for n, content in enumerate(contents))
    if topic_type is TopicType.RANGE_MERGE:
        return merge_messages(contents, delay_ms)
    return (FixedTimeMessage(content, fixed_time_ms=int(time.time() * 1000) + delay_ms) for content in contents)


def soon_in_columns(topic_type: TopicType, number: int, priorities: Sequence[int], delay_ms: int) -> dict[str, Any]:
    """Return the columns beside the contents for the same as `soon`."""
    if topic_type is TopicType.PRIORITY:
        return {"priorities": [priorities[n % len(priorities)] for n in range(number)]}
    if topic_type is TopicType.RANGE_MERGE:
        return {"time_range": [delay_ms] * number}
    return {"fixed_times": [int(time.time() * 1000) + delay_ms] * number}


def topic(topic_type: TopicType, slots: int = 1, suffix: str = "") -> Topic:
    """Return a benchmark's topic."""
    return Topic(f"bench-{topic_type.value.lower().replace('_', '-')}{suffix}", topic_type, slots=slots)


def batches(items: Sequence[bytes], size: int) -> Iterator[Sequence[bytes]]:
    """Cut into batches."""
    return (items[first : first + size] for first in range(0, len(items), size))
