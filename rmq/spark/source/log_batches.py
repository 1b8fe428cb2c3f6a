"""The batch of a query on a STREAM topic: its offset, and its division into partitions. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rmq.errors import InvalidValueError

VERSION = 1

MESSAGES = 1_000
"""Minimum number of entries per partition, unless `minPartitions` asks for more."""


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
    """One batch of a query, as its end offset describes it.

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
        try:
            if offset["v"] != VERSION:
                raise ValueError(f"version {offset['v']}")
            ends = {int(slot): str(end) for slot, (end, _) in offset["ends"].items()}
            reads = {int(slot): int(read) for slot, (_, read) in offset["ends"].items()}
            spans = {
                int(slot): Span(str(after), int(number), int(missing))
                for slot, (after, number, missing) in offset["spans"].items()
            }
            query, topic, group = (str(offset[name]) for name in ("qid", "topic", "group"))
            return cls(query, topic, group, int(offset["seq"]), ends, reads, spans)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidValueError(
                f"the checkpoint's offset {offset!r:.200} was not written by RMQ for a STREAM topic: {error!r}"
            ) from error

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


def cut_slots(batch: LogBatch, least: int, most: int) -> list[list[int]]:
    """Divide the slots of a batch among partitions with about the same number of entries.

    Args:
        batch: The batch.
        least: Minimum number of partitions; there are at most as many as slots.
        most: Maximum number of partitions.

    Returns:
        The slots of each partition.
    """
    total = sum(span.number for span in batch.spans.values())
    wanted = min(max(-(-total // MESSAGES), least, 1), max(most, least), len(batch.spans))
    parts: list[list[int]] = [[] for _ in range(wanted)]
    loads = [0] * wanted
    for slot in sorted(batch.spans, key=lambda slot: (-batch.spans[slot].number, slot)):
        lightest = loads.index(min(loads))
        parts[lightest].append(slot)
        loads[lightest] += batch.spans[slot].number
    return parts


def shares(slots: Sequence[int], left: int) -> dict[int, int]:
    """Return the number of entries that each slot may contribute to the next batch: about equal, and at least one."""
    if left < len(slots):
        return dict.fromkeys(slots[:left], 1)
    return dict.fromkeys(slots, left // len(slots))
