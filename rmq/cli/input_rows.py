"""What `rmq send` reads: a content or a JSON object a line, made into messages of the topic's type.

What breaks a rule raises `InvalidValueError`.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, cast

from rmq._model.display import dashed
from rmq._model.messages import FixedTimeMessage, Message, PriorityMessage, RangeMergeMessage, StreamMessage
from rmq._model.times import parse_duration_ms
from rmq._model.topics import Topic, TopicType
from rmq.cli.parsing import parse_instant_ms
from rmq.errors import InvalidValueError

MOST_LINE_BYTES = 128 * 1_048_576
"""A longer line is no message: the largest body, every byte of it as a six-character escape, still fits."""


@dataclass(frozen=True, slots=True)
class Row:
    """A message before its topic's type is known; `due_in_ms` is counted from when it is sent."""

    content: bytes
    body: bytes | None = None
    slot_basis: bytes | None = None
    time_range_ms: int | None = None
    priority: int | None = None
    fixed_time_ms: int | None = None
    due_in_ms: int | None = None
    fields: Mapping[str, bytes] | None = None

    def message(self, topic: Topic, now_ms: Callable[[], int]) -> Message:
        """Return the message for a topic; `now_ms` returns Redis' time, and is asked for `due_in_ms` only."""
        due_ms = self.fixed_time_ms
        if self.due_in_ms is not None:
            if due_ms is not None:
                raise InvalidValueError("--at and --in exclude each other")
            due_ms = now_ms() + self.due_in_ms if topic.type is TopicType.FIXED_TIME else 0
        kinds: dict[TopicType, tuple[Callable[..., Message], int | None, str]] = {
            TopicType.RANGE_MERGE: (RangeMergeMessage, self.time_range_ms, "--time-range (time_range in JSON)"),
            TopicType.PRIORITY: (PriorityMessage, self.priority, "--priority (priority in JSON)"),
            TopicType.FIXED_TIME: (FixedTimeMessage, due_ms, "--at or --in (fixed_time in JSON)"),
        }
        for kind, (_, value, option) in kinds.items():
            if (value is None) == (kind is topic.type):
                needed = f"{'need' if kind is topic.type else 'do not take'} {option}"
                raise InvalidValueError(f"messages of topic {topic.name}, which is {dashed(topic.type)}, {needed}")
        if self.fields is not None and topic.type is not TopicType.STREAM:
            raise InvalidValueError(f"topic {topic.name} is {dashed(topic.type)}; only entries of streams have fields")
        extras = {"slot_basis": self.slot_basis, "body": self.body}
        if topic.type is TopicType.STREAM:
            return StreamMessage(self.content if self.fields is None else self.fields, **extras)
        make, value, _ = kinds[topic.type]
        return make(self.content, value, **extras)


def read_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield (line number, line without its end); empty lines are left out."""
    number = 0
    try:
        while line := stream.readline(MOST_LINE_BYTES):
            number += 1
            if len(line) == MOST_LINE_BYTES and not line.endswith(b"\n"):
                raise InvalidValueError(f"line {number} is longer than {MOST_LINE_BYTES:,} bytes")
            if line := line.removesuffix(b"\n").removesuffix(b"\r"):
                yield number, line
    except OSError as error:
        raise InvalidValueError(f"the input cannot be read beyond line {number}: {error.strerror}") from None


def parse_row(line: bytes, defaults: Row) -> Row:
    """Return the row that a JSON object describes; what it leaves out comes from the defaults."""
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidValueError('not a JSON object such as {"content": "item:42"}')
    given = cast("dict[str, object]", found)
    if unknown := sorted(given.keys() - _PARSERS.keys()):
        raise InvalidValueError(f"unknown key {unknown[0]!r:.80}; known are {', '.join(_PARSERS)}")
    if ("content" in given) is ("fields" in given):
        raise InvalidValueError(
            'neither "content" nor "fields"'
            if not given.keys() & {"content", "fields"}
            else '"content" and "fields" exclude each other'
        )
    changes: dict[str, Any] = {}
    for key, value in given.items():
        field, parse = _PARSERS[key]
        changes[field] = parse(value, key)
    if "fixed_time" in given:
        changes["due_in_ms"] = None
    return replace(defaults, **changes)


def _payload(value: object, key: str) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise InvalidValueError(f"{key} has a lone surrogate, which UTF-8 cannot hold") from None
    if isinstance(value, dict) and list(cast("dict[str, object]", value)) == ["base64"]:
        try:
            return base64.b64decode(cast("dict[str, Any]", value)["base64"], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise InvalidValueError(f"{key} is not base64: {error}") from None
    raise InvalidValueError(f'{key} is {value!r:.80}; it must be a string or {{"base64": "..."}}')


def _fields(value: object, key: str) -> dict[str, bytes]:
    if not isinstance(value, dict):
        raise InvalidValueError(f'{key} is {value!r:.80}; it must be an object such as {{"order": "7"}}')
    return {name: _payload(each, f"{key}.{name}") for name, each in cast("dict[str, object]", value).items()}


def parse_fields(texts: Iterable[str]) -> dict[str, bytes]:
    """Return the fields that `name=value` arguments describe."""
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
        raise InvalidValueError(f"{key} is {value!r:.80}; it must be a whole number")
    return value


def _whole_or(parse: Callable[[str, str], int]) -> Callable[[object, str], int]:
    return lambda value, key: parse(value, key) if isinstance(value, str) else _whole(value, key)


_PARSERS: dict[str, tuple[str, Callable[[object, str], object]]] = {
    "content": ("content", _payload),
    "body": ("body", _payload),
    "slot_basis": ("slot_basis", _payload),
    "time_range": ("time_range_ms", _whole_or(parse_duration_ms)),
    "priority": ("priority", _whole),
    "fixed_time": ("fixed_time_ms", _whole_or(parse_instant_ms)),
    "fields": ("fields", _fields),
}
