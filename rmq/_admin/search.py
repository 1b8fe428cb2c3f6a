"""Searches the slots of a topic for contents that match a pattern, in bounded steps with a cursor."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Sequence

from rmq._admin.calls import viewing
from rmq._admin.messages import SECTIONS, AnyPlace, FoundMessage, SearchPage
from rmq._model.messages import Payload, payload_bytes
from rmq._model.topics import Topic
from rmq._transport.connections import Connections
from rmq._transport.exchange import results_of
from rmq.errors import InvalidValueError

_FEWEST, MOST = 10, 250
"""Minimum and maximum number of messages examined per state of a slot in one call."""
_WIDEST = 64
"""Maximum number of slots per round trip."""
_CURSOR = re.compile(r"[0-9]{1,5}(;[0-9]{1,5}=[0-9]{0,20}(\.[0-9]{0,20}){3}(~[0-3]\.([0-9a-f]{2})*)?)*")
_LAST_CURSOR = 2**64 - 1
"""The largest cursor that Redis accepts."""

_Shown = tuple[int, bytes]
"""State, from 0, and content of the last message that was returned of a reply with more messages than a page takes."""

_Begun = tuple[int, tuple[str, ...], _Shown | None]
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
    """Search until `limit` messages are found, about `budget` messages are examined, or all slots are done.

    All steps of a search must have the same slots. `cursor` is that of the previous step, `None` for the first.
    """
    begin = tuple("0" if section in sections else "" for section in SECTIONS)
    at, begun = (0, deque[_Begun]()) if cursor is None else _read_cursor(cursor, slots)
    matches: list[FoundMessage] = []
    looked_at, width, count = 0, 1, _FEWEST
    while (begun or at < len(slots)) and len(matches) < limit and looked_at < budget:
        new = slots[at : at + max(0, width - len(begun))]
        begun.extend((slot, begin, None) for slot in new)
        at += len(new)
        part = [begun.popleft() for _ in range(min(width, len(begun)))]
        before = len(matches)
        # as many entries as any page before, so that the reply has the message after which it is to go on
        calls = [viewing.search(topic, slot, pattern, MOST if shown else count, old) for slot, old, shown in part]
        replies = results_of(connections.run_many(calls))
        for (slot, old, shown), (cursors, found) in zip(part, replies, strict=True):
            messages, room = _after(found, shown), limit - len(matches)
            matches += messages[:room]
            if len(messages) > room:  # the rest is found again from here
                begun.append(_rest(slot, old, shown, cursors, messages, room))
                continue
            # a state that is done after one call is small
            looked_at += sum(count if now != "0" else _FEWEST for now, was in zip(cursors, old, strict=True) if was)
            left = tuple("" if now == "0" else now for now in cursors)
            if any(left):
                begun.append((slot, left, None))
        # few matches: examine more per round trip, within the budget
        if len(matches) - before < (limit - len(matches)) / 4:
            width = min(_WIDEST, 4 * width)
            count = max(_FEWEST, min(MOST, 4 * count, (budget - looked_at) // width))
    if not begun and at >= len(slots):
        return SearchPage(tuple(matches), None, looked_at)
    parts = [f"{slot}={'.'.join(cursors)}" + (f"~{shown[0]}.{shown[1].hex()}" if shown else "")
             for slot, cursors, shown in begun]  # fmt: skip
    return SearchPage(tuple(matches), ";".join([str(at), *parts]), looked_at)


def _after(messages: list[FoundMessage], shown: _Shown | None) -> list[FoundMessage]:
    """Return the messages of a reply that no page had yet; all of them if the last one that a page had is gone."""
    if shown is None:
        return messages
    state = SECTIONS[shown[0]]
    last = [number for number, each in enumerate(messages) if (each.place, each.content) == (state, shown[1])]
    return [each for number, each in enumerate(messages) if not (last and number <= last[0] and each.place == state)]


def _rest(
    slot: int, old: Sequence[str], shown: _Shown | None, new: Sequence[str], messages: Sequence[FoundMessage], room: int
) -> _Begun:
    """Return where to go on in a slot of whose reply a page took only the first `room` messages."""
    state = SECTIONS.index(messages[room].place)
    if room and messages[room - 1].place == messages[room].place:
        shown = state, messages[room - 1].content
    elif shown is not None and shown[0] != state:
        shown = None
    before = ["" if now == "0" else now for now in new[:state]]
    return slot, (*before, *old[state:]), shown


def _read_cursor(cursor: str, slots: Sequence[int]) -> tuple[int, deque[_Begun]]:
    """Parse a cursor: return the number of slots that were started, and the slots in progress."""
    if not _CURSOR.fullmatch(cursor):
        raise InvalidValueError(f"cursor {cursor!r:.100} is invalid; pass the cursor of the previous page")
    first, *parts = cursor.split(";")
    known, begun = set(slots), deque[_Begun]()
    for part in parts:
        slot, _, text = part.partition("=")
        text, _, last = text.partition("~")
        if int(slot) not in known:
            raise InvalidValueError(
                f"cursor {cursor!r:.100} belongs to a search in other slots; pass the same slots for every page"
            )
        known.remove(int(slot))  # a cursor has each slot once
        cursors = tuple(text.split("."))
        if any(number and int(number) > _LAST_CURSOR for number in cursors):
            raise InvalidValueError(f"cursor {cursor!r:.100} is invalid; pass the cursor of the previous page")
        begun.append((int(slot), cursors, (int(last[0]), bytes.fromhex(last[2:])) if last else None))
    return int(first), begun


def glob_of(pattern: Payload | None, prefix: Payload | None) -> bytes:
    """Return the pattern of a search: all contents, those of a pattern, or those that begin with a text.

    Raises:
        InvalidValueError: Both are given, or one is not a text or bytes.
    """
    if pattern is not None and prefix is not None:
        raise InvalidValueError("a search takes pattern or prefix, not both")
    if prefix is not None:
        return literal(payload_bytes(prefix, "prefix"))
    return b"*" if pattern is None else payload_bytes(pattern, "pattern")


def literal(prefix: bytes) -> bytes:
    """Return the pattern for contents that begin with exactly these bytes."""
    return re.sub(rb"([*?\[\]\\])", rb"\\\1", prefix) + b"*"
