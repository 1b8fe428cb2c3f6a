"""Rows that a task holds before it sends them, either unchanged or with equal contents folded.

The division of the rows into calls depends only on their order, not on the batches in which Spark passes them. A task
that is retried therefore makes the same calls, which the marks in Redis identify.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeVar, cast

from rmq import Collect, Merge, Overflow, Topic, TopicType
from rmq.spi.scripts import ITEMS, Batch, EncodedMessage, Rows, gathered, read_record

T = TypeVar("T")


class HeldRows:
    """A buffer of rows in the order of arrival.

    Args:
        topic: The registered definition.
        most: Maximum number of messages in the buffer.
        most_bytes: Approximate maximum size in bytes; a single row may be larger.

    Attributes:
        number: Number of rows in the buffer.
        size_bytes: Approximate size of these rows, bytes.
        folded: Number of rows folded into others since the start of the task.
    """

    def __init__(self, topic: Topic, most: int, most_bytes: int) -> None:
        self.topic, self.most, self.most_bytes = topic, most, most_bytes
        self.number = self.size_bytes = self.folded = 0
        self._batches: dict[int, Batch] = {}

    def add(self, rows: Rows) -> int:
        """Add rows, and return how many were added; 0 if the held rows must be sent first."""
        room = self.most - self.number
        part = rows[:room] if room < len(rows) else rows
        sizes = list(accumulate(part.sizes))
        taken = bisect_right(sizes, self.most_bytes - self.size_bytes)
        if not taken and part and not self.number:
            taken = 1  # one alone may be larger
        if taken:
            self._hold(part[:taken] if taken < len(part) else part)
            self.size_bytes += sizes[taken - 1]
        return taken

    def _hold(self, rows: Rows) -> None:
        for slot, places in rows.places.items():
            if slot not in self._batches:
                self._batches[slot] = Batch(slot)
            self._batches[slot].extend(rows, places)
        self.number += len(rows)

    def take(self) -> dict[int, Sequence[EncodedMessage]]:
        """Remove all rows from the buffer, and return them by slot."""
        found: dict[int, Sequence[EncodedMessage]] = {**self._batches}
        self._batches = {}
        self.number = self.size_bytes = 0
        return found


class SingleRows(HeldRows):
    """A buffer with one row per content, merged as Redis would merge separate sends.

    RANGE_MERGE keeps the first time range, the other types the last value; all keep the newest body. A task's rows have
    a column of bodies, or none of them has.
    """

    def __init__(self, topic: Topic, most: int, most_bytes: int) -> None:
        super().__init__(topic, most, most_bytes)
        self._single: dict[int, _Single] = {}
        self._merge = _keep_first if topic.type is TopicType.RANGE_MERGE else _keep_last

    def _hold(self, rows: Rows) -> None:
        before = self.number
        for slot, places in rows.places.items():
            single = self._single.setdefault(slot, _Single({}, {}))
            known, contents = len(single.values), gathered(rows.contents, places)
            if rows.bodies:
                _keep_newest(single.bodies, contents, gathered(rows.bodies, places))
            self._merge(single.values, contents, gathered(rows.values, places))
            self.number += len(single.values) - known
        self.folded += len(rows) - (self.number - before)

    def take(self) -> dict[int, Sequence[EncodedMessage]]:
        """Remove all rows from the buffer, and return them by slot."""
        single, self._single = self._single, {}
        super().take()
        return {slot: each.batch(slot) for slot, each in single.items()}


class _Single(NamedTuple):
    """The rows kept per content of a slot: two columns, in the order in which the contents first appeared.

    Attributes:
        values: Content -> value.
        bodies: Content -> body; empty if no row has a body.
    """

    values: dict[bytes, int]
    bodies: dict[bytes, bytes | None]

    def batch(self, slot: int) -> Batch:
        """Return the rows as one batch."""
        return Batch(slot, list(self.values), list(self.values.values()), list(self.bodies.values()))


def _keep_first(kept: dict[bytes, T], contents: Sequence[bytes], values: Sequence[T]) -> None:
    deque(map(kept.setdefault, contents, values), maxlen=0)  # no step of Python for each


def _keep_last(kept: dict[bytes, T], contents: Sequence[bytes], values: Sequence[T]) -> None:
    kept.update(zip(contents, values, strict=True))


def _keep_newest(kept: dict[bytes, bytes | None], contents: Sequence[bytes], bodies: Sequence[bytes | None]) -> None:
    _keep_first(kept, contents, bodies)  # in the order of the contents' first rows
    kept.update((content, body) for content, body in zip(contents, bodies, strict=True) if body is not None)


class FoldedRows(HeldRows):
    """A buffer of rows folded by the topic's reducer; a content has several rows if one would exceed its bounds.

    The limit counts folded rows. Up to `most` contents are therefore sent in the same chunks, whatever the order of
    their rows. If the rows are sorted, all rows of a content are folded before it is sent.
    """

    def add(self, rows: Rows) -> int:
        """Add and fold rows, and return how many were added; fewer if the held rows must be sent first."""
        for index, row in enumerate(rows):
            batch = self._batches.get(row.slot)
            if batch is None:
                batch = self._batches[row.slot] = Batch(row.slot)
            full = self.number >= self.most and not batch.folds(row.content)
            if full or self.size_bytes >= self.most_bytes:
                return index
            added = batch.fold(self.topic, row, None)
            if added is None:
                added = batch.add(row)
                self.number += 1
            else:
                self.folded += 1
            self.size_bytes += added
        return len(rows)


def held_rows(topic: Topic, fold: bool, most: int, most_bytes: int) -> HeldRows:
    """Return the `HeldRows` of a task; with `fold`, one that folds rows of equal content."""
    kind = HeldRows if not fold else SingleRows if topic.merge is None else FoldedRows
    return kind(topic, most, most_bytes)


def in_order(topic: Topic, rows: Sequence[EncodedMessage]) -> Iterator[Sequence[EncodedMessage]]:
    """Yield the rows of a slot in lists that are sent in separate calls.

    With `merge=`, the rows are sorted by content, so that their order does not depend on that of the task's rows. Rows
    that would exceed the bounds of a content go into a later list: a call with all of them would always be refused.
    """
    if topic.merge is None:
        yield rows
        return
    rows = sorted(rows, key=_content)
    if not _refuses(topic):
        yield rows
        return
    bounds = cast("Collect", topic.merge.reduce)
    waves: list[list[EncodedMessage]] = []
    content, wave, number, size = b"", 0, 0, 0
    for row in rows:
        record = read_record(row.body)
        if row.content != content:
            content, wave, number, size = row.content, 0, 0, 0
        number, size = number + int(record.number), size + len(record.value)
        if number > bounds.max_items or size > bounds.max_bytes:
            wave, number, size = wave + (number > record.number), int(record.number), len(record.value)
        if wave == len(waves):
            waves.append([])
        waves[wave].append(row)
    yield from waves


def _content(row: EncodedMessage) -> bytes:
    return row.content


def _refuses(topic: Topic) -> bool:
    """Return whether a send is refused if its message has no room for the items."""
    merge = cast("Merge", topic.merge)
    return merge.kind in ITEMS and merge.overflow(topic.type) in (Overflow.RELEASE, Overflow.REFUSE)
