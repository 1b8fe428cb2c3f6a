"""Searches the slots of a topic for contents that match a pattern, in bounded steps with a cursor."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Sequence

from rmq._broker import viewing
from rmq._model.topics import Topic
from rmq._model.whereabouts import SECTIONS, AnyPlace, FoundMessage, SearchPage
from rmq._transport.connections import Connections
from rmq._transport.exchange import results_of
from rmq.errors import InvalidValueError

_FEWEST, MOST = 10, 250
"""Minimum and maximum number of messages examined per state of a slot in one call."""
_WIDEST = 64
"""Maximum number of slots per round trip."""
_CURSOR = re.compile(r"[0-9]{1,5}(;[0-9]{1,5}=[0-9]{0,20}(\.[0-9]{0,20}){3})*")
_LAST_CURSOR = 2**64 - 1
"""The largest cursor that Redis accepts."""

_Begun = tuple[int, tuple[str, ...]]
"""A slot in progress, with the cursor of each state; empty if the state is done or not searched."""


def search(
    connections: Connections,
    topic: Topic,
    pattern: bytes,
    sections: Collection[AnyPlace],
    slots: Sequence[int],
    cursor: str | None,
    limit: int,
    budget: int,
) -> SearchPage:
    """Search until about `limit` messages are found, about `budget` messages are examined, or all slots are done.

    All steps of a search must have the same slots. `cursor` is that of the previous step, `None` for the first.
    """
    begin = tuple("0" if section in sections else "" for section in SECTIONS)
    at, begun = (0, deque[_Begun]()) if cursor is None else _read_cursor(cursor, slots)
    matches: list[FoundMessage] = []
    looked_at, width, count = 0, 1, _FEWEST
    while (begun or at < len(slots)) and len(matches) < limit and looked_at < budget:
        new = slots[at : at + max(0, width - len(begun))]
        begun.extend((slot, begin) for slot in new)
        at += len(new)
        part = [begun.popleft() for _ in range(min(width, len(begun)))]
        before = len(matches)
        calls = [viewing.search(topic, slot, pattern, count, old) for slot, old in part]
        replies = results_of(connections.run_many(calls))
        for (slot, old), (cursors, messages) in zip(part, replies, strict=True):
            matches += messages
            # a state that is done after one call is small
            looked_at += sum(count if now != "0" else _FEWEST for now, was in zip(cursors, old, strict=True) if was)
            left = tuple("" if now == "0" else now for now in cursors)
            if any(left):
                begun.append((slot, left))
        # few matches: examine more per round trip, within the budget
        if len(matches) - before < (limit - len(matches)) / 4:
            width = min(_WIDEST, 4 * width)
            count = max(_FEWEST, min(MOST, 4 * count, (budget - looked_at) // width))
    if not begun and at >= len(slots):
        return SearchPage(tuple(matches), None, looked_at)
    where = ";".join([str(at), *(f"{slot}={'.'.join(cursors)}" for slot, cursors in begun)])
    return SearchPage(tuple(matches), where, looked_at)


def _read_cursor(cursor: str, slots: Sequence[int]) -> tuple[int, deque[_Begun]]:
    """Parse a cursor: return the number of slots that were started, and the slots in progress."""
    if not _CURSOR.fullmatch(cursor):
        raise InvalidValueError(f"cursor {cursor!r:.100} is invalid; pass the cursor of the previous page")
    first, *parts = cursor.split(";")
    known, begun = set(slots), deque[_Begun]()
    for part in parts:
        slot, _, text = part.partition("=")
        if int(slot) not in known:
            raise InvalidValueError(
                f"cursor {cursor!r:.100} is of a search in other slots; pass the same slots for every page"
            )
        known.remove(int(slot))  # a cursor has each slot once
        cursors = tuple(text.split("."))
        if any(number and int(number) > _LAST_CURSOR for number in cursors):
            raise InvalidValueError(f"cursor {cursor!r:.100} is invalid; pass the cursor of the previous page")
        begun.append((int(slot), cursors))
    return int(first), begun


def literal(prefix: bytes) -> bytes:
    """Return the pattern for contents that begin with exactly these bytes."""
    return re.sub(rb"([*?\[\]\\])", rb"\\\1", prefix) + b"*"
