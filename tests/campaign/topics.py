"""The topics of a campaign, and the messages that are sent to them."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import rmq
from rmq import ExponentialRetry, FixedTimeMessage, PriorityMessage, RangeMergeMessage, StreamMessage, Topic, TopicType

if TYPE_CHECKING:  # the release before, which runs in a campaign, has other private names
    from tests.support.core import Message

GROUP = "readers"
LEASE_S = 6
SESSION_S = 4.0
SLOTS = 16

FIXED, RANGE, COLLECT, PRIORITY, STREAM = "fixed", "range", "collect", "priority", "stream"
SPARK, DELAYED = "spark", "delayed"
PLAIN = (FIXED, RANGE, PRIORITY, STREAM, SPARK)
FOLDING = (FIXED, RANGE, PRIORITY)
"""Topics in which one delivery stands for all sends of a content before it."""

_WINDOW = 40
"""A content is sent again among so many others, and never later: so a lost one is not hidden by later sends."""

_DELAYS_MS = (20, 200, 1_000, 3_000)
_AHEAD_MS = 1_500
"""A fixed time must lie ahead of Redis' time also when a send takes a while."""


def topics() -> list[Topic]:
    """Return the topics that listeners consume; without the one that merges where this release cannot."""
    types = {FIXED: TopicType.FIXED_TIME, PRIORITY: TopicType.PRIORITY, STREAM: TopicType.STREAM}
    merging = [_topic(COLLECT, TopicType.RANGE_MERGE, merge=_collect())] if hasattr(rmq, "Collect") else []
    return [*(_topic(name, types.get(name, TopicType.RANGE_MERGE)) for name in PLAIN), *merging]


def _topic(name: str, kind: TopicType, **settings: Any) -> Topic:
    retry = ExponentialRetry(timedelta(milliseconds=100), timedelta(seconds=2))
    lease = timedelta(seconds=LEASE_S)
    return Topic(name, kind, slots=SLOTS, lease=lease, max_retries=16, retry=retry, **settings)


def _collect() -> rmq.Merge:
    return rmq.Merge(rmq.Collect(max_items=10_000, max_bytes=1_000_000))


@dataclass(frozen=True, slots=True)
class Sent:
    """What a message of the campaign carries: the name of its send, and when it is due, 0 for unknown."""

    sent_id: str
    due_ms: int = 0

    @property
    def body(self) -> str:
        return f"{self.sent_id}|{self.due_ms}"


def sent_of(body: bytes) -> Sent:
    """Return what a body says."""
    sent_id, _, due_ms = body.decode().partition("|")
    return Sent(sent_id, int(due_ms or 0))


def message(topic: str, sender: str, number: int, chance: random.Random) -> tuple[Message, str, str]:
    """Return a message of a sender, its content, and the name of its send."""
    sent_id = f"{sender}.{number}"
    content = f"{sender}:{max(0, number // 2 - chance.randrange(_WINDOW))}"
    delay_ms = chance.choice(_DELAYS_MS)
    if topic == FIXED:
        due_ms = int(time.time() * 1000) + _AHEAD_MS + delay_ms
        return FixedTimeMessage(content, fixed_time_ms=due_ms, body=Sent(sent_id, due_ms).body), content, sent_id
    if topic in (RANGE, COLLECT):
        return RangeMergeMessage(content, time_range_ms=delay_ms, body=Sent(sent_id).body), content, sent_id
    if topic == PRIORITY:
        return PriorityMessage(content, chance.randint(1, 1_000), body=Sent(sent_id).body), content, sent_id
    # each entry of a stream is by itself
    return StreamMessage(sent_id, slot_basis=content, body=Sent(sent_id).body), sent_id, sent_id


def delay_ms(chance: random.Random) -> int:
    """Return the delay of a value of the delayed queue."""
    return chance.choice(_DELAYS_MS)
