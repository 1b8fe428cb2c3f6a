"""Goes through the slots of a topic for contents that match a pattern: in bounded steps, with a cursor between them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Sequence

from rmq._model.topics import Topic
from rmq._model.whereabouts import PLACES, AnyPlace, FoundMessage, SearchPage
from rmq._scripts import viewing
from rmq._transport.connections import Connections
from rmq._transport.exchange import raise_first
from rmq.errors import InvalidValueError

_FEWEST, MOST = 10, 250
"""Entries to go over in one place of a slot per call."""
_WIDEST = 64
"""Slots per round trip."""
_CURSOR = re.compile(r"[0-9]{1,5}(;[0-9]{1,5}=[0-9]{0,20}(\.[0-9]{0,20}){3})*")
_LAST_CURSOR = 2**64 - 1
"""Redis refuses a larger one."""

_Open = tuple[int, tuple[str, ...]]
"""A slot that was begun, and the cursors in its places: empty where a place is done, or left out."""


class Search:
    """A search through some places of some slots.

    Args:
        connections: Where the topic is.
        topic: The registered definition.
        pattern: What contents have to match, with Redis' `*`, `?` and `[...]`.
        places: Where to look.
        slots: In which slots; the same ones in every step.
        cursor: Where the step before ended; `None` to begin.

    Raises:
        InvalidValueError: Not a cursor of such a search.
    """

    def __init__(
        self,
        connections: Connections,
        topic: Topic,
        pattern: bytes,
        places: Collection[AnyPlace],
        slots: Sequence[int],
        cursor: str | None,
    ) -> None:
        self._connections = connections
        self._topic = topic
        self._pattern = pattern
        self._slots = slots
        self._begin = tuple("0" if place in places else "" for place in PLACES)
        self._next, self._open = 0, deque[_Open]()
        if cursor is not None:
            self._take_up(cursor)

    def step(self, limit: int, budget: int) -> SearchPage:
        """Go on until about `limit` messages were found, about `budget` entries looked at, or all is done."""
        found: list[FoundMessage] = []
        looked_at, width, count = 0, 1, _FEWEST
        while (self._open or self._next < len(self._slots)) and len(found) < limit and looked_at < budget:
            while len(self._open) < width and self._next < len(self._slots):
                self._open.append((self._slots[self._next], self._begin))
                self._next += 1
            part = [self._open.popleft() for _ in range(min(width, len(self._open)))]
            before = len(found)
            looked_at += self._round(part, count, found)
            if len(found) - before < (limit - len(found)) / 4:  # few: look further at once, but not beyond the budget
                width = min(_WIDEST, 4 * width)
                count = max(_FEWEST, min(MOST, 4 * count, (budget - looked_at) // width))
        return SearchPage(tuple(found), self._cursor(), looked_at)

    def _round(self, part: Sequence[_Open], count: int, found: list[FoundMessage]) -> int:
        topic, looked_at = self._topic, 0
        replies = self._connections.run_many(
            [viewing.search(topic, slot, self._pattern, count, cursors) for slot, cursors in part]
        )
        raise_first(replies)
        for (slot, before), (cursors, messages) in zip(part, replies, strict=True):
            found += messages
            # what was gone over at once is small
            looked_at += sum(
                count if each != "0" else _FEWEST for each, old in zip(cursors, before, strict=True) if old
            )
            left = tuple("" if each == "0" else each for each in cursors)
            if any(left):
                self._open.append((slot, left))
        return looked_at

    def _cursor(self) -> str | None:
        if not self._open and self._next >= len(self._slots):
            return None
        return ";".join([str(self._next), *(f"{slot}={'.'.join(cursors)}" for slot, cursors in self._open)])

    def _take_up(self, cursor: str) -> None:
        if not _CURSOR.fullmatch(cursor):
            raise InvalidValueError(f"cursor {cursor!r:.100} is not one that a search gave out")
        first, *opened = cursor.split(";")
        self._next = int(first)
        known = set(self._slots)
        for part in opened:
            slot, _, cursors = part.partition("=")
            if int(slot) not in known:
                raise InvalidValueError(f"cursor {cursor!r:.100} is not one of a search in these slots")
            known.remove(int(slot))  # each stands there once
            places = tuple(cursors.split("."))
            if any(place and int(place) > _LAST_CURSOR for place in places):
                raise InvalidValueError(f"cursor {cursor!r:.100} is not one that a search gave out")
            self._open.append((int(slot), places))


def literal(prefix: bytes) -> bytes:
    """Return the pattern for contents that begin with exactly these bytes."""
    return re.sub(rb"([*?\[\]\\])", rb"\\\1", prefix) + b"*"
