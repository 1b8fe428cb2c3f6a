"""Limits the number of slots that one ZooKeeper session may own. Pure.

When a session ends, ZooKeeper writes one transaction with the paths of all its ephemeral nodes. A transaction longer
than `jute.maxbuffer` plus its extra size cannot be read back: the servers lose their quorum and cannot restart
(ZOOKEEPER-4306). The paths of a session are therefore limited in bytes.

Source: ZooKeeper 3.9, `CloseSessionTxn` (a vector of strings, each with four bytes of length in front) and
`BinaryInputArchive` (its limit: `jute.maxbuffer`, 1,048,575 bytes by default, plus `extrasize`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from rmq._ownership.assignment import Owners, Share, assign
from rmq._ownership.documents import LEADER, owner_path, worker_path
from rmq._ownership.values import SlotKey

SESSION_BYTES = 900_000
"""Default limit for the paths of one session: below ZooKeeper's default `jute.maxbuffer`, without the extra size."""

_STRING_HEADER = 4
_TRANSACTION_HEADER = 256
"""Session, time, type, digest and checksum: about 100 bytes."""


@dataclass(frozen=True, slots=True)
class SessionBudget:
    """The bytes that the paths of one worker's session may take."""

    limit: int  # bytes of all paths
    worker: str
    chroot: str = ""  # the parent path of all nodes, as ZooKeeper knows it

    @property
    def room(self) -> int:
        """Bytes left for owner nodes: the limit minus the worker's other nodes."""
        worker_nodes = sum(_STRING_HEADER + len(self.chroot) + len(path) for path in (worker_path(self.worker), LEADER))
        return max(0, self.limit - worker_nodes - _TRANSACTION_HEADER)

    def slot_bytes(self, key: SlotKey) -> int:
        return _STRING_HEADER + len(self.chroot) + len(owner_path(key))

    def topic_bytes(self, topic: str, slots: int) -> int:
        """Return the bytes of the topic's longest owner path, that of its last slot."""
        return self.slot_bytes((topic, slots - 1))

    def fit(self, held: Iterable[SlotKey], free: Iterable[SlotKey]) -> tuple[SlotKey, ...]:
        """Return the free slots that fit into the session in addition to the held ones.

        Slots are taken in order of their numbers, across all topics, so that no topic takes all the room.
        """
        ordered = sorted(free, key=lambda key: (key[1], key[0]))
        used = accumulate(map(self.slot_bytes, ordered), initial=sum(map(self.slot_bytes, held)))
        next(used)
        return tuple(sorted(key for key, bytes_used in zip(ordered, used, strict=True) if bytes_used <= self.room))

    def advice(self) -> str:
        """Describe the limit, and how to raise it."""
        return (
            f"a session is limited to session_bytes={self.limit} (each slot takes {len(self.chroot) + 13} bytes"
            " plus the topic name and the slot's digits). Start more workers, or raise jute.maxbuffer on all ZooKeeper"
            " servers and then Coordinator(session_bytes=...)"
        )

    def workers_needed(self, topics: Mapping[str, int]) -> int:
        """Return the number of workers with this budget that are needed to own all slots of these topics."""
        needed = sum(self.topic_bytes(topic, slots) * slots for topic, slots in topics.items())
        return -(-needed // max(1, self.room))

    def shortage(self, topics: Mapping[str, int]) -> str | None:
        """Return a warning if one worker cannot own all slots of these topics; None if it can."""
        if (needed := self.workers_needed(topics)) <= 1:
            return None
        return (
            f"the {sum(topics.values())} slots of {len(topics)} topics need at least {needed} workers: a ZooKeeper"
            f" session is limited to session_bytes={self.limit}"
        )


NO_LIMIT = SessionBudget(1 << 62, "")


def assign_within(
    topics: Mapping[str, int],
    workers: Mapping[str, Share],
    present: Mapping[str, Sequence[str | None]],
    rooms: Mapping[str, int],
    slot_bytes: Mapping[str, int],
) -> dict[str, Owners]:
    """Return the owner of every slot, as `assign` does, without exceeding the budget of any worker's session.

    A worker that would exceed its budget is full: it keeps as many of its slots as fit, and the other workers share the
    rest as if the full worker and its slots did not exist. A slot that fits no worker gets None.

    `rooms` has the bytes for each worker's owner nodes, no entry meaning no limit; `slot_bytes` the bytes of one owner
    node of each topic.
    """
    result: dict[str, list[str | None]] = {topic: [None] * slots for topic, slots in topics.items()}
    had = {topic: dict(enumerate(owners)) for topic, owners in present.items()}
    live = dict(workers)
    while True:
        free = {topic: [slot for slot, owner in enumerate(owners) if owner is None] for topic, owners in result.items()}
        before = {topic: [had.get(topic, {}).get(slot) for slot in slots] for topic, slots in free.items()}
        dealt = assign({topic: len(slots) for topic, slots in free.items()}, live, before)
        taken = _taken(dealt, slot_bytes)
        full = {worker for worker in live if taken[worker] > rooms.get(worker, taken[worker])}
        if not full:
            for topic, owners in dealt.items():
                for slot, owner in zip(free[topic], owners, strict=True):
                    result[topic][slot] = owner
            _fill_gaps(result, workers, rooms, slot_bytes)
            return {topic: tuple(owners) for topic, owners in result.items()}
        for worker in full:
            room = rooms[worker]
            # first the slots that it holds, then low slot numbers of all topics
            keeps = sorted(
                (owner_before != worker, slot, topic)
                for topic, owners in dealt.items()
                for slot, owner, owner_before in zip(free[topic], owners, before[topic], strict=True)
                if owner == worker
            )
            for _, slot, topic in keeps:
                room -= slot_bytes[topic]
                if room < 0:
                    break
                result[topic][slot] = worker
            del live[worker]


def _fill_gaps(
    result: Mapping[str, list[str | None]],
    workers: Mapping[str, Share],
    rooms: Mapping[str, int],
    slot_bytes: Mapping[str, int],
) -> None:
    """Give unowned slots to full workers that still have room for the short path of this topic."""
    taken = _taken(result, slot_bytes)
    left = {worker: room - taken[worker] for worker, room in rooms.items()}
    for topic, owners in sorted(result.items()):
        takers = [name for name in sorted(left) if name in workers and topic in workers[name].topics]
        for slot in [slot for slot, owner in enumerate(owners) if owner is None]:
            taker = max(takers, key=lambda name: left[name], default=None)
            if taker is None or left[taker] < slot_bytes[topic]:
                break
            owners[slot] = taker
            left[taker] -= slot_bytes[topic]


def _taken(owned: Mapping[str, Sequence[str | None]], slot_bytes: Mapping[str, int]) -> Counter[str | None]:
    """Return the bytes that each worker's slots take."""
    taken: Counter[str | None] = Counter()
    for topic, owners in owned.items():
        for worker, number in Counter(owners).items():
            taken[worker] += number * slot_bytes[topic]
    return taken
