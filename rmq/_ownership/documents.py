"""The nodes below the chroot, their paths and their contents.

/ensemble               identity of this ensemble, a random UUID, written once
/workers/<worker>       ephemeral: host, pid, weight, topics with their slots
/topics/<topic>         the registered definition
/leader                 ephemeral: the worker that writes the assignment
/assignment             who shall own what; the node's version is the assignment's
/owners/<topic>/<slot>  ephemeral: who owns it; the node's czxid is the epoch
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from rmq.errors import CoordinationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rmq.assignment import Owners
    from rmq.coordination.values import SlotKey

ENSEMBLE = "/ensemble"
WORKERS = "/workers"
TOPICS = "/topics"
LEADER = "/leader"
ASSIGNMENT = "/assignment"
OWNERS = "/owners"

MAX_NODE_BYTES = 1_000_000
"""ZooKeeper refuses more than 1 MiB (`jute.maxbuffer`)."""


def node_name(topic: str) -> str:
    """Return a topic's name as a node's name; ZooKeeper refuses `.` and `..`."""
    return topic if topic.strip(".") else topic.replace(".", "%2E")


def topic_name(node: str) -> str:
    """Return the topic that `node_name` made this name from."""
    return node.replace("%2E", ".")


def worker_path(worker: str) -> str:
    """Return the path of a worker's node."""
    return f"{WORKERS}/{worker}"


def topic_path(topic: str) -> str:
    """Return the path of a topic's definition."""
    return f"{TOPICS}/{node_name(topic)}"


def owners_path(topic: str) -> str:
    """Return the path of the parent of a topic's owner nodes."""
    return f"{OWNERS}/{node_name(topic)}"


def owner_path(key: SlotKey) -> str:
    """Return the path of a slot's owner node."""
    return f"{OWNERS}/{node_name(key[0])}/{key[1]}"


@dataclass(frozen=True, slots=True)
class WorkerDocument:
    """What a worker says of itself.

    Args:
        topics: The topics it consumes → their number of slots, as it knows it. Empty while it leaves.
        weight: Its capacity against the others', from 1.
        host: Name of its machine.
        pid: Its process id there.
    """

    topics: Mapping[str, int]
    weight: int = 1
    host: str = ""
    pid: int = 0

    def to_json(self) -> bytes:
        """Return the contents of the worker's node."""
        return _dump({"host": self.host, "pid": self.pid, "weight": self.weight, "topics": dict(self.topics)})

    @classmethod
    @lru_cache(maxsize=1024)  # read in every round, changed rarely
    def from_json(cls, data: bytes) -> WorkerDocument | None:
        """Read a worker's node; None if it is not one, so that one bad node stops nobody else."""
        try:
            fields = json.loads(data)
            topics = {str(name): int(slots) for name, slots in fields["topics"].items()}
            return cls(topics, max(1, int(fields["weight"])), str(fields["host"]), int(fields["pid"]))
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


def slots_from_definition(data: bytes) -> int | None:
    """Return the number of slots in a topic's registered definition, None if it says none."""
    try:
        slots = json.loads(data)["slots"]
    except (ValueError, TypeError, KeyError):
        return None
    return slots if type(slots) is int and slots > 0 else None


@dataclass(frozen=True, slots=True)
class Assignment:
    """Who shall own what: topic → owner by slot number."""

    topics: Mapping[str, Owners] = field(default_factory=dict[str, "Owners"])

    def of(self, worker: str, topics: Iterable[str]) -> frozenset[SlotKey]:
        """Return the slots of these topics that `worker` shall own."""
        return frozenset(
            (topic, slot)
            for topic in topics
            for slot, owner in enumerate(self.topics.get(topic, ()))
            if owner == worker
        )

    def to_json(self) -> bytes:
        """Return the contents of the node: per topic and worker the slots as ranges, at most six bytes a slot.

        Raises:
            CoordinationError: Longer than a node may be.
        """
        data = _dump(
            {
                "topics": {
                    name: {"slots": len(owners), "owners": _ranges_by_owner(owners)}
                    for name, owners in sorted(self.topics.items())
                }
            }
        )
        if len(data) > MAX_NODE_BYTES:
            raise CoordinationError(
                f"the assignment of {len(self.topics)} topics takes {len(data)} bytes, a ZooKeeper node holds"
                f" {MAX_NODE_BYTES}; use fewer slots, or give the topics to several chroots"
            )
        return data

    @classmethod
    @lru_cache(maxsize=4)
    def from_json(cls, data: bytes) -> Assignment | None:
        """Read the node; None if its contents are not an assignment."""
        try:
            topics: dict[str, Owners] = {}
            for name, entry in json.loads(data)["topics"].items():
                owners: list[str | None] = [None] * int(entry["slots"])
                for worker, ranges in entry["owners"].items():
                    for low, high in _parse_ranges(ranges):
                        owners[low : high + 1] = [str(worker)] * (high + 1 - low)
                topics[str(name)] = tuple(owners)
            return cls(topics)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


def _ranges_by_owner(owners: Owners) -> dict[str, str]:
    """`("a", "a", "b", "a")` → `{"a": "0-1,3", "b": "2"}`."""
    ranges: dict[str, list[str]] = {}
    start = 0
    for slot, owner in enumerate(owners):
        if slot + 1 == len(owners) or owners[slot + 1] != owner:
            if owner is not None:
                ranges.setdefault(owner, []).append(f"{start}-{slot}" if slot > start else f"{slot}")
            start = slot + 1
    return {owner: ",".join(parts) for owner, parts in sorted(ranges.items())}


def _parse_ranges(text: str) -> Iterable[tuple[int, int]]:
    for part in text.split(","):
        low, _, high = part.partition("-")
        yield int(low), int(high or low)


def _dump(document: Mapping[str, Any]) -> bytes:
    return json.dumps(cast("dict[str, Any]", document), separators=(",", ":")).encode()
