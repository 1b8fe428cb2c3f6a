"""Entering a group of a stream topic."""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Iterable

from rmq.connections import Connections
from rmq.stream_calls import Member
from rmq.stream_slot import GroupSlots, StreamWriter
from rmq.stream_values import checked_consumer
from rmq.topics import Topic


def join_group(
    connections: Connections,
    topic: Topic,
    group: str,
    start: str,
    name: str | None = None,
    slots: Iterable[int] | None = None,
) -> GroupSlots:
    """Register a group where it is new, and return the slots in the eyes of one of its consumers.

    Args:
        connections: Where the topic is.
        topic: The registered definition.
        group: Name of the group.
        start: Where it begins if it is new: `new`, `all`, or after an id.
        name: Name of the consumer; one that nobody else has by default.
        slots: Only on these slots; all by default.

    Raises:
        InvalidValueError: A name breaks its rule.
        TooManyGroupsError: The topic has its most groups.
    """
    consumer = own_name() if name is None else checked_consumer(name)
    StreamWriter(connections, topic).join(group, start, slots)
    return GroupSlots(connections, topic, Member(group, consumer))


def own_name() -> str:
    """Return a consumer's name that tells where it runs and that nobody else has."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:80]
    return f"{host}:{os.getpid()}:{secrets.token_hex(4)}"
