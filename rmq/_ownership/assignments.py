"""The assignment of slots to workers, as a ZooKeeper node.

The node has a table of workers and is compressed, which takes a tenth of the bytes that a worker name per slot would.
If it still exceeds the limit of a node, whole topics are omitted.
"""

from __future__ import annotations

import json
import sys
import zlib
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Any

from rmq._model.schema import new_document, read_document
from rmq._ownership.assignment import Owners
from rmq._ownership.values import SlotKey
from rmq.errors import UnreadableDocumentError

MAX_NODE_BYTES = 1_000_000
"""ZooKeeper refuses more than 1 MiB (`jute.maxbuffer`)."""

_MAX_TEXT_BYTES = 64 * 1024 * 1024
_WHAT = "the assignment in ZooKeeper"


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
