"""Rows of a task as messages, column by column: what is done with all of them costs little each. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress, repeat
from operator import add
from typing import Any, overload

from rmq._model.columns import Columns, Flat, gathered, places_of
from rmq._model.messages import Encoded


@dataclass(frozen=True, slots=True)
class Rows(Sequence[Encoded]):
    """Messages of any slots, as a sequence of `Encoded` that holds no object for each of them.

    Attributes:
        slots: Their slots.
        contents: Contents.
        scores: Scores.
        bodies: Bodies; empty where no message has one.
        flats: Fields of stream entries; empty where no entry was made of fields.
    """

    slots: Sequence[int]
    contents: Sequence[bytes]
    scores: Sequence[int]
    bodies: Sequence[bytes | None] = ()
    flats: Sequence[Flat] = ()

    @classmethod
    def of(cls, rows: Sequence[Encoded]) -> Rows:
        """Return some messages as columns."""
        if isinstance(rows, Rows):
            return rows
        return cls(*map(list, zip(*rows, strict=True))) if rows else cls((), (), ())

    def without(self, left_out: Collection[int]) -> Rows:
        """Return the messages but for those at some places."""
        if not left_out:
            return self
        kept = [index not in left_out for index in range(len(self))]
        return Rows(*[list(compress(column, kept)) for column in self._columns])

    @property
    def sizes(self) -> Iterator[int]:
        """Bytes of each message."""
        sizes = map(len, self.contents)
        if self.bodies:
            sizes = map(add, sizes, (0 if body is None else len(body) for body in self.bodies))
        return map(add, sizes, (sum(map(len, flat)) for flat in self.flats)) if self.flats else sizes

    def by_slot(self) -> Iterator[Columns]:
        """Yield the messages of each slot, in their order."""
        for slot, places in places_of(self.slots).items():
            columns = Columns.none(slot)
            columns.extend(*[gathered(column, places) if column else () for column in self._columns[1:]])
            yield columns

    def __len__(self) -> int:
        return len(self.contents)

    def __iter__(self) -> Iterator[Encoded]:
        bodies, flats = chain(self.bodies, repeat(None)), chain(self.flats, repeat(()))
        return map(Encoded, self.slots, self.contents, self.scores, bodies, flats)

    @overload
    def __getitem__(self, index: int) -> Encoded: ...
    @overload
    def __getitem__(self, index: slice) -> Rows: ...
    def __getitem__(self, index: int | slice) -> Encoded | Rows:
        if isinstance(index, slice):
            return Rows(*[column[index] for column in self._columns])
        body, flat = self.bodies[index] if self.bodies else None, self.flats[index] if self.flats else ()
        return Encoded(self.slots[index], self.contents[index], self.scores[index], body, flat)

    @property
    def _columns(self) -> tuple[Sequence[Any], ...]:
        return self.slots, self.contents, self.scores, self.bodies, self.flats
