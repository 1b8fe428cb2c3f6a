"""The nodes in ZooKeeper: paths and contents. All paths are relative to the chroot.

/ensemble               identity of this ensemble, a random UUID, written once
/workers/<worker>       ephemeral: host, pid, weight, topics with their slots
/topics/<topic>         the registered definition
/leader                 ephemeral: the worker that writes the assignment
/assignment             the assigned owner of each slot; the node's version is the assignment's
/owners/<topic>/<slot>  ephemeral: the owner of the slot; the node's czxid is the epoch

Documents have a schema version (`_model/schema.py`). A reader ignores one that it cannot read: a topic with an
unreadable definition gets no new owners, a worker with an unreadable node gets no slots, and with an unreadable
assignment all slots stay with their owners until the leader writes another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from rmq._model.schema import new_document, read_document, reading
from rmq._ownership.values import SlotKey
from rmq.errors import UnreadableDocumentError

ENSEMBLE = "/ensemble"
WORKERS = "/workers"
TOPICS = "/topics"
LEADER = "/leader"
ASSIGNMENT = "/assignment"
OWNERS = "/owners"


def node_name(topic: str) -> str:
    """Return a topic's name as a node name. ZooKeeper refuses the names `.` and `..`."""
    return topic if topic.strip(".") else topic.replace(".", "%2E")


def topic_name(node: str) -> str:
    """Return the topic of a node name; the inverse of `node_name`."""
    return node.replace("%2E", ".")


def worker_path(worker: str) -> str:
    return f"{WORKERS}/{worker}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{node_name(topic)}"


def owners_path(topic: str) -> str:
    return f"{OWNERS}/{node_name(topic)}"


def owner_path(key: SlotKey) -> str:
    return f"{OWNERS}/{node_name(key[0])}/{key[1]}"


@dataclass(frozen=True, slots=True)
class WorkerDocument:
    """The data of a worker's node."""

    topics: Mapping[str, int]  # consumed topic → its number of slots, as the worker knows it; empty while it leaves
    weight: int = 1  # capacity relative to the other workers
    host: str = ""
    pid: int = 0
    room: int | None = None  # bytes for the paths of its owner nodes; None for no limit
    redis: str = ""  # identity of the Redis whose messages it handles; empty if unknown

    def to_json(self) -> bytes:
        fields = {"host": self.host, "pid": self.pid, "weight": self.weight, "room": self.room, "redis": self.redis}
        return new_document({**fields, "topics": {**self.topics}}).to_json().encode()

    @classmethod
    @lru_cache(maxsize=1024)  # read in every round, changed rarely
    def from_json(cls, data: bytes) -> WorkerDocument:
        """Parse the data of a worker's node.

        Raises:
            UnreadableDocumentError: The data was written for newer versions, or is not that of a worker's node.
        """
        with reading(data, "a worker's node") as fields:
            topics = {str(name): int(slots) for name, slots in fields["topics"].items()}
            weight, host, pid = max(1, int(fields["weight"])), str(fields["host"]), int(fields["pid"])
            room = None if fields["room"] is None else int(fields["room"])
            return cls(topics, weight, host, pid, room, str(fields["redis"]))


def slots_from_definition(data: bytes) -> int:
    """Return the number of slots in a topic's registered definition.

    Raises:
        UnreadableDocumentError: The definition was written for newer versions, or has no valid number of slots.
    """
    slots = read_document(data, "the topic's definition for its owners").fields.get("slots")
    if type(slots) is not int or not 0 < slots <= 1_000_000:
        raise UnreadableDocumentError(
            f"the topic's definition cannot be read: slots is {slots!r:.50}; it must be from 1 to 1,000,000"
        )
    return slots
