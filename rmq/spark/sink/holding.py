"""What a task holds back before it sends: rows as they come, or with equal contents folded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar, cast

from rmq._model.columns import Columns
from rmq._model.folding import fold_pair
from rmq._model.merging import Merge
from rmq._model.messages import Encoded
from rmq._model.records import ITEMS, Record, read_record
from rmq._model.reducers import Collect, Overflow
from rmq._model.topics import Topic, TopicType
from rmq.spark.sink.rows import Rows

T = TypeVar("T")


class HeldRows:
    """Rows in the order in which they came.

    Attributes:
        number: Rows that are held.
        size_bytes: About how many bytes they have.
        folded: Rows that were folded into others, since the beginning.
    """

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.number = self.size_bytes = self.folded = 0
        self._columns: dict[int, Columns] = {}

    def add(self, rows: Rows) -> None:
        """Take rows over."""
        for part in rows.by_slot():
            held = self._columns.setdefault(part.slot, part)
            if held is not part:
                held.extend(part.contents, part.scores, part.bodies, part.flats)
        self.number += len(rows)

    def came(self, size_bytes: int) -> None:
        """Note how large the rows were that came."""
        self.size_bytes += size_bytes

    def take(self) -> dict[int, Sequence[Encoded]]:
        """Hand all rows over, by slot."""
        found: dict[int, Sequence[Encoded]] = {**self._columns}
        self._columns = {}
        self.number = self.size_bytes = 0
        return found


class SingleRows(HeldRows):
    """One row of each content, as Redis merges what is sent one by one: of RANGE_MERGE the first, else the last."""

    def __init__(self, topic: Topic) -> None:
        super().__init__(topic)
        self._single: dict[int, _Single] = {}
        self._merge = _keep_first if topic.type is TopicType.RANGE_MERGE else _keep_last

    def add(self, rows: Rows) -> None:
        """Take rows over, and fold them."""
        before = self.number
        for part in rows.by_slot():
            single = self._single.setdefault(part.slot, _Single({}, {}))
            known = len(single.scores)
            if part.bodies or single.bodies:
                if len(single.bodies) < known:
                    single.bodies.update(dict.fromkeys(single.scores))
                self._merge(single.bodies, part.contents, part.bodies or [None] * len(part))
            self._merge(single.scores, part.contents, part.scores)
            self.number += len(single.scores) - known
        self.folded += len(rows) - (self.number - before)

    def take(self) -> dict[int, Sequence[Encoded]]:
        """Hand all rows over, by slot."""
        single, self._single = self._single, {}
        super().take()
        return {slot: each.columns(slot) for slot, each in single.items()}


class _Single(NamedTuple):
    """What is kept of each content of a slot: two columns, both in the order in which the contents came first.

    Attributes:
        scores: Content -> score.
        bodies: Content -> body; empty where none has one.
    """

    scores: dict[bytes, int]
    bodies: dict[bytes, bytes | None]

    def columns(self, slot: int) -> Columns:
        """Return the rows."""
        return Columns(slot, list(self.scores), list(self.scores.values()), list(self.bodies.values()), [])


def _keep_first(kept: dict[bytes, T], contents: Sequence[bytes], values: Sequence[T]) -> None:
    deque(map(kept.setdefault, contents, values), maxlen=0)  # no step of Python for each


def _keep_last(kept: dict[bytes, T], contents: Sequence[bytes], values: Sequence[T]) -> None:
    kept.update(zip(contents, values, strict=True))


class FoldedRows(HeldRows):
    """Rows folded by the topic's reducer; a content has several rows where its bounds part them.

    What is held counts, not what came: so as many contents as may be held are sent in the same chunks, whatever the
    order in which they came.
    """

    def __init__(self, topic: Topic) -> None:
        super().__init__(topic)
        self._rows: dict[int, list[Encoded]] = {}
        self._places: dict[int, dict[bytes, int]] = {}

    def add(self, rows: Rows) -> None:
        """Take rows over, and fold them."""
        for row in rows:
            held, places = self._rows.setdefault(row.slot, []), self._places.setdefault(row.slot, {})
            place = places.get(row.content)
            together = None if place is None else fold_pair(self.topic, held[place], row)
            if place is None or together is None:
                places[row.content] = len(held)
                held.append(row)
                self.number += 1
                self.size_bytes += len(row.content) + len(row.body or b"")
            else:
                self.size_bytes += len(together.body or b"") - len(held[place].body or b"")
                held[place] = together
                self.folded += 1

    def came(self, size_bytes: int) -> None:
        """Pass over it: what is held may be much smaller."""

    def take(self) -> dict[int, Sequence[Encoded]]:
        """Hand all rows over, by slot."""
        found: dict[int, Sequence[Encoded]] = {**self._rows}
        self._rows, self._places = {}, {}
        super().take()
        return found


def held_rows(topic: Topic, fold: bool) -> HeldRows:
    """Return what holds the rows of a task back; `fold`: with equal contents folded."""
    if not fold:
        return HeldRows(topic)
    return SingleRows(topic) if topic.merge is None else FoldedRows(topic)


def in_order(topic: Topic, rows: Sequence[Encoded]) -> Iterator[Sequence[Encoded]]:
    """Yield the rows of a slot in the lists that go into calls of their own.

    Where the topic merges, they come in the order of their contents, which does not depend on that of the task's rows.
    What would make one content too full for a call goes into a later list: such a call would never find room.
    """
    if topic.merge is None:
        yield rows
        return
    rows = sorted(rows, key=_content)
    if not _refuses(topic):
        yield rows
        return
    bounds = cast("Collect", topic.merge.reduce)
    waves: list[list[Encoded]] = []
    content, wave, number, size = b"", 0, 0, 0
    for row in rows:
        record = cast("Record", read_record(row.body))
        if row.content != content:
            content, wave, number, size = row.content, 0, 0, 0
        number, size = number + int(record.number), size + len(record.value)
        if number > bounds.max_items or size > bounds.max_bytes:
            wave, number, size = wave + (number > record.number), int(record.number), len(record.value)
        if wave == len(waves):
            waves.append([])
        waves[wave].append(row)
    yield from waves


def _content(row: Encoded) -> bytes:
    return row.content


def _refuses(topic: Topic) -> bool:
    """Return whether a send is refused where a message is full of items."""
    merge = cast("Merge", topic.merge)
    return merge.kind in ITEMS and merge.overflow(topic.type) in (Overflow.RELEASE, Overflow.REFUSE)
