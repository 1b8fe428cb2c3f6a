"""What a batch of a query is that follows a STREAM topic: its offset, and its cut into partitions. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rmq.errors import InvalidValueError

VERSION = 1

MESSAGES = 1_000
"""There are no more partitions than one for each so many entries, unless told."""


class Span(NamedTuple):
    """What a batch has of one slot.

    Attributes:
        after: Id of the entry before the first one.
        number: How many entries there are up to the batch's end.
        missing: How many were trimmed or deleted before they were read.
    """

    after: str
    number: int
    missing: int = 0


@dataclass(frozen=True, slots=True)
class LogBatch:
    """One batch of a query, as its end offset names it.

    Attributes:
        query: Identity of the query: born with its first offset, kept in its checkpoint.
        topic: Name of the topic.
        group: Name of its group.
        seq: Number of the batch, from 1; 0 before the first.
        ends: Slot -> id of the last entry of this batch, or of the ones before; none before the first.
        reads: The same slots -> how many entries the group has read or passed over by then, from its beginning.
        spans: Slot -> what the batch has of it; only slots that it has something of.
    """

    query: str
    topic: str
    group: str
    seq: int = 0
    ends: Mapping[int, str] = field(default_factory=dict[int, str])
    reads: Mapping[int, int] = field(default_factory=dict[int, int])
    spans: Mapping[int, Span] = field(default_factory=dict[int, Span])

    def to_offset(self) -> dict[str, Any]:
        """Return the offset as Spark logs it in the checkpoint."""
        ends = {str(slot): [end, self.reads[slot]] for slot, end in sorted(self.ends.items())}
        spans = {str(slot): list(span) for slot, span in sorted(self.spans.items())}
        named = {"v": VERSION, "qid": self.query, "topic": self.topic, "group": self.group, "seq": self.seq}
        return named | {"ends": ends, "spans": spans}

    @classmethod
    def from_offset(cls, offset: Mapping[str, Any]) -> LogBatch:
        """Rebuild a batch from a logged offset.

        Raises:
            InvalidValueError: Not an offset of a STREAM topic, or one of a later version.
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
            before: Each slot of the topic -> where the group stands before it: the id, and how many it has read.
            ends: Slot -> id of the last entry; only slots that the batch has something of.
            spans: The same slots -> what it has of them.
        """
        reads = {slot: read for slot, (_, read) in before.items()}
        for slot, span in spans.items():
            reads[slot] += span.number + span.missing
        stays = {slot: end for slot, (end, _) in before.items()}
        return replace(self, seq=self.seq + 1, ends={**stays, **ends}, reads=reads, spans=spans)


def cut_slots(batch: LogBatch, least: int, most: int) -> list[list[int]]:
    """Share the slots of a batch between partitions, each about as many entries.

    Args:
        batch: The batch.
        least: Fewest partitions; there are never more than slots.
        most: Most partitions.

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
    """Return how many entries each slot may give next, so that all get about the same; at least one for each named."""
    if left < len(slots):
        return dict.fromkeys(slots[:left], 1)
    return dict.fromkeys(slots, left // len(slots))
