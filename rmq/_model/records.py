r"""Records, which are stored instead of bodies on topics with `merge=`, and the fold of two records. Pure.

The libraries `merge_record` and `merge_fold` in `lua/libraries` follow the same rules; docs/internals/merging.md has
the layout and the table.

The trace context of a message is stored in front of its body, where merging and retries keep it: `\0rmq:trace\0`, the
context, `\0`, `1` or `0` for whether there is a body, the body. The body of a message sent without a trace is
stored unchanged, unless it begins like such an envelope: then it is wrapped in one with an empty context.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from struct import Struct
from typing import TypeAlias, cast

MARK = b"\x00rm1"
"""Prefix of a record."""

TRACE_MARK = b"\x00rmq:trace\x00"
"""Prefix of a body with a trace context."""

MOST_CONTEXT = 2_048
"""Longest trace context, in characters."""

TRACEPARENT = "traceparent"
"""The header of W3C Trace Context."""

BODIES, NUMBERS, ITEMS = frozenset("KRN"), frozenset("XIS"), frozenset("CUJ")
"""Kinds of records whose values are bodies, numbers and items."""

MAX_WHOLE = 2**53 - 1
"""Largest n for which a double holds every whole number from -n to n."""

_HEAD = Struct("<4s4dc")
HEAD_BYTES = _HEAD.size
"""Bytes of a record before its value."""

_LENGTH = Struct("<I")
_WANTED = Struct("<d")
_NUMBER = Struct("<4s24xdc")
_NUMBER_KINDS = frozenset((b"X", b"I", b"S"))

Setter: TypeAlias = Callable[[object, object], None]


def wrap(body: bytes | None, trace: str) -> bytes:
    """Return a body with a trace context, which may be empty, in front of it."""
    return b"%s%s\x00%d%s" % (TRACE_MARK, trace.encode("ascii"), body is not None, body or b"")


def is_context(trace: str) -> bool:
    """Return whether a text can be stored as a trace context: ASCII without NUL, up to `MOST_CONTEXT` characters."""
    return len(trace) <= MOST_CONTEXT and trace.isascii() and "\0" not in trace


def written_context(headers: Mapping[str, str]) -> str:
    """Return headers as a trace context: a lone W3C traceparent as it is, others as a JSON object, none as "".

    A context that would be too long loses its baggage, then its tracestate.
    """
    text = headers.get(TRACEPARENT, "") if headers.keys() <= {TRACEPARENT} else json.dumps(headers)
    needless = next((name for name in ("baggage", "tracestate") if name in headers), None)
    if len(text) <= MOST_CONTEXT or needless is None:
        return text
    return written_context({name: value for name, value in headers.items() if name != needless})


def read_context(context: str) -> dict[str, str]:
    """Return the headers of a trace context; none if another program has written something else."""
    if not context.startswith("{"):
        return {TRACEPARENT: context} if context else {}
    try:
        return {str(name): str(value) for name, value in json.loads(context).items()}
    except ValueError:
        return {}


def unwrap(stored: bytes | None) -> tuple[bytes | None, str]:
    """Return the body that was sent and the trace context, which is empty without a trace."""
    if stored is None or not stored.startswith(TRACE_MARK):
        return stored, ""
    trace, end, rest = stored[len(TRACE_MARK) :].partition(b"\x00")
    if not end or len(trace) > MOST_CONTEXT or not trace.isascii() or rest[:1] not in (b"0", b"1"):
        return stored, ""  # not ours
    return (rest[1:] if rest[:1] == b"1" else None), trace.decode()


def setters_of(kind: type) -> tuple[Setter, ...]:
    """Return functions that set the fields of a frozen dataclass, in order, in half the time of its `__init__`."""
    return tuple(getattr(kind, each.name).__set__ for each in fields(kind))


@dataclass(frozen=True, slots=True, init=False)
class Record:
    """The result of folding the sends of one content.

    Attributes:
        count: Number of sends.
        first_ms: Time of the first send, epoch ms by the clock of Redis; 0 if unknown.
        last_ms: Time of the last send, likewise.
        number: The version (`N`), the number (`X`, `I`, `S`), or the number of items (`C`, `U`, `J`); otherwise 0.
        kind: One letter: the kind of fold.
        value: The bytes after the kind, as stored.
    """

    count: int
    first_ms: int
    last_ms: int
    number: int | float
    kind: str
    value: bytes = b""

    def __init__(self, count: int, first_ms: int, last_ms: int, number: float, kind: str, value: bytes = b"") -> None:
        set_count, set_first, set_last, set_number, set_kind, set_value = _SETTERS
        set_count(self, count)
        set_first(self, first_ms)
        set_last(self, last_ms)
        set_number(self, number)
        set_kind(self, kind)
        set_value(self, value)

    @property
    def body(self) -> bytes | None:
        """The body of `K`, `R` and `N`, a trace context before it; `None` without one, and for other kinds."""
        return self.value[1:] if self.value and self.kind in BODIES else None

    @property
    def items(self) -> tuple[bytes, ...]:
        """The items of `C`, `U` and `J`, in the order of sending; empty for other kinds."""
        return tuple(frame[4:] for frame in self.frames())

    @property
    def item_count(self) -> int:
        """Number of items, including those missing from a truncated value; 0 for other kinds."""
        return _whole(self.number) if self.kind in ITEMS else 0

    @property
    def wanted(self) -> int:
        """Number of parts that a join (`J`) waits for; 0 for other kinds."""
        return _whole(*_WANTED.unpack_from(self.value)) if self.kind == "J" and len(self.value) >= 8 else 0

    @property
    def version(self) -> int | None:
        """The version of the body; `None` if it was not merged by `Newest`, or is malformed."""
        return self.number if self.kind == "N" and isinstance(self.number, int) and self.number >= 0 else None

    @property
    def unwrapped(self) -> tuple[bytes | None, str]:
        """The body without its trace context, and the trace context: for a number its text, for items `None`."""
        if self.kind in BODIES:
            return unwrap(self.body)
        return None if self.kind in ITEMS else str(self.number).encode(), ""

    def frames(self) -> Iterator[bytes]:
        """Yield the items, each with its length before it, up to one that is truncated."""
        value, at = self.value, 8 if self.kind == "J" else 0
        while self.kind in ITEMS and at + 4 <= len(value):
            end = at + 4 + int(_LENGTH.unpack_from(value, at)[0])
            if end > len(value):
                return
            yield value[at:end]
            at = end


_SETTERS = setters_of(Record)

NOTHING = Record(1, 0, 0, 0, "K")
"""The record of a message sent without a body."""


def before_value(kind: str) -> int:
    """Return the number of bytes of a value before its body or its first item."""
    return _WANTED.size if kind == "J" else int(kind in BODIES)


def _whole(number: float, least: int = 0) -> int:
    return int(number) if least <= number < 2**63 else least  # not a number, or an infinite one: of no script


def plain(number: float) -> int | float:
    """Return a double, as an int if it is a whole number."""
    return int(number) if -MAX_WHOLE <= number <= MAX_WHOLE and number == int(number) else number


def read_record(stored: bytes | None) -> Record:
    """Read a stored value; `NOTHING` for none. A value without the mark is a plain body that was written by hand."""
    if stored is None:
        return NOTHING
    if len(stored) < _HEAD.size or not stored.startswith(MARK):
        return Record(1, 0, 0, 0, "K", b"=" + stored)
    _, count, first, last, number, kind = _HEAD.unpack_from(stored)
    return Record(
        int(count) if 1 <= count <= MAX_WHOLE else _whole(count, 1),
        int(first) if 0 <= first <= MAX_WHOLE else _whole(first),
        int(last) if 0 <= last <= MAX_WHOLE else _whole(last),
        plain(number),
        kind.decode("latin-1"),
        stored[_HEAD.size :],
    )


def body_in(stored: bytes | None) -> bytes | None:
    """Return the body of a stored record, which may have a trace context; `None` without one: read the record."""
    if stored is None or len(stored) <= HEAD_BYTES or not stored.startswith(MARK):
        return None
    return stored[HEAD_BYTES + 1 :] if stored[HEAD_BYTES - 1] in b"KRN" else None


def numbers_in(stored: Sequence[bytes | None]) -> list[int | float]:
    """Return the numbers of stored records; none unless all are records of a number: then read them one by one."""
    if None in stored or set(map(len, cast("Sequence[bytes]", stored))) != {HEAD_BYTES}:
        return []
    marks, numbers, kinds = zip(*_NUMBER.iter_unpack(b"".join(cast("Sequence[bytes]", stored))), strict=True)
    if {*marks} != {MARK} or not _NUMBER_KINDS.issuperset(kinds):
        return []
    try:
        whole: list[int | float] = [*map(int, numbers)]
    except (OverflowError, ValueError):  # infinite, or not a number
        whole = []
    if whole == [*numbers] and -MAX_WHOLE <= min(whole) and max(whole) <= MAX_WHOLE:
        return whole
    return [*map(plain, numbers)]


def new_record(kind: str, value: bytes, number: float = 0, count: int = 1) -> bytes:
    """Return a record as it is sent: without times, which the script adds."""
    return _HEAD.pack(MARK, count, 0, 0, number, kind.encode()) + value


def write_record(record: Record) -> bytes:
    """Return a record as it is stored."""
    times = record.first_ms, record.last_ms
    head = _HEAD.pack(MARK, record.count, *times, record.number, record.kind.encode("latin-1"))
    return head + record.value


def framed(items: Iterable[bytes]) -> bytes:
    """Return items in the form of a value: each with its length before it."""
    return b"".join([_LENGTH.pack(len(item)) + item for item in items])


def wanting(parts: int) -> bytes:
    """Return the head of a stored join: the number of parts that its message waits for."""
    return _WANTED.pack(parts)


def fold(older: Record, newer: Record) -> Record:
    """Fold two records into one, as if the sends of both had been sends of one message.

    Guarantee: associative for records of one kind; sums are exact within 2^53 - 1.
    """
    number, value = newer.number, newer.value
    if newer.kind == "R" and _has_no_body(newer) and not _has_no_body(older):
        value = older.value
    match newer.kind if newer.kind == older.kind else "":
        case "S":
            number = plain(float(older.number) + float(number))
        case "X":
            number = max(older.number, number)
        case "I":
            number = min(older.number, number)
        case "K":
            value = older.value
        case "N" if older.number > number:
            number, value = older.number, older.value
        case "C":
            number, value = older.number + number, older.value + value
        case "U" | "J":
            number, value = _union(older, newer)
        case _:
            pass
    first = older.first_ms
    if first == 0 or 0 < newer.first_ms < first:
        first = newer.first_ms
    return Record(older.count + newer.count, first, max(older.last_ms, newer.last_ms), number, newer.kind, value)


def _has_no_body(record: Record) -> bool:
    """Return whether the message has no body; it may have a trace context."""
    return unwrap(record.body)[0] is None


def _union(older: Record, newer: Record) -> tuple[int | float, bytes]:
    known = set(older.frames())
    added = [frame for frame in dict.fromkeys(newer.frames()) if frame not in known]
    before = older.value if older.kind == "U" else newer.value[:8] + older.value[8:]
    return older.number + len(added), before + b"".join(added)


def traced(stored: bytes, trace: str) -> bytes:
    """Return a stored record with a trace context before its body; numbers and items have none."""
    return _with_body(stored, lambda body: wrap(body, trace))


def untraced(stored: bytes) -> bytes:
    """Return a stored record without its trace context, which differs between repeats."""
    return _with_body(stored, lambda body: body)


def _with_body(stored: bytes, change: Callable[[bytes | None], bytes | None]) -> bytes:
    """Return a stored record with its body, without a trace context, changed."""
    record = read_record(stored)
    if record.kind not in BODIES:
        return stored
    body = change(unwrap(record.body)[0])
    return write_record(replace(record, value=b"" if body is None else b"=" + body))
