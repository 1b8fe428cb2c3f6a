"""Input of `rmq send`: a content or a JSON object per line, converted to messages of the topic's type.

Invalid input raises `InvalidValueError`, which names the value and the rule.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, BinaryIO, TypeAlias, cast

from rmq import (
    Collect,
    FixedTimeMessage,
    JoinMessage,
    Max,
    Min,
    Newest,
    PriorityMessage,
    RangeMergeMessage,
    StreamMessage,
    Sum,
    Topic,
    TopicType,
)
from rmq.errors import InvalidValueError
from rmq.spi import Message, number_ms, typed_duration_ms, typed_instant_ms
from rmq.views.words import dashed, merge_name

MOST_LINE_BYTES = 128 * 1_048_576
"""Maximum length of a line, enough for the largest body with each byte written as an escape of six characters."""


_NUMBER = re.compile(r"[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,3})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Unfit:
    """A JSON value that cannot be a body on any topic, as text for the error."""

    text: str


RowBody: TypeAlias = bytes | int | float | tuple[bytes, ...] | Unfit | None
"""A body as bytes, a JSON number, the items of a JSON array, or a value that cannot be a body."""


@dataclass(frozen=True, slots=True)
class Row:
    """Fields of a message before they are checked against its topic."""

    content: bytes
    body: RowBody = None
    slot_basis: bytes | None = None
    time_range_ms: int | None = None
    priority: int | None = None
    fixed_time_ms: int | None = None
    delay_ms: int | None = None
    fields: Mapping[str, bytes] | None = None
    version: int | None = None
    weight: int | None = None
    part: bytes | None = None
    of: int | None = None

    def message(self, topic: Topic) -> Message:
        """Return the message for a topic."""
        due_by, due = "fixed_time_ms", self.fixed_time_ms
        if self.delay_ms is not None:
            if self.fixed_time_ms is not None:
                raise InvalidValueError("--at (fixed_time in JSON) and --in (delay in JSON) cannot be combined")
            due_by, due = "delay", timedelta(milliseconds=number_ms(self.delay_ms, "delay"))
        ranged, ranked = "--time-range (time_range in JSON)", "--priority (priority in JSON)"
        timed = "--at or --in (fixed_time or delay in JSON)"
        kinds: dict[TopicType, tuple[Callable[..., Message], str, Any, str]] = {
            TopicType.RANGE_MERGE: (RangeMergeMessage, "time_range_ms", self.time_range_ms, ranged),
            TopicType.PRIORITY: (PriorityMessage, "priority", self.priority, ranked),
            TopicType.FIXED_TIME: (FixedTimeMessage, due_by, due, timed),
        }
        for kind, (_, _, value, option) in kinds.items():
            if value is None and kind is topic.type and topic.default_range_ms is not None:
                continue
            if (value is None) == (kind is topic.type):
                verb = "require" if kind is topic.type else "do not take"
                raise InvalidValueError(
                    f"topic {topic.name} is a {dashed(topic.type)} topic; its messages {verb} {option}"
                )
        if self.fields is not None and topic.type is not TopicType.STREAM:
            raise InvalidValueError(
                f"topic {topic.name} is a {dashed(topic.type)} topic; only entries of stream topics have fields"
            )
        self._check_merging(topic)
        extras: dict[str, Any] = {"slot_basis": self.slot_basis, "body": self._merged_body(topic)}
        if topic.type is TopicType.STREAM:
            return StreamMessage(self.content if self.fields is None else self.fields, **extras)
        make, name, value, _ = kinds[topic.type]
        if self.part is not None and self.of is not None:
            return JoinMessage(self.content, self.part, self.of, slot_basis=self.slot_basis, time_range_ms=value)
        extras |= {} if self.version is None else {"version": self.version}
        extras |= {} if self.weight is None else {"weight": self.weight}
        return make(self.content, **{name: value}, **extras)

    def _check_merging(self, topic: Topic) -> None:
        """Raise for fields that the topic's merge does not take, and for missing fields that it requires."""
        merge = topic.merge
        reduce, joins = (None, False) if merge is None else (merge.reduce, merge.joins)
        newest = isinstance(reduce, Newest)
        rules = {  # field -> whether it is required, and whether it is allowed
            "version": (newest, newest),
            "weight": (False, merge is not None and not joins),
            "part": (joins, joins),
            "of": (joins, joins),
            "body": (isinstance(reduce, Max | Min | Sum | Collect) and not joins, not joins),
        }
        for name, (needed, taken) in rules.items():
            given = getattr(self, name) is not None
            if given if not taken else needed and not given:
                is_so = "has no merge" if merge is None else f"has the merge {merge_name(merge)}"
                verb = "require" if needed else "do not take"
                raise InvalidValueError(f"topic {topic.name} {is_so}; its messages {verb} --{name} ({name} in JSON)")

    def _merged_body(self, topic: Topic) -> RowBody:
        """Return the body in the form that the topic's merge takes: a number, one or more items, or a payload."""
        body, reduce = self.body, None if topic.merge is None else topic.merge.reduce
        numeric = isinstance(reduce, Max | Min | Sum)
        if numeric:
            rule, fits = "a number such as 42 or -1.5", isinstance(body, bytes | int | float)
        elif isinstance(reduce, Collect):
            rule, fits = (
                f"{_PAYLOAD_RULE}, or a non-empty array of such values",
                isinstance(body, bytes | tuple) and body != (),
            )
        else:
            rule, fits = _PAYLOAD_RULE, isinstance(body, bytes)
        number = _number(body) if numeric and isinstance(body, bytes) else body
        if body is not None and (not fits or number is None):
            raise InvalidValueError(f"body is {_body_text(body)}; on topic {topic.name} it must be {rule}")
        return number


_PAYLOAD_RULE = 'a string or {"base64": "..."}'


def _number(body: bytes) -> int | float | None:
    """Parse a number; return `None` if the text is not a number."""
    text = body.decode(errors="backslashreplace").strip()
    if not _NUMBER.fullmatch(text):
        return None
    return float(text) if set(text) & set(".eE") else int(text)


def _body_text(body: RowBody) -> str:
    if isinstance(body, bytes):
        return f"{body.decode(errors='backslashreplace').strip()!r:.80}"
    if isinstance(body, Unfit):
        return f"{body.text:.80}"
    if isinstance(body, tuple):
        return "an array" if body else "an empty array"
    return f"{_written(body):.80}"


def _written(value: object) -> str:
    """Format a value of a JSON row for an error: text in quotes as in other errors, other values as JSON."""
    return repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def read_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, line without its line break). Empty lines are skipped."""
    number = 0
    try:
        while line := stream.readline(MOST_LINE_BYTES):
            number += 1
            if len(line) == MOST_LINE_BYTES and not line.endswith(b"\n"):
                raise InvalidValueError(f"line {number} is too long; it must have fewer than {MOST_LINE_BYTES:,} bytes")
            if line := line.removesuffix(b"\n").removesuffix(b"\r"):
                yield number, line
    except OSError as error:
        raise InvalidValueError(f"cannot read the input after line {number}: {error.strerror}") from None


def parse_row(line: bytes, defaults: Row) -> Row:
    """Parse a JSON object into a row. Missing keys take the defaults."""
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"invalid JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidValueError('the line must be a JSON object such as {"content": "item:42"}')
    given = cast("dict[str, object]", found)
    if unknown := sorted(given.keys() - _PARSERS.keys()):
        raise InvalidValueError(f"unknown key {unknown[0]!r:.80}; the keys are {', '.join(_PARSERS)}")
    if ("content" in given) is ("fields" in given):
        raise InvalidValueError(
            '"content" is missing (or "fields", for a stream topic)'
            if not given.keys() & {"content", "fields"}
            else '"content" and "fields" cannot be combined'
        )
    changes: dict[str, Any] = {}
    for key, value in given.items():
        field, parse = _PARSERS[key]
        changes[field] = parse(value, key)
    if given.keys() & {"fixed_time", "delay"}:  # instead of the one that the options say
        changes = {"fixed_time_ms": None, "delay_ms": None, **changes}
    return replace(defaults, **changes)


def _payload(value: object, key: str) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise InvalidValueError(f"{key} contains a lone surrogate, which cannot be encoded in UTF-8") from None
    if _is_payload(value):
        try:
            return base64.b64decode(cast("dict[str, Any]", value)["base64"], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise InvalidValueError(f"{key} is not valid base64: {error}") from None
    raise InvalidValueError(f"{key} is {_written(value):.80}; it must be {_PAYLOAD_RULE}")


def _body(value: object, key: str) -> RowBody:
    if type(value) is int or isinstance(value, float):
        return value
    if isinstance(value, list):
        items = cast("list[object]", value)
        if not all(map(_is_payload, items)):
            return Unfit(_written(items))
        return tuple(_payload(each, f"an item of {key}") for each in items)
    return _payload(value, key) if _is_payload(value) else Unfit(_written(value))


def _is_payload(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, dict) and list(cast("dict[str, object]", value)) == ["base64"])


def _fields(value: object, key: str) -> dict[str, bytes]:
    if not isinstance(value, dict):
        raise InvalidValueError(f'{key} is {_written(value):.80}; it must be an object such as {{"order": "7"}}')
    return {name: _payload(each, f"{key}.{name}") for name, each in cast("dict[str, object]", value).items()}


def parse_fields(texts: Iterable[str]) -> dict[str, bytes]:
    """Parse `NAME=VALUE` arguments into the fields of an entry."""
    fields: dict[str, bytes] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InvalidValueError(f"--field is {text!r}; it must be NAME=VALUE")
        if name in fields:
            raise InvalidValueError(f"--field {name!r} is given twice")
        fields[name] = os.fsencode(value)
    return fields


def _whole(value: object, key: str) -> int:
    if type(value) is not int:
        raise InvalidValueError(f"{key} is {_written(value):.80}; it must be a whole number")
    return value


def _whole_or(parse: Callable[[str, str], int]) -> Callable[[object, str], int]:
    return lambda value, key: parse(value, key) if isinstance(value, str) else _whole(value, key)


_PARSERS: dict[str, tuple[str, Callable[[object, str], object]]] = {
    "content": ("content", _payload),
    "body": ("body", _body),
    "slot_basis": ("slot_basis", _payload),
    "time_range": ("time_range_ms", _whole_or(typed_duration_ms)),
    "priority": ("priority", _whole),
    "fixed_time": ("fixed_time_ms", _whole_or(typed_instant_ms)),
    "delay": ("delay_ms", _whole_or(typed_duration_ms)),
    "fields": ("fields", _fields),
    "version": ("version", _whole),
    "weight": ("weight", _whole),
    "part": ("part", _payload),
    "of": ("of", _whole),
}
