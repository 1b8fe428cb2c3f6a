"""The topics whose slots are searched."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from rmq import Topic, TopicType
from tests.models.search import Space, explore
from tests.models.slot_world import TICK_MS, SlotAlphabet, World

TYPES: dict[str, tuple[TopicType, dict[str, Any]]] = {
    "RANGE_MERGE": (TopicType.RANGE_MERGE, {}),
    "FIXED_TIME": (TopicType.FIXED_TIME, {}),
    "PRIORITY-any": (TopicType.PRIORITY, {"ties": "any"}),
    "PRIORITY-oldest": (TopicType.PRIORITY, {"max_priority": 3}),
}


def topic_of(name: str) -> Topic:
    """Return a topic whose messages have two deliveries, and whose lease is one step of time."""
    kind, definition = TYPES[name]
    return Topic("models", kind, lease=timedelta(milliseconds=TICK_MS), max_retries=1, **definition)


def search(name: str, contents: tuple[bytes, ...], depth: int = 10**9) -> tuple[SlotAlphabet, Space[World]]:
    """Search a slot of a topic of one type.

    Raises:
        BrokenPromiseError: Some state breaks a promise.
    """
    alphabet = SlotAlphabet(topic_of(name), contents)
    return alphabet, explore(alphabet.first(), alphabet.key, alphabet.steps, alphabet.broken, depth)
