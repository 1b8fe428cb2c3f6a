"""What sends fold into, as the sends themselves: a value is a tuple of them, and folding puts two tuples in a row.

So nothing can go wrong here in the order of folds; a record is what can be seen of the tuple, by the table in
docs/internals/merging.md.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

MOST = 2**53 - 1


@dataclass(frozen=True)
class Send:
    """One send.

    Attributes:
        weight: How many sends it stands for.
        at_ms: When it was carried out; 0 on its way.
        number: Its version, or its number.
        body: Its body.
        items: Its items.
        wanted: How many parts its join waits for.
    """

    weight: int = 1
    at_ms: int = 0
    number: float = 0
    body: bytes | None = None
    items: tuple[bytes, ...] = ()
    wanted: int = 0


Value = tuple[Send, ...]


def count_of(value: Value) -> int:
    return sum(send.weight for send in value)


def newest(value: Value) -> Send:
    """The send of the largest version, of equal ones the last."""
    return max(reversed(value), key=lambda send: send.number)


def bodied(value: Value) -> Send:
    """The last send with a body, the last of all where none has one."""
    return next((send for send in reversed(value) if send.body is not None), value[-1])


def items_of(kind: str, value: Value) -> list[bytes]:
    items = [item for send in value for item in send.items]
    return items if kind == "C" else list(dict.fromkeys(items))


def framed(items: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(item)) + item for item in items)


def without(value: Value, dropped: list[bytes]) -> Value:
    """The value without some items; `C`: no two have the same."""
    return tuple(replace(send, items=tuple(item for item in send.items if item not in dropped)) for send in value)


def record(kind: str, value: Value) -> bytes:
    """The record of a value, as it is stored."""
    times = [send.at_ms for send in value]
    number, content = 0.0, b""
    match kind:
        case "K" | "R" | "N":
            shown = {"K": value[0], "R": bodied(value), "N": newest(value)}[kind]
            content = b"" if shown.body is None else b"=" + shown.body
            number = shown.number
        case "C" | "U" | "J":
            items = items_of(kind, value)
            number, content = len(items), framed(items)
            if kind == "J":
                content = struct.pack("<d", value[-1].wanted) + content
        case _:
            merge = {"X": max, "I": min, "S": sum}[kind]
            number = merge([send.number for send in value])
    return struct.pack("<4s4dc", b"\0rm1", count_of(value), min(times), max(times), number, kind.encode()) + content
