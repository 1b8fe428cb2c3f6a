"""What is sent: the same 20-byte contents in the same random order for RMQ and for what it is compared with."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, repeat
from operator import attrgetter
from typing import Any, TypeVar

from rmq import FixedTimeMessage, Merge, Newest, PriorityMessage, RangeMergeMessage, Sum, Topic, TopicType

T = TypeVar("T")
Message = PriorityMessage | RangeMergeMessage | FixedTimeMessage
TYPES = (TopicType.RANGE_MERGE, TopicType.PRIORITY, TopicType.FIXED_TIME)
BATCH = 500
"""Messages per native command, and handed to a batch handler: what RMQ's producer sends per call."""


@dataclass(frozen=True, slots=True)
class Order:
    """The payload of a typed topic."""

    customer: int
    total: str


PLAIN, BODIES, TYPED, SUM, NEWEST = "", "bodies", "typed", "Sum", "Newest"
CARGOES = (BODIES, TYPED, SUM, NEWEST)
"""What RANGE_MERGE messages carry: 36 bytes, the same as a payload, or what a topic with `merge=` combines."""
_BODY = b'{"customer": 4711, "total": "12.50"}'
_FIELDS: dict[str, dict[str, Any]] = {BODIES: {"body": _BODY}, SUM: {"body": 5}, NEWEST: {"body": _BODY, "version": 1}}
_OPTIONS: dict[str, dict[str, Any]] = {
    TYPED: {"payload": Order},
    SUM: {"merge": Merge(Sum())},
    NEWEST: {"merge": Merge(Newest())},
}
_READ = {BODIES: "body", TYPED: "payload", SUM: "value", NEWEST: "value"}

_PRIME = 100_000_007
_FACTOR = 48_271


def contents(number: int, start: int = 0) -> list[bytes]:
    """Return distinct contents of 20 bytes in an order that is random to a sorted set; the same at each call."""
    return list(stream(start, start + number))


def stream(start: int, stop: int) -> Iterator[bytes]:
    """Yield the contents from `start` to `stop`, of a permutation of 100 million."""
    return (b"order:%014d" % (index * _FACTOR % _PRIME) for index in range(start, stop))


def index_of(content: bytes) -> int:
    """Return the place of a content in the stream."""
    return int(content[6:]) * pow(_FACTOR, -1, _PRIME) % _PRIME


def priorities(number: int) -> list[int]:
    """Return random priorities, the same at each call."""
    draw = random.Random(20)
    return [draw.randrange(1_000, 1_000_000) for _ in range(number)]


def due_times(number: int, first_ms: int, spread_ms: int) -> list[int]:
    """Return random due times within a stretch of time, epoch ms."""
    draw = random.Random(20)
    return [first_ms + draw.randrange(spread_ms) for _ in range(number)]


def messages(topic_type: TopicType, contents: Iterable[bytes], values: Iterable[int]) -> Iterator[Message]:
    """Yield messages with priorities, time ranges (ms) or fixed times (epoch ms), as a program would make them."""
    pairs = zip(contents, values, strict=False)
    if topic_type is TopicType.PRIORITY:
        return (PriorityMessage(content, priority) for content, priority in pairs)
    if topic_type is TopicType.RANGE_MERGE:
        return (RangeMergeMessage(content, time_range_ms=range_ms) for content, range_ms in pairs)
    return (FixedTimeMessage(content, fixed_time_ms=time_ms) for content, time_ms in pairs)


def soon(
    topic_type: TopicType, contents: Iterable[bytes], priorities: Sequence[int], delay_ms: int
) -> Iterator[Message]:
    """Yield messages that are due after `delay_ms` (PRIORITY: at once), for consumers that run beside the sender."""
    values: Iterable[int] = cycle(priorities) if topic_type is TopicType.PRIORITY else repeat(delay_ms)
    if topic_type is TopicType.FIXED_TIME:
        values = (int(time.time() * 1000) + delay_ms for _ in repeat(None))
    return messages(topic_type, contents, values)


def soon_in_columns(topic_type: TopicType, number: int, priorities: Sequence[int], delay_ms: int) -> dict[str, Any]:
    """Return the columns beside the contents for the same as `soon`."""
    if topic_type is TopicType.PRIORITY:
        return {"priorities": [priorities[n % len(priorities)] for n in range(number)]}
    if topic_type is TopicType.RANGE_MERGE:
        return {"time_range": [delay_ms] * number}
    return {"fixed_times": [int(time.time() * 1000) + delay_ms] * number}


def paced(values: Iterable[T], per_second: float) -> Iterator[T]:
    """Yield values at a steady rate; late ones at once."""
    from_s = time.monotonic()
    for number, value in enumerate(values):
        time.sleep(max(0.0, from_s + number / per_second - time.monotonic()))
        yield value


def laden(topic: Topic, cargo: str, contents: Iterable[bytes], time_range_ms: int) -> Iterator[Any]:
    """Yield merge messages that carry something, made as a program would make them."""
    if cargo == TYPED:
        return (topic.message(each, Order(4711, "12.50"), time_range_ms=time_range_ms) for each in contents)
    return (RangeMergeMessage(each, time_range_ms=time_range_ms, **_FIELDS[cargo]) for each in contents)


def reader(cargo: str) -> Callable[[Iterable[Any]], object]:
    """Return a function that reads what deliveries carry."""
    read = attrgetter(_READ[cargo]) if cargo else None
    return (lambda deliveries: None) if read is None else lambda deliveries: deque(map(read, deliveries), 0)


def topic(topic_type: TopicType, slots: int = 1, suffix: str = "", cargo: str = PLAIN) -> Topic:
    """Return a benchmark's topic."""
    name = f"bench-{topic_type.value.lower().replace('_', '-')}{suffix}"
    return Topic(name, topic_type, slots=slots, **_OPTIONS.get(cargo, {}))
