"""The streams of a simulation, as they are in Redis: what their groups have still to do, and what is dead there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rmq import Topic, TopicType
from tests.simulation.plan import GROUPS
from tests.simulation.server import Server
from tests.support.core import stream_broker

stream_broker.OWN_FROM = 2  # claims are small here, and are to read in names of their own all the same


def streams(topics: Iterable[Topic]) -> list[Topic]:
    """Return the topics that are streams."""
    return [topic for topic in topics if topic.type is TopicType.STREAM]


def sorted_set_topics(topics: Iterable[Topic]) -> list[Topic]:
    """Return the others."""
    return [topic for topic in topics if topic.type is not TopicType.STREAM]


def begin_groups(server: Server, topics: Iterable[Topic]) -> None:
    """Begin all groups before the first entry: what a group never had, nobody owes it."""
    for store, group in _places(topics):
        server.call("XGROUP", "CREATE", store, group, "0", "MKSTREAM")
        server.call("HSET", f"group:{group}{{{store}}}", "began", 0)


def entries_left(server: Server, topics: Iterable[Topic]) -> dict[str, int]:
    """Return how many entries each group has not handled: those that are pending, and 1 for any that are new."""
    found: dict[str, int] = {}
    for store, group in _places(topics):
        about = _group(server, store, group)
        last = about[b"last-delivered-id"].decode()
        left = about[b"pending"] + len(server.call("XRANGE", store, f"({last}", "+", "COUNT", 1))
        if left:
            found[f"{store} {group}"] = left
    return found


def dead_entries(server: Server, topics: Iterable[Topic]) -> set[tuple[str, str]]:
    """Return the contents of what is dead, by the names of their readers."""
    found: set[tuple[str, str]] = set()
    for store, group in _places(topics):
        for entry in server.call("ZRANGE", f"dead:{group}{{{store}}}", 0, -1):
            packed = server.call("HGET", f"deadbody:{group}{{{store}}}", entry)
            content = packed.partition(b"content")[2]
            found.add((f"{store.rpartition('_')[0]}@{group}", content[content.index(b"s") :].decode()))
    return found


def _places(topics: Iterable[Topic]) -> Iterator[tuple[str, str]]:
    for topic in streams(topics):
        for slot in range(topic.slots):
            for group in GROUPS:
                yield f"{topic.name}_{slot}", group


def _group(server: Server, store: str, group: str) -> dict[bytes, Any]:
    for row in server.call("XINFO", "GROUPS", store):
        about = dict(zip(row[::2], row[1::2], strict=True))
        if about[b"name"] == group.encode():
            return about
    raise AssertionError(f"{store} has no group {group}")
