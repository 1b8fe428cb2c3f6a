"""Messages of one slot, kept column by column: what is done with all of them costs little each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, overload
from zlib import crc32

from rmq._model.messages import Encoded

Flat = tuple[bytes, ...]
"""Fields of a stream entry, names and values in turn."""


class Columns(Sequence[Encoded]):
    """Messages of one slot, as a sequence of `Encoded` that holds no object for each of them.

    Args:
        slot: The slot.
        contents: Contents.
        scores: As many scores.
        bodies: Bodies, up to the last message that has one.
        flats: Fields of stream entries, up to the last one that was made of fields.
    """

    __slots__ = ("bodies", "contents", "flats", "scores", "slot")

    def __init__(
        self,
        slot: int,
        contents: list[bytes],
        scores: list[int],
        bodies: list[bytes | None],
        flats: list[tuple[bytes, ...]],
    ) -> None:
        self.slot = slot
        self.contents, self.scores, self.bodies, self.flats = contents, scores, bodies, flats

    @classmethod
    def none(cls, slot: int) -> Columns:
        """Return the columns of no message, to append to."""
        return cls(slot, [], [], [], [])

    @classmethod
    def of(cls, messages: Sequence[Encoded]) -> Columns:
        """Return the columns of some messages, at least one, which are of one slot."""
        if isinstance(messages, Columns):
            return messages
        _, contents, scores, bodies, flats = zip(*messages, strict=True)
        return cls(
            messages[0].slot,
            list(contents),
            list(scores),
            list(bodies) if bodies.count(None) < len(bodies) else [],
            list(flats) if any(flats) else [],
        )

    def append(self, message: Encoded) -> None:
        """Append a message."""
        _, content, score, body, flat = message
        self.contents.append(content)
        self.scores.append(score)
        if body is not None or flat:
            self.complete(body, flat)

    def complete(self, body: bytes | None, flat: tuple[bytes, ...]) -> None:
        """Set the body or fields of the last message. Not needed for a message without either."""
        before = len(self.contents) - 1
        if body is not None:
            self.bodies += repeat(None, before - len(self.bodies))
            self.bodies.append(body)
        if flat:
            self.flats += repeat((), before - len(self.flats))
            self.flats.append(flat)

    def extend(
        self,
        contents: Sequence[bytes],
        scores: Sequence[int],
        bodies: Sequence[bytes | None],
        flats: Sequence[Flat] = (),
    ) -> None:
        """Append messages, at least one; no bodies, or no flats, where none of them has one."""
        before = len(self.contents)
        self.contents += contents
        self.scores += scores
        if bodies:
            self.bodies += repeat(None, before - len(self.bodies))
            self.bodies += bodies
        if flats:
            self.flats += repeat((), before - len(self.flats))
            self.flats += flats

    def replace(self, index: int, message: Encoded) -> None:
        """Put a message with a body in the place of one with a body."""
        self.contents[index], self.scores[index], self.bodies[index] = message.content, message.score, message.body

    @property
    def size_bytes(self) -> int:
        """Size of the contents and bodies."""
        return sum(map(len, self.contents)) + sum([len(body) for body in self.bodies if body is not None])

    @property
    def bodied(self) -> list[tuple[int, bytes]]:
        """Index, from 0, and body of each message that has one."""
        return [(index, body) for index, body in enumerate(self.bodies) if body is not None]

    def __len__(self) -> int:
        return len(self.contents)

    def __iter__(self) -> Iterator[Encoded]:
        bodies, flats = chain(self.bodies, repeat(None)), chain(self.flats, repeat(()))
        return map(Encoded, repeat(self.slot), self.contents, self.scores, bodies, flats)

    @overload
    def __getitem__(self, index: int) -> Encoded: ...
    @overload
    def __getitem__(self, index: slice) -> Columns: ...
    def __getitem__(self, index: int | slice) -> Encoded | Columns:
        contents, scores = self.contents[index], self.scores[index]
        if isinstance(index, slice):
            parts = (contents, scores, self.bodies[index], self.flats[index])
            return Columns(self.slot, *parts)  # pyright: ignore[reportArgumentType] - of lists, slices are lists
        index %= len(self.contents)
        body = self.bodies[index] if index < len(self.bodies) else None
        flat = self.flats[index] if index < len(self.flats) else ()
        return Encoded(self.slot, contents, scores, body, flat)  # pyright: ignore[reportArgumentType] - as above


def slots_of(bases: Iterable[bytes], slots: int) -> list[int]:
    """Return the slots of many messages, as `slot_of` does of one."""
    mask = slots - 1
    return [crc & mask for crc in map(crc32, bases)]


def places_of(slots: Iterable[int]) -> dict[int, list[int]]:
    """Return the places of rows by their slots, both in the order in which they come."""
    places: dict[int, list[int]] = defaultdict(list)
    for index, slot in enumerate(slots):
        places[slot].append(index)
    return places


def gathered(column: Sequence[Any], indices: list[int]) -> Sequence[Any]:
    """Return the values at some places, at least one."""
    if len(indices) == len(column):  # all of them: places stand in their order
        return column
    return itemgetter(*indices)(column) if len(indices) > 1 else (column[indices[0]],)
