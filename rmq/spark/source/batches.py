"""The batches of streaming queries: their offsets, and their division into partitions. Pure.

The end offset of a batch describes it, and Spark keeps it in the checkpoint: after a crash the batch is read again from
its offset alone. A `Batch` of messages has a quota for each slot, the number of messages that it may claim there. A
`LogBatch` of a STREAM topic has the ids between which its entries lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from rmq.errors import InvalidValueError
from rmq.spark.calls import CHUNK
from rmq.spi.scripts import CLAIM_BYTES

T = TypeVar("T")

VERSION = 1
"""Version of the offsets' form."""

Part = tuple[int, int, int, int]
"""Slot, number of the chunk in the slot from 0, maximum number of messages in it, and in the batch's earlier chunks."""


def parsed(offset: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], T], written_by: str, advice: str = "") -> T:
    """Return what a logged offset describes.

    Args:
        offset: The offset.
        parse: Builds the value; it may fail with any error of a wrong form.
        written_by: The sources that write such offsets, for the error.
        advice: What to do, for the error.

    Raises:
        InvalidValueError: The offset was written by another source, or by a later version of RMQ.
    """
    try:
        if offset["v"] != VERSION:
            raise ValueError(f"the version is {offset['v']}, not {VERSION}")
        return parse(offset)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidValueError(
            f"the checkpoint's offset {offset!r:.200} cannot be read as an offset of {written_by}: {error!r}{advice}"
        ) from error


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of a query, as its end offset describes it.

    Attributes:
        query: Identity of the query, created with its first offset and stored in its checkpoint.
        seq: Number of the batch, from 1; 0 before the first.
        quotas: Slot -> maximum number of messages that the batch takes from it.
        wary: Whether the batch is halved at its first replay, as it may contain messages that the previous one
            returned.
        topic: Name of the query's topic; `None` in offsets of several topics, which have the name as the key.
    """

    query: str
    seq: int = 0
    quotas: Mapping[int, int] = field(default_factory=dict[int, int])
    wary: bool = False
    topic: str | None = None

    def to_offset(self) -> dict[str, Any]:
        """Return the offset in the form that Spark stores in the checkpoint."""
        quotas = {str(slot): quota for slot, quota in sorted(self.quotas.items())}
        offset = {"v": VERSION, "qid": self.query, "seq": self.seq, "q": quotas}
        named = {} if self.topic is None else {"topic": self.topic}
        return offset | named | ({"wary": True} if self.wary else {})

    @classmethod
    def from_offset(cls, offset: Mapping[str, Any]) -> Batch:
        """Rebuild a batch from a logged offset.

        Raises:
            InvalidValueError: The offset was written by another source, or by a later version of RMQ.
        """

        def parse(offset: Mapping[str, Any]) -> Batch:
            quotas = {int(slot): int(quota) for slot, quota in offset["q"].items()}
            wary, topic = bool(offset.get("wary")), offset.get("topic")
            return cls(str(offset["qid"]), int(offset["seq"]), quotas, wary, None if topic is None else str(topic))

        return parsed(offset, parse, "RMQ", "; use a new checkpoint")

    def next(self, quotas: Mapping[int, int], *, wary: bool = False) -> Batch:
        """Return the batch that follows this one."""
        return Batch(self.query, self.seq + 1, quotas, wary, self.topic)

    def of(self, topic: str) -> Batch:
        """Return this batch for a query on a topic, after a check of the topic in its offset.

        Raises:
            InvalidValueError: The checkpoint belongs to another topic.
        """
        if self.topic not in (None, topic):
            raise InvalidValueError(
                f"the checkpoint belongs to topic {self.topic}, but option topic is {topic}: use a new "
                "checkpoint for a query of another topic",
                topic=topic,
            )
        return replace(self, topic=topic)

    @property
    def size(self) -> int:
        """Maximum number of messages in the batch."""
        return sum(self.quotas.values())

    def parts(self) -> Iterator[Part]:
        """Return the chunks of the batch, slot by slot."""
        before = 0
        for slot, quota in sorted(self.quotas.items()):
            for chunk in range(-(-quota // CHUNK)):
                limit = min(CHUNK, quota - chunk * CHUNK)
                yield slot, chunk, limit, before
                before += limit

    def chunk_bytes(self, most: int | None) -> int:
        """Return the maximum bytes of each chunk, so that the batch has up to `most`; `None` for no limit."""
        number = sum(1 for _ in self.chunks())
        return CLAIM_BYTES if most is None or number == 0 else max(1, min(CLAIM_BYTES, most // number))

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Yield the slot and number of each chunk of the batch."""
        return ((slot, chunk) for slot, chunk, _, _ in self.parts())


class Span(NamedTuple):
    """The entries of one slot in a batch.

    Attributes:
        after: Id of the entry before the first one.
        number: Number of entries up to the batch's end.
        missing: Number of entries trimmed or deleted before they were read.
    """

    after: str
    number: int
    missing: int = 0


@dataclass(frozen=True, slots=True)
class LogBatch:
    """One batch of a query on a STREAM topic, as its end offset describes it.

    Attributes:
        query: Identity of the query, created with its first offset and stored in its checkpoint.
        topic: Name of the topic.
        group: Name of its group.
        seq: Number of the batch, from 1; 0 before the first.
        ends: Slot -> id of the last entry of this batch or an earlier one; empty before the first.
        reads: The same slots -> number of entries that the group has read or skipped by then.
        spans: Slot -> its entries in the batch, for slots with entries only.
    """

    query: str
    topic: str
    group: str
    seq: int = 0
    ends: Mapping[int, str] = field(default_factory=dict[int, str])
    reads: Mapping[int, int] = field(default_factory=dict[int, int])
    spans: Mapping[int, Span] = field(default_factory=dict[int, Span])

    def to_offset(self) -> dict[str, Any]:
        """Return the offset in the form that Spark stores in the checkpoint."""
        ends = {str(slot): [end, self.reads[slot]] for slot, end in sorted(self.ends.items())}
        spans = {str(slot): list(span) for slot, span in sorted(self.spans.items())}
        named = {"v": VERSION, "qid": self.query, "topic": self.topic, "group": self.group, "seq": self.seq}
        return named | {"ends": ends, "spans": spans}

    @classmethod
    def from_offset(cls, offset: Mapping[str, Any]) -> LogBatch:
        """Rebuild a batch from a logged offset.

        Raises:
            InvalidValueError: The offset was written by a query on a topic of another type, or by a later version of
                RMQ.
        """

        def parse(offset: Mapping[str, Any]) -> LogBatch:
            ends = {int(slot): str(end) for slot, (end, _) in offset["ends"].items()}
            reads = {int(slot): int(read) for slot, (_, read) in offset["ends"].items()}
            spans = {
                int(slot): Span(str(after), int(number), int(missing))
                for slot, (after, number, missing) in offset["spans"].items()
            }
            query, topic, group = (str(offset[name]) for name in ("qid", "topic", "group"))
            return cls(query, topic, group, int(offset["seq"]), ends, reads, spans)

        return parsed(offset, parse, "RMQ for a STREAM topic", "; use a new checkpoint")

    def next(
        self, before: Mapping[int, tuple[str, int]], ends: Mapping[int, str], spans: Mapping[int, Span]
    ) -> LogBatch:
        """Return the batch that follows this one.

        Args:
            before: Slot -> position of the group before the batch (id and number of entries read), for all slots.
            ends: Slot -> id of the last entry in the batch, for slots with entries only.
            spans: The same slots -> their entries in the batch.
        """
        reads = {slot: read for slot, (_, read) in before.items()}
        for slot, span in spans.items():
            reads[slot] += span.number + span.missing
        stays = {slot: end for slot, (end, _) in before.items()}
        return replace(self, seq=self.seq + 1, ends={**stays, **ends}, reads=reads, spans=spans)


def share(due: Mapping[int, int], limit: int | None) -> dict[int, int]:
    """Divide a read limit among the slots in proportion to their due messages.

    Args:
        due: Slot -> number of due messages.
        limit: Maximum total number of messages; `None` for no limit.

    Returns:
        Slot -> quota, at most its number of due messages; their sum is at most `limit`. Slots without a quota are
        omitted.
    """
    total = sum(due.values())
    if limit is None or limit >= total:
        return {slot: number for slot, number in due.items() if number}
    exact = {slot: divmod(number * limit, total) for slot, number in due.items()}
    quotas = {slot: whole for slot, (whole, _) in exact.items()}
    rest = limit - sum(quotas.values())
    for slot in sorted(exact, key=lambda slot: (-exact[slot][1], slot))[:rest]:
        quotas[slot] += 1
    return {slot: quota for slot, quota in quotas.items() if quota}


def shares(slots: Sequence[int], left: int) -> dict[int, int]:
    """Return the number of entries that each slot may contribute to the next batch: about equal, and at least one."""
    if left < len(slots):
        return dict.fromkeys(slots[:left], 1)
    return dict.fromkeys(slots, left // len(slots))


def cut(batch: Batch, least: int = 1, most: int = 200) -> list[tuple[Part, ...]]:
    """Divide a batch into partitions: groups of whole slots if that yields `least` of them, otherwise runs of chunks.

    Args:
        batch: The batch.
        least: Minimum number of partitions; there are at most as many as chunks.
        most: Maximum number of partitions; in between, one for each `CHUNK` messages, and at most one per slot.

    Returns:
        The partitions' parts, the largest first; none for an empty batch.
    """
    parts = list(batch.parts())
    if not parts:
        return []
    wanted = min(-(-batch.size // CHUNK), len(batch.quotas))
    wanted = min(max(wanted, least), max(most, least), len(parts))
    if wanted > len(batch.quotas):
        bounds = [round(number * len(parts) / wanted) for number in range(wanted + 1)]
        return [tuple(parts[low:high]) for low, high in pairwise(bounds)]
    return [
        tuple(part for slot in slots for part in parts if part[0] == slot) for slots in _balanced(batch.quotas, wanted)
    ]


def cut_slots(batch: LogBatch, least: int, most: int) -> list[list[int]]:
    """Divide the slots of a batch among partitions with about the same number of entries.

    Args:
        batch: The batch.
        least: Minimum number of partitions; there are at most as many as slots.
        most: Maximum number of partitions; in between, one for each `CHUNK` entries.

    Returns:
        The slots of each partition.
    """
    numbers = {slot: span.number for slot, span in batch.spans.items()}
    wanted = max(-(-sum(numbers.values()) // CHUNK), least, 1)
    return _balanced(numbers, min(wanted, max(most, least), len(numbers)))


def _balanced(sizes: Mapping[int, int], number: int) -> list[list[int]]:
    """Divide slots into a number of groups of about the same size: the largest slots first, to the smallest group."""
    groups: list[list[int]] = [[] for _ in range(number)]
    loads = [0] * number
    for slot in sorted(sizes, key=lambda slot: (-sizes[slot], slot)):
        smallest = loads.index(min(loads))
        groups[smallest].append(slot)
        loads[smallest] += sizes[slot]
    return groups


def default_replays(max_retries: int) -> int:
    """Return the default of `maxReplays`: 3, or one less than a topic's number of retries if that is smaller."""
    return min(3, max(0, max_retries - 1))
