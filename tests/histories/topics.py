"""The topics of a history, and the messages that are sent to them."""

from __future__ import annotations

import json
import random
import time
from datetime import timedelta

from rmq import ExponentialRetry, FixedTimeMessage, PriorityMessage, RangeMergeMessage, StreamMessage, Topic, TopicType
from tests.support.core import Message

GROUP = "readers"
LEASE_S = 5
SLOTS = 16
CONTENTS = 150
"""So few that most sends meet one of the same content in the backlog or in flight."""


def topics(lease_s: int = LEASE_S) -> list[Topic]:
    """Return a topic of each type."""
    retry = ExponentialRetry(timedelta(milliseconds=100), timedelta(seconds=2))
    return [
        Topic(
            f"history-{type_.value.lower()}",
            type_,
            slots=SLOTS,
            lease=timedelta(seconds=lease_s),
            max_retries=6,
            retry=retry,
        )
        for type_ in TopicType
    ]


def message(topic: Topic, number: int, sent_id: str, chance: random.Random) -> Message:
    """Return a message; its body says when it may be delivered."""
    now_ms = int(time.time() * 1000)
    content = f"c{number % CONTENTS}"
    delay_ms = chance.choice((20, 200, 1_000, 3_000))
    body = json.dumps({"id": sent_id, "due_ms": now_ms + delay_ms if topic.type.timed else 0})
    if topic.type is TopicType.RANGE_MERGE:
        return RangeMergeMessage(content, time_range_ms=delay_ms, body=body)
    if topic.type is TopicType.FIXED_TIME:
        # a second more: it must lie ahead of Redis' time also when a pause delays it
        body = json.dumps({"id": sent_id, "due_ms": now_ms + delay_ms + 1_000})
        return FixedTimeMessage(content, fixed_time_ms=now_ms + delay_ms + 1_000, body=body)
    if topic.type is TopicType.PRIORITY:
        return PriorityMessage(content, chance.randint(100, 1_000), body=body)
    return StreamMessage(sent_id, slot_basis=content, body=body)
