"""How many slots one ZooKeeper session may own: pure.

When a session ends, ZooKeeper writes one transaction with the paths of all its ephemeral nodes. A transaction longer
than `jute.maxbuffer` plus its extra size can't be read back: no server keeps its quorum then, and none starts again
(ZOOKEEPER-4306). So a session's paths have a limit in bytes.

Source: ZooKeeper 3.9, `CloseSessionTxn` (a vector of strings, each with four bytes of length in front) and
`BinaryInputArchive` (what it refuses to read: `jute.maxbuffer`, 1,048,575 bytes by default, plus `extrasize`).
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
"""Paths of one session by default: fits `jute.maxbuffer` as every ZooKeeper has it, without the extra size."""

_STRING_HEADER = 4
_TRANSACTION_HEADER = 256
"""Session, time, type, digest and checksum: about 100 bytes."""


@dataclass(frozen=True, slots=True)
class SessionBudget:
    """What the paths of one worker's session may take."""

    limit: int  # bytes of all paths
    worker: str
    chroot: str = ""  # the path below which all nodes lie, as ZooKeeper knows it

    @property
    def room(self) -> int:
        """Bytes for owner nodes: the limit without the worker's own nodes."""
        worker_nodes = sum(_STRING_HEADER + len(self.chroot) + len(path) for path in (worker_path(self.worker), LEADER))
        return max(0, self.limit - worker_nodes - _TRANSACTION_HEADER)

    def slot_bytes(self, key: SlotKey) -> int:
        return _STRING_HEADER + len(self.chroot) + len(owner_path(key))

    def topic_bytes(self, topic: str, slots: int) -> int:
        """Return what the slot with the longest path takes."""
        return self.slot_bytes((topic, slots - 1))

    def fit(self, held: Iterable[SlotKey], free: Iterable[SlotKey]) -> tuple[SlotKey, ...]:
        """Return those of the free slots for which there is room beside the held ones.

        Low slot numbers of all topics come first, so that no topic gets everything.
        """
        ordered = sorted(free, key=lambda key: (key[1], key[0]))
        used = accumulate(map(self.slot_bytes, ordered), initial=sum(map(self.slot_bytes, held)))
        next(used)
        return tuple(sorted(key for key, bytes_used in zip(ordered, used, strict=True) if bytes_used <= self.room))

    def advice(self) -> str:
        """Return what the limit is, and what to do where it is reached."""
        return (
            f"the paths of a session's nodes may take session_bytes={self.limit} (per slot {len(self.chroot) + 13}"
            " + the topic's name + the slot's digits). Start more workers; or raise jute.maxbuffer on all ZooKeeper"
            " servers, then Coordinator(session_bytes=...)"
        )

    def workers_needed(self, topics: Mapping[str, int]) -> int:
        """Return how many workers with this budget it takes to own all slots of these topics."""
        needed = sum(self.topic_bytes(topic, slots) * slots for topic, slots in topics.items())
        return -(-needed // max(1, self.room))

    def shortage(self, topics: Mapping[str, int]) -> str | None:
        """Return in words that one worker can't own all slots of these topics; None if it can."""
        if (needed := self.workers_needed(topics)) <= 1:
            return None
        return (
            f"the {sum(topics.values())} slots of {len(topics)} topics take {needed} workers at least: the paths of one"
            f" session's nodes may take session_bytes={self.limit}"
        )


NO_LIMIT = SessionBudget(1 << 62, "")


def assign_within(
    topics: Mapping[str, int],
    workers: Mapping[str, Share],
    present: Mapping[str, Sequence[str | None]],
    rooms: Mapping[str, int],
    slot_bytes: Mapping[str, int],
) -> dict[str, Owners]:
    """Return the owner of every slot, as `assign` does, and give no worker more than its session holds.

    A worker that would get too much is full: it keeps its slots as far as there is room, is filled up, and the others
    share the rest as if it and its slots were not there. A slot for which no worker has room gets None.

    `rooms` are bytes for a worker's owner nodes, without an entry there is no limit; `slot_bytes` is what one such node
    of a topic takes.
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
            # first the slots that it has, then low numbers of all topics
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
    """Give slots without an owner to full workers with a little room left: too little for a longer name's slot."""
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
    """Return how many bytes each worker's slots take."""
    taken: Counter[str | None] = Counter()
    for topic, owners in owned.items():
        for worker, number in Counter(owners).items():
            taken[worker] += number * slot_bytes[topic]
    return taken
