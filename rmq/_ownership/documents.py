"""The nodes below the chroot, their paths and their contents.

/ensemble               identity of this ensemble, a random UUID, written once
/workers/<worker>       ephemeral: host, pid, weight, topics with their slots
/topics/<topic>         the registered definition
/leader                 ephemeral: the worker that writes the assignment
/assignment             who shall own what; the node's version is the assignment's
/owners/<topic>/<slot>  ephemeral: who owns it; the node's czxid is the epoch

Documents say their schema version (`_model/schema.py`). A reader passes over one that it can't read: a topic whose
definition is unreadable gets no new owners, a worker with an unreadable node no slots, and an unreadable assignment
leaves everything as it is until the leader writes another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from rmq._model.schema import new_document, read_document
from rmq._ownership.values import SlotKey
from rmq.errors import UnreadableDocumentError

ENSEMBLE = "/ensemble"
WORKERS = "/workers"
TOPICS = "/topics"
LEADER = "/leader"
ASSIGNMENT = "/assignment"
OWNERS = "/owners"


def node_name(topic: str) -> str:
    """Return a topic's name as a node's name; ZooKeeper refuses `.` and `..`."""
    return topic if topic.strip(".") else topic.replace(".", "%2E")


def topic_name(node: str) -> str:
    """Return the topic that `node_name` made this name from."""
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
    """What a worker says of itself."""

    topics: Mapping[str, int]  # that it consumes → their number of slots, as it knows it; empty while it leaves
    weight: int = 1  # its capacity against the others'
    host: str = ""
    pid: int = 0
    room: int | None = None  # bytes for the paths of its owner nodes; None: without a limit
    redis: str = ""  # identity of the Redis whose messages it handles; empty while it does not know

    def to_json(self) -> bytes:
        fields = {"host": self.host, "pid": self.pid, "weight": self.weight, "room": self.room, "redis": self.redis}
        return new_document({**fields, "topics": {**self.topics}}).to_json().encode()

    @classmethod
    @lru_cache(maxsize=1024)  # read in every round, changed rarely
    def from_json(cls, data: bytes) -> WorkerDocument:
        """Read a worker's node.

        Raises:
            UnreadableDocumentError: It is for newer readers, or no such document: it stops no other worker.
        """
        fields = read_document(data, "a worker's node in ZooKeeper").fields
        try:
            topics = {str(name): int(slots) for name, slots in fields["topics"].items()}
            weight, host, pid = max(1, int(fields["weight"])), str(fields["host"]), int(fields["pid"])
            room = None if fields["room"] is None else int(fields["room"])
            return cls(topics, weight, host, pid, room, str(fields["redis"]))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise UnreadableDocumentError(f"a worker's node in ZooKeeper cannot be read: {error!r:.200}") from None


def slots_from_definition(data: bytes) -> int:
    """Return the number of slots in a topic's registered definition.

    Raises:
        UnreadableDocumentError: It is for newer readers, or says none.
    """
    slots = read_document(data, "a topic's definition in ZooKeeper").fields.get("slots")
    if type(slots) is not int or not 0 < slots <= 1_000_000:
        raise UnreadableDocumentError(f"a topic's definition in ZooKeeper cannot be read: its slots are {slots!r:.50}")
    return slots
