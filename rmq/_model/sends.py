"""What a message's stored value says of the sends that it stands for. Pure."""

from __future__ import annotations

from typing import TypedDict

from rmq._model.envelope import unwrap
from rmq._model.records import BODIES, ITEMS, NOTHING, Record, read_record
from rmq._model.topics import Topic


class Sends(TypedDict, total=False):
    """What is known of a message's sends, as the views' messages take it; nothing without the topic's `merge`."""

    number: int | float | None
    items: tuple[bytes, ...]
    item_count: int
    merged: int
    first_sent_ms: int | None
    last_sent_ms: int | None
    wanted: int
    version: int | None


def told(topic: Topic, stored: bytes | None) -> tuple[bytes | None, Sends]:
    """Return the body that a stored value says, without its trace context, and what it says of its sends.

    A body is what is stored, or the text of a number; items are none. A value may be torn behind its head.
    """
    if topic.merge is None:
        return unwrap(stored)[0], {}
    record = read_record(stored) or NOTHING
    return body_of(record)[0], {
        "number": None if record.kind in BODIES | ITEMS else record.number,
        "items": record.items,
        "item_count": record.item_count,
        "merged": record.count,
        "first_sent_ms": record.first_ms or None,
        "last_sent_ms": record.last_ms or None,
        "wanted": record.wanted,
        "version": version_of(record),
    }


def version_of(record: Record) -> int | None:
    """Return the version of a record's body; `None` where it has none: it is not of `Newest`, or not of a script."""
    return record.number if record.kind == "N" and isinstance(record.number, int) and record.number >= 0 else None


def body_of(record: Record) -> tuple[bytes | None, str]:
    """Return the body of a record and the trace context before it: of numbers their text, of items none."""
    if record.kind in BODIES:
        return unwrap(record.body)
    return None if record.kind in ITEMS else str(record.number).encode(), ""
