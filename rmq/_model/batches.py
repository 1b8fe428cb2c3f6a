"""Encoded messages, and batches of them for one call. Pure.

An `EncodedMessage` is one message, checked by its topic's `Encoder`. A `Batch` holds the messages of one slot for one
call; `Rows` holds messages of any slots in the order given, before they are sorted by slot. Both are stored as
columns, so that operations on all messages cost little per message. In a batch, the columns of bodies and of fields
end with the last message that has any.

Messages of one content are folded before they are sent, with the result of merging their sends; see `fold_pair`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, compress, repeat
from operator import add, itemgetter
from typing import Any, NamedTuple, TypeAlias, cast, overload
from zlib import crc32

from rmq._model.merging import Collect, Merge, PriorityRule, Sliding
from rmq._model.records import ITEMS, MAX_WHOLE, Record, fold, read_record, write_record
from rmq._model.settings import TopicType
from rmq._model.topics import Topic

Fields: TypeAlias = tuple[bytes, ...]
"""Fields of a stream entry, names and values in turn."""


class EncodedMessage(NamedTuple):
    """A message ready for its slot.

    Attributes:
        slot: Number of the slot.
        content: Content in bytes.
        value: Time range in ms, priority, or due time in epoch ms, by the topic's type. A due time below 0 is a delay:
            ms from arrival, negated.
        body: Body in bytes, or `None`; a record on topics with `merge`.
        fields: Fields of a stream entry that is sent as fields; the content is then their concatenation.
    """

    slot: int
    content: bytes
    value: int
    body: bytes | None
    fields: Fields = ()


Messages: TypeAlias = Sequence[EncodedMessage]

Row: TypeAlias = tuple[int, bytes, int, bytes | None, Fields]
"""The fields of an `EncodedMessage` as a plain tuple, which takes half the time to create and unpack."""


_new = cast("Callable[[type[EncodedMessage], Row], EncodedMessage]", tuple.__new__)  # pyright: ignore[reportUnknownMemberType]


class Batch(Sequence[EncodedMessage]):
    """The messages of one slot for one call: a sequence of `EncodedMessage`, stored as columns.

    Args:
        slot: Number of the slot.
        contents: Contents.
        values: Values, one for each content.
        bodies: Bodies, up to the last message that has one.
        fields: Fields of stream entries, up to the last one that is sent as fields.

    Attributes:
        size_bytes: Size of contents and bodies.
        messages: The messages as the caller gave them, or the numbers of their rows.
        positions: Positions of the messages in the user's call, if outcomes are requested.
        folded: Index in the batch -> the caller's messages that were folded into the message there.
        completion: Id by which Redis recognises a repeat of the call; `None` if a repeat merges.
    """

    __slots__ = (
        "_places", "bodies", "completion", "contents", "fields", "folded", "messages", "positions", "size_bytes",
        "slot", "values",
    )  # fmt: skip

    def __init__(
        self,
        slot: int,
        contents: list[bytes] | None = None,
        values: list[int] | None = None,
        bodies: list[bytes | None] | None = None,
        fields: list[Fields] | None = None,
    ) -> None:
        self.slot = slot
        self.contents: list[bytes] = contents or []
        self.values: list[int] = values or []
        self.bodies: list[bytes | None] = bodies or []
        self.fields: list[Fields] = fields or []
        self.size_bytes = _size_of(self.contents, self.bodies) if contents else 0
        self.messages: list[Any] = []
        self.positions: list[int] = []
        self.folded: dict[int, list[Any]] = {}
        self.completion: Any = None
        self._places: dict[bytes, int] = {}

    @classmethod
    def of(cls, messages: Sequence[EncodedMessage]) -> Batch:
        """Return messages of one slot, at least one, as a batch."""
        if isinstance(messages, Batch):
            return messages
        _, contents, values, bodies, fields = zip(*messages, strict=True)
        return cls(
            messages[0].slot,
            list(contents),
            list(values),
            list(bodies) if bodies.count(None) < len(bodies) else [],
            list(fields) if any(fields) else [],
        )

    def add(self, row: Row, message: object = None) -> int:
        """Append a message and the caller's object for it; return the number of bytes added."""
        _, content, value, body, fields = row
        self.contents.append(content)
        self.values.append(value)
        self.messages.append(message)
        size_bytes = len(content)
        if body is not None or fields:
            before = len(self.contents) - 1
            if body is not None:
                size_bytes += len(body)
                self.bodies += repeat(None, before - len(self.bodies))
                self.bodies.append(body)
            if fields:
                self.fields += repeat((), before - len(self.fields))
                self.fields.append(fields)
        self.size_bytes += size_bytes
        return size_bytes

    def extend(self, rows: Rows, places: list[int]) -> None:
        """Append the rows at the given positions, at least one."""
        before = len(self.contents)
        contents = gathered(rows.contents, places)
        self.contents += contents
        self.values += gathered(rows.values, places)
        bodies: Sequence[bytes | None] = ()
        if rows.bodies:
            bodies = gathered(rows.bodies, places)
            self.bodies += repeat(None, before - len(self.bodies))
            self.bodies += bodies
        if rows.fields:
            self.fields += repeat((), before - len(self.fields))
            self.fields += gathered(rows.fields, places)
        self.size_bytes += _size_of(contents, bodies)

    def fold(self, topic: Topic, encoded: EncodedMessage, message: object) -> int | None:
        """Fold a message into the last one of its content; return the bytes added, or `None` if it was not folded."""
        place = self._places.get(encoded.content)
        together = None if place is None else fold_pair(topic, self[place], encoded)
        if place is None or together is None:
            self._places[encoded.content] = len(self.contents)
            return None
        added = len(together.body or b"") - len(self.bodies[place] or b"")
        self.values[place], self.bodies[place] = together.value, together.body
        self.folded.setdefault(place, []).append(message)
        self.size_bytes += added
        return added

    def folds(self, content: bytes) -> bool:
        """Return whether `fold` has a message of this content, into which it may fold another one."""
        return content in self._places

    @property
    def taken(self) -> int:
        """Number of the caller's messages in the batch, including folded ones."""
        return len(self.messages) + sum(map(len, self.folded.values()))

    def originals(self, first: int = 0, last: int | None = None) -> list[Any]:
        """Return the caller's messages that became messages `first` to `last` (exclusive) of the batch."""
        if not self.folded:
            return self.messages[first:last]
        originals: list[Any] = []
        for index, message in list(enumerate(self.messages))[first:last]:
            originals += (message, *self.folded.get(index, ()))
        return originals

    @property
    def bodied(self) -> list[tuple[int, bytes]]:
        """Index, from 0, and body of each message with a body."""
        return [(index, body) for index, body in enumerate(self.bodies) if body is not None]

    def __len__(self) -> int:
        return len(self.contents)

    def __iter__(self) -> Iterator[EncodedMessage]:
        bodies, fields = chain(self.bodies, repeat(None)), chain(self.fields, repeat(()))
        return _messages(repeat(self.slot), self.contents, self.values, bodies, fields)

    @overload
    def __getitem__(self, index: int) -> EncodedMessage: ...
    @overload
    def __getitem__(self, index: slice) -> Batch: ...
    def __getitem__(self, index: int | slice) -> EncodedMessage | Batch:
        if isinstance(index, slice):
            return Batch(self.slot, self.contents[index], self.values[index], self.bodies[index], self.fields[index])
        content, value = self.contents[index], self.values[index]
        index %= len(self.contents)
        body = self.bodies[index] if index < len(self.bodies) else None
        fields = self.fields[index] if index < len(self.fields) else ()
        return EncodedMessage(self.slot, content, value, body, fields)


class Rows:
    """Messages of any slots in the given order, stored as columns. Iterating yields an `EncodedMessage` for each.

    Args:
        slots: Slot of each message.
        contents: Content of each message.
        values: Value of each message.
        bodies: Bodies; empty if no message has one.
        fields: Fields of stream entries; empty if no entry has fields.
    """

    __slots__ = ("bodies", "contents", "fields", "slots", "values")

    def __init__(
        self,
        slots: Sequence[int],
        contents: Sequence[bytes],
        values: Sequence[int],
        bodies: Sequence[bytes | None] = (),
        fields: Sequence[Fields] = (),
    ) -> None:
        self.slots, self.contents, self.values, self.bodies, self.fields = slots, contents, values, bodies, fields

    @classmethod
    def of(cls, messages: Sequence[EncodedMessage]) -> Rows:
        """Return messages as columns."""
        return cls(*map(list, zip(*messages, strict=True))) if messages else cls((), (), ())

    def without(self, left_out: Collection[int]) -> Rows:
        """Return all messages except those at the given positions."""
        if not left_out:
            return self
        kept = [index not in left_out for index in range(len(self))]
        return Rows(*[list(compress(column, kept)) for column in self._columns])

    @property
    def sizes(self) -> Iterator[int]:
        """Size of each message in bytes."""
        sizes = map(len, self.contents)
        if self.bodies:
            sizes = map(add, sizes, (0 if body is None else len(body) for body in self.bodies))
        return map(add, sizes, (sum(map(len, fields)) for fields in self.fields)) if self.fields else sizes

    @property
    def longest(self) -> int:
        """Upper bound of a message's size in bytes, without fields."""
        bodies = [0 if body is None else len(body) for body in self.bodies]
        return max(map(len, self.contents), default=0) + max(bodies, default=0)

    @property
    def places(self) -> dict[int, list[int]]:
        """Slot -> positions of its messages, in the given order."""
        slots = self.slots
        if slots and slots[0] == slots[-1] and slots.count(slots[0]) == len(slots):
            return {slots[0]: list(range(len(slots)))}
        places: dict[int, list[int]] = defaultdict(list)
        for index, slot in enumerate(slots):
            places[slot].append(index)
        return places

    def __len__(self) -> int:
        return len(self.contents)

    def __iter__(self) -> Iterator[EncodedMessage]:
        bodies, fields = self.bodies or repeat(None), self.fields or repeat(())
        return _messages(self.slots, self.contents, self.values, bodies, fields)

    def __getitem__(self, part: slice) -> Rows:
        return Rows(*[column[part] for column in self._columns])

    @property
    def _columns(self) -> tuple[Sequence[Any], ...]:
        return self.slots, self.contents, self.values, self.bodies, self.fields


def _messages(*columns: Iterable[Any]) -> Iterator[EncodedMessage]:
    """Return an iterator over the rows of columns as messages, without a Python call for each."""
    rows: Iterator[Row] = zip(*columns, strict=False)  # pyright: ignore[reportAssignmentType]
    return map(_new, repeat(EncodedMessage), rows)


def slots_of(bases: Iterable[bytes], slots: int) -> list[int]:
    """Return the slot for each slot basis, as `slot_of` does for one."""
    mask = slots - 1
    return [crc & mask for crc in map(crc32, bases)]


def gathered(column: Sequence[Any], places: list[int]) -> Sequence[Any]:
    """Return the values at the given positions, at least one."""
    if len(places) == len(column):  # all of them: places stand in their order
        return column
    return itemgetter(*places)(column) if len(places) > 1 else (column[places[0]],)


def _size_of(contents: Iterable[bytes], bodies: Iterable[bytes | None]) -> int:
    return sum(map(len, contents)) + sum([len(body) for body in bodies if body is not None])


def fold_pair(topic: Topic, older: EncodedMessage, newer: EncodedMessage) -> EncodedMessage | None:
    """Fold two messages of one content into one; return `None` if they must not be folded.

    They are not if the result would exceed the bounds of a `Collect` or the range of a `Sum`, or might differ from that
    of separate sends: the newer one then follows as another message of its content.

    Guarantee: sending the result has the same effect as sending both messages one by one at the same instant, unless a
        bound of `Collect` refuses or drops items or a FIXED_TIME is in the past.
    """
    merge, first, second = cast("Merge", topic.merge), read_record(older.body), read_record(newer.body)
    together = _together(merge, first, second)
    if together is None:
        return None
    outdated = first.kind == "N" and first.number > second.number
    value = older.value if outdated else _value(topic, merge, older.value, newer.value)
    return older._replace(value=value, body=write_record(together))


def _together(merge: Merge, older: Record, newer: Record) -> Record | None:
    """Fold the records of two sends; return `None` if they must not be folded."""
    if newer.kind == "N" and merge.priority is not PriorityRule.LAST:
        return None  # an older version leaves the priority: which one is older the message in store says, too
    if newer.kind == "J" and older.wanted != newer.wanted:
        return None  # the first of them may be complete by itself
    together = fold(older, newer)
    if together.kind == "S" and abs(together.number) > MAX_WHOLE:
        return None
    if together.kind in ITEMS:
        bounds = cast("Collect", merge.reduce)
        size = len(together.value) - (8 if together.kind == "J" else 0)
        if together.number > bounds.max_items or size > bounds.max_bytes:
            return None
    return together


def _value(topic: Topic, merge: Merge, older: int, newer: int) -> int:
    """Return the time range, due time or priority of the message into which two sends are folded."""
    if topic.type is TopicType.RANGE_MERGE:
        return newer if isinstance(merge.window, Sliding) else older
    if topic.type is TopicType.FIXED_TIME or merge.priority is PriorityRule.LAST:
        return newer
    if merge.priority is PriorityRule.SUM:
        return min(older + newer, topic.priorities[1])
    return (max if merge.priority is PriorityRule.HIGHEST else min)(older, newer)
