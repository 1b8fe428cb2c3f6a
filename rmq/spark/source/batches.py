"""The batch of a streaming query: its offset, its quota for each slot, and its division into partitions. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from rmq._broker.claims import CLAIM_BYTES
from rmq.errors import InvalidValueError
from rmq.spark.calls import CHUNK

VERSION = 1

Part = tuple[int, int, int, int]
"""Slot, number of the chunk in the slot from 0, maximum number of messages in it, and in the batch's earlier chunks."""


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
        try:
            if offset["v"] != VERSION:
                raise ValueError(f"version {offset['v']}")
            quotas = {int(slot): int(quota) for slot, quota in offset["q"].items()}
            wary, topic = bool(offset.get("wary")), offset.get("topic")
            return cls(str(offset["qid"]), int(offset["seq"]), quotas, wary, None if topic is None else str(topic))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidValueError(
                f"the checkpoint's offset {offset!r:.200} was not written by RMQ: {error!r}"
            ) from error

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
    bins: list[list[Part]] = [[] for _ in range(wanted)]
    load = [0] * wanted
    for slot in sorted(batch.quotas, key=lambda slot: (-batch.quotas[slot], slot)):
        lightest = load.index(min(load))
        bins[lightest] += [part for part in parts if part[0] == slot]
        load[lightest] += batch.quotas[slot]
    return [tuple(found) for found in bins]


def default_replays(max_retries: int) -> int:
    """Return the default of `maxReplays`: 3, or one less than a topic's number of retries if that is smaller."""
    return min(3, max(0, max_retries - 1))
