"""The assignment of slots to workers, the room that each has for its slots, and how a node stores the assignment.

Deterministic: slots stay with their owners as far as balance allows. Two steps. First the quotas: in every topic a
worker gets its fair share (slots × weight ÷ weights of all workers of the topic) rounded down or up, and so does its
total over all topics. The shares to round up are chosen so that slots stay with their owners. Then the slots: a worker
keeps its slots up to its quota; only the rest is distributed.

Source: such a double rounding always exists (controlled rounding: L. H. Cox, "A Constructive Procedure for Unbiased
Controlled Rounding", JASA 82, 1987; it is a flow with whole capacities). `_even_out` finds it along shortest paths.

The node has a table of workers and is compressed, which takes a tenth of the bytes that a worker name per slot would.
If it still exceeds the limit of a node, whole topics are omitted.

A session may own a limited number of slots. When it ends, ZooKeeper writes one transaction with the paths of all its
ephemeral nodes. A transaction longer than `jute.maxbuffer` plus its extra size cannot be read back: the servers lose
their quorum and cannot restart (ZOOKEEPER-4306). The paths of a session are therefore limited in bytes.

Source: ZooKeeper 3.9, `CloseSessionTxn` (a vector of strings, each with four bytes of length in front) and
`BinaryInputArchive` (its limit: `jute.maxbuffer`, 1,048,575 bytes by default, plus `extrasize`).
"""

from __future__ import annotations

import json
import sys
import zlib
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Any

from rmq._model.schema import new_document, read_document
from rmq._ownership.values import LEADER, SlotKey, owner_path, worker_path
from rmq.errors import UnreadableDocumentError

Owners = tuple[str | None, ...]
"""The owner of each slot of one topic, by slot number; None while the slot has none."""

MAX_NODE_BYTES = 1_000_000
"""ZooKeeper refuses more than 1 MiB (`jute.maxbuffer`)."""

_MAX_TEXT_BYTES = 64 * 1024 * 1024
_WHAT = "the assignment in ZooKeeper"

SESSION_BYTES = 900_000
"""Default limit for the paths of one session: below ZooKeeper's default `jute.maxbuffer`, without the extra size."""

_STRING_HEADER = 4
_TRANSACTION_HEADER = 256
"""Session, time, type, digest and checksum: about 100 bytes."""


@dataclass(frozen=True, slots=True)
class Share:
    """The topics that a live worker consumes, and its weight."""

    topics: frozenset[str]
    weight: int = 1  # capacity relative to the other workers


def assign(
    topics: Mapping[str, int], workers: Mapping[str, Share], present: Mapping[str, Sequence[str | None]]
) -> dict[str, Owners]:
    """Return the owner of every slot of every topic; None if no live worker consumes the topic.

    Args:
        topics: Topic → its number of slots.
        workers: Live worker → its share.
        present: Topic → the present owners. Workers, topics and slots that no longer exist are ignored.

    Guarantee: The same arguments give the same result. In every topic, and in total, a worker's number of slots differs
        from its fair share by less than one. In one topic no assignment with this balance moves fewer slots: a joining
        worker takes at most ceil(slots / workers) slots; among equal weights a leaving one frees only its own.
    """
    tables = [_Table.of(name, topics[name], workers, present.get(name, ())) for name in sorted(topics)]
    loads = {worker: Fraction(0) for worker in workers}
    for table in tables:
        table.round_up(loads)
    if sum(bool(table.remainder) for table in tables) > 1:
        _even_out(tables, loads)
    return {table.name: table.deal() for table in tables}


@dataclass(slots=True)
class _Table:
    """One topic: the slots that each worker holds, and its quota."""

    name: str
    slots: int
    held: dict[str, list[int]]
    quota: dict[str, int]
    remainder: dict[str, Fraction]
    up: set[str] = field(default_factory=set[str])

    @classmethod
    def of(cls, name: str, slots: int, workers: Mapping[str, Share], present: Sequence[str | None]) -> _Table:
        weights = {worker: share.weight for worker, share in sorted(workers.items()) if name in share.topics}
        held: dict[str, list[int]] = {worker: [] for worker in weights}
        for slot, owner in enumerate(present[:slots]):
            if owner in held:
                held[owner].append(slot)
        total = sum(weights.values())
        shares = {worker: divmod(slots * weight, total) for worker, weight in weights.items()}
        quota = {worker: whole for worker, (whole, _) in shares.items()}
        remainder = {worker: Fraction(rest, total) for worker, (_, rest) in shares.items() if rest}
        return cls(name, slots, held, quota, remainder)

    def round_up(self, loads: dict[str, Fraction]) -> None:
        """Round shares up: first for workers that hold the extra slot already, then by the smallest total."""
        for worker, remainder in self.remainder.items():
            loads[worker] -= remainder
        spare = int(sum(self.remainder.values()))
        order = sorted(self.remainder, key=lambda worker: (self.lacks_extra_slot(worker), loads[worker], worker))
        self.up.update(order[:spare])
        for worker in self.up:
            loads[worker] += 1

    def lacks_extra_slot(self, worker: str) -> bool:
        """Return whether `worker` holds no slot beyond its quota, so that rounding its share up would move one."""
        return len(self.held.get(worker, ())) <= self.quota.get(worker, 0)

    def deal(self) -> Owners:
        """Let every worker keep its slots up to its quota, and distribute the others in order."""
        owners: list[str | None] = [None] * self.slots
        wanting: list[str] = []
        for worker, slots in self.held.items():
            quota = self.quota[worker] + (worker in self.up)
            for slot in slots[:quota]:
                owners[slot] = worker
            wanting += [worker] * (quota - len(slots))
        takers = iter(wanting)
        return tuple(next(takers, None) if owner is None else owner for owner in owners)


def _even_out(tables: list[_Table], loads: dict[str, Fraction]) -> None:
    """Round other workers' shares up until every total differs from its fair share by less than one.

    `loads` holds total − fair share. A worker at or above +1 gives to one below 0; one at or below −1 takes from one
    above 0.
    """
    while True:
        high = min(loads, key=lambda worker: (-loads[worker], worker))
        low = min(loads, key=lambda worker: (loads[worker], worker))
        if loads[high] >= 1:
            path = _path(tables, high, {worker for worker, load in loads.items() if load < 0}, giving=True)
        elif loads[low] <= -1:
            path = _path(tables, low, {worker for worker, load in loads.items() if load > 0}, giving=False)
        else:
            return
        for table, giver, taker in path:
            table.up.remove(giver)
            table.up.add(taker)
            loads[giver] -= 1
            loads[taker] += 1


def _path(tables: list[_Table], start: str, goals: set[str], *, giving: bool) -> tuple[tuple[_Table, str, str], ...]:
    """Return the shortest chain of (topic, giver, taker) from `start` to one of `goals`; moves of held slots last."""
    paths: dict[str, tuple[tuple[_Table, str, str], ...]] = {start: ()}
    queue = deque([start])
    while queue:
        here = queue.popleft()
        if here in goals:
            return paths[here]
        for table in sorted(tables, key=lambda table: table.lacks_extra_slot(here) is not giving):
            if here not in table.remainder or (here in table.up) is not giving:
                continue
            for there in sorted(table.remainder, key=lambda worker: (table.lacks_extra_slot(worker) is giving, worker)):
                if there not in paths and (there in table.up) is not giving:
                    paths[there] = (*paths[here], (table, here, there) if giving else (table, there, here))
                    queue.append(there)
    raise AssertionError("internal error: the slots could not be divided evenly among the workers")


def spread_slots(
    slots: Collection[int], threads: int, before: Mapping[int, int], full: Collection[int] = ()
) -> dict[int, int]:
    """Return slot → thread number (from 0), as evenly as possible without moving a slot that already has a thread.

    Args:
        slots: The slots to distribute.
        threads: Number of threads.
        before: Slot → its present thread: the messages of a slot stay in one thread.
        full: Threads that get no more slots while there are others.
    """
    takers = [number for number in range(threads) if number not in full] or range(threads)
    spread = {slot: before[slot] for slot in slots if slot in before}
    load = Counter(spread.values())
    for slot in sorted(slots):
        if slot not in spread:
            thread = min(takers, key=lambda number: (load[number], number))
            spread[slot] = thread
            load[thread] += 1
    return spread


@dataclass(frozen=True, slots=True)
class Assignment:
    """The assigned owner of each slot.

    A partial assignment omits topics that do not fit or whose definition cannot be read: their slots stay with their
    owners, and no worker gets more of them.
    """

    topics: Mapping[str, Owners] = field(default_factory=dict[str, "Owners"])
    partial: bool = False

    def of(self, worker: str, topics: Iterable[str]) -> frozenset[SlotKey]:
        """Return the slots of these topics that are assigned to `worker`."""
        return frozenset(
            (topic, slot)
            for topic in topics
            for slot, owner in enumerate(self.topics.get(topic, ()))
            if owner == worker
        )

    def to_json(self) -> bytes:
        names = sorted({owner for owners in self.topics.values() for owner in owners if owner is not None})
        numbers: dict[str | None, str] = {None: "-"} | {name: str(number) for number, name in enumerate(names)}
        topics = {topic: _runs(owners, numbers) for topic, owners in sorted(self.topics.items())}
        text = json.dumps({"workers": names, "topics": topics}, separators=(",", ":")).encode()
        fields = {"partial": self.partial, "zlib": b64encode(zlib.compress(text, 6)).decode()}
        return new_document(fields).to_json().encode()

    def fitting(
        self, keep: Collection[str], limit: int = MAX_NODE_BYTES, most_slots: int = sys.maxsize
    ) -> tuple[Assignment, bytes]:
        """Return the part of this assignment that fits into a node of `limit` bytes, and the contents of that node.

        A part has at most `most_slots` slots. Topics outside `keep` are omitted first, then those with the most slots.
        """

        def exceeds(each: Assignment) -> bool:
            return sum(map(len, each.topics.values())) > most_slots or len(each.to_json()) > limit

        if not exceeds(self):
            return self, self.to_json()
        order = sorted(self.topics, key=lambda topic: (topic not in keep, len(self.topics[topic]), topic))

        def part(number: int) -> Assignment:
            return Assignment({topic: self.topics[topic] for topic in order[:number]}, True)

        fitting = part(bisect_left(range(1, len(order)), True, key=lambda number: exceeds(part(number))))
        return fitting, fitting.to_json()

    @classmethod
    @lru_cache(maxsize=4)
    def from_json(cls, data: bytes) -> Assignment:
        """Parse the node's data.

        Raises:
            UnreadableDocumentError: The data was written for newer versions, or is not an assignment.
        """
        document = read_document(data, _WHAT)
        try:
            fields = document.fields
            return cls(_unpacked(fields["zlib"]), bool(fields["partial"]))
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, zlib.error) as error:
            raise UnreadableDocumentError(f"{_WHAT} cannot be read: {error!r:.200}", version=document.version) from None


def _runs(owners: Owners, numbers: Mapping[str | None, str]) -> str:
    """Encode runs of slots, such as `("a", "a", "b", None)` as `"0x2 1 -"`: worker number, and length of the run."""
    runs = ((numbers[owner], sum(1 for _ in group)) for owner, group in groupby(owners))
    return " ".join(number if length == 1 else f"{number}x{length}" for number, length in runs)


def _unpacked(packed: str) -> dict[str, Owners]:
    unzip = zlib.decompressobj()
    text = unzip.decompress(b64decode(packed, validate=True), _MAX_TEXT_BYTES)
    if not unzip.eof:
        raise ValueError(f"the data are truncated, or have more than {_MAX_TEXT_BYTES} bytes uncompressed")
    fields: Any = json.loads(text)
    workers = [str(name) for name in fields["workers"]]
    topics: dict[str, Owners] = {}
    for topic, runs in fields["topics"].items():
        owners: list[str | None] = []
        for run in runs.split():
            number, _, length = run.partition("x")
            owner = None if number == "-" else workers[int(number)]
            owners += [owner] * _checked_slots(int(length or 1))
        topics[str(topic)] = tuple(owners)
    return topics


def _checked_slots(number: int) -> int:
    if not 0 <= number <= 1_000_000:
        raise ValueError(f"a run of {number} slots is out of range; it must be 0 to 1,000,000")
    return number


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
