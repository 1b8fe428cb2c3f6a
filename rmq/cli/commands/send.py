"""`rmq send`: sends messages from the command line, a file or a pipe.

The input is a content or a JSON object per line: a `Row`, which becomes a message of the topic's type. Invalid input
raises `InvalidValueError`, which names the value and the rule.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeAlias, cast

import typer

from rmq import (
    Collect,
    FixedTimeMessage,
    JoinMessage,
    Max,
    Min,
    Newest,
    PriorityMessage,
    RangeMergeMessage,
    RmqClient,
    StreamMessage,
    Sum,
    Topic,
    TopicType,
)
from rmq.cli.console import Session, is_terminal
from rmq.cli.options import TopicName, duration, instant, parse_type, payload
from rmq.errors import InvalidValueError, SendError, UnknownTopicError
from rmq.spi import Message, counted, number_ms, typed_duration_ms, typed_instant_ms
from rmq.spi.scripts import MAX_COUNT, MAX_WHOLE, Encoder
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


_PATIENCE_S = 30.0
"""Seconds to wait for a Redis that does not answer, so that its restart does not end an import."""

_PROGRESS_EVERY = 500

Numbered = tuple[str, Callable[[], Row]]
"""The position of a row, for errors, and the function that parses it."""


@dataclass(frozen=True, slots=True)
class MergingSend:
    """Options for topics with a merge.

    Attributes:
        version: newest: version of the body.
        weight: merge: number of sends that the message counts as.  [default: 1]
        part: join: name of this part of the whole.
        of: join: number of different parts of the whole.
        once: merge: idempotency key for the whole input. If it is sent again within an hour, it counts once.
        fold: merge: merge messages with the same content before they are sent.
    """

    version: Annotated[int | None, typer.Option("--version", metavar="N", min=0, max=MAX_WHOLE)] = None
    weight: Annotated[int | None, typer.Option(metavar="N", min=1, max=MAX_COUNT)] = None
    part: Annotated[bytes | None, typer.Option(metavar="TEXT", parser=payload)] = None
    of: Annotated[int | None, typer.Option(metavar="N", min=1)] = None
    once: Annotated[str | None, typer.Option(metavar="NAME")] = None
    fold: Annotated[bool, typer.Option("--fold")] = False


def send(
    session: Session,
    topic: TopicName,
    contents: Annotated[list[bytes] | None, typer.Argument(metavar="CONTENT", parser=payload)] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", metavar="FILE")] = None,
    jsonl: Annotated[bool, typer.Option("--jsonl")] = False,
    time_range: Annotated[int | None, typer.Option(metavar="DURATION", parser=duration)] = None,
    priority: Annotated[int | None, typer.Option()] = None,
    at: Annotated[int | None, typer.Option(metavar="TIME", parser=instant)] = None,
    due_in: Annotated[int | None, typer.Option("--in", metavar="DURATION", parser=duration)] = None,
    fields: Annotated[list[str] | None, typer.Option("--field", metavar="NAME=VALUE")] = None,
    body: Annotated[bytes | None, typer.Option(metavar="TEXT", parser=payload)] = None,
    slot_basis: Annotated[bytes | None, typer.Option(metavar="TEXT", parser=payload)] = None,
    *,
    merging: MergingSend,
    kind: Annotated[str | None, typer.Option("--type", metavar="TYPE")] = None,
    slots: Annotated[int | None, typer.Option()] = None,
) -> None:
    """Send messages. A content that is already queued is merged; on a stream topic each message is an entry.

    Options:
        contents: Contents of the messages. Default: each line of stdin is a content.
        file: Read lines from a file; - for stdin.
        jsonl: Lines are JSON objects: content or fields, body, slot_basis, time_range, priority, fixed_time, delay,
            version, weight, part, of.
        time_range: range-merge: merge window, such as 5s. Default: the topic's window, if it has one.
        priority: priority: 1 or more; larger ones go first. With ties any, larger than max_retries.
        at: fixed-time: due time, such as 2026-01-31T14:30:00Z.
        due_in: fixed-time: due after this duration, by Redis' clock.
        fields: stream: a field of the entry, instead of CONTENT. Can be given more than once.
        body: Body of the message. For max, min and sum: a number.
        slot_basis: Routing key: the slot is computed from it instead of from the content.
        kind: Type of a new topic: range-merge, priority, fixed-time or stream.
        slots: Number of slots of a new topic, a power of two.  [default: 1]
    """
    if (contents or fields) and (file or jsonl):
        raise InvalidValueError("CONTENT and --field cannot be combined with --file or --jsonl")
    if contents and fields:
        raise InvalidValueError("CONTENT and --field cannot be combined: an entry has either a content or fields")
    if not contents and not fields and file is None and is_terminal(sys.stdin):
        raise InvalidValueError("nothing to send: give CONTENT, --field, --file, or lines on stdin")
    defaults = Row(
        b"", body, slot_basis, time_range, priority, at, due_in, parse_fields(fields) if fields else None,
        merging.version, merging.weight, merging.part, merging.of,
    )  # fmt: skip
    with session.client(_PATIENCE_S) as client:
        definition = _definition(client, topic, None if kind is None else parse_type(kind, "--type"), slots)
        _check_merges(definition, merging)
        send_rows = partial(_send_rows, session, client, definition, merging)
        if contents:
            rows = [(repr(os.fsdecode(each)), partial(replace, defaults, content=each)) for each in contents]
            send_rows(rows, None)
        elif fields:
            send_rows([("the entry", lambda: defaults)], None)
        else:
            with _opened(file) as stream:

                def make(line: bytes) -> Row:
                    return parse_row(line, defaults) if jsonl else replace(defaults, content=line)

                rows = ((f"line {number}", partial(make, line)) for number, line in read_lines(stream))
                send_rows(rows, stream)


def _check_merges(topic: Topic, merging: MergingSend) -> None:
    """Raise for --once and --fold if the topic has no merge."""
    for option, value in (("--once", merging.once), ("--fold", merging.fold)):
        if value and topic.merge is None:
            raise InvalidValueError(f"{option} requires a topic with a merge; topic {topic.name} has no merge")


def _definition(client: RmqClient, name: str, kind: TopicType | None, slots: int | None) -> Topic:
    """Return the registered definition of a topic, or a new one.

    Raises:
        InvalidValueError: The topic is not registered, and `kind` is `None`.
        TopicMismatchError: The topic is registered with another type or number of slots.
    """
    try:
        known = client.topic(name)
    except UnknownTopicError as error:
        if kind is None:
            reason = str(error).partition(";")[0]
            raise InvalidValueError(f"{reason}; give --type (and --slots, 1 by default) to register it") from error
        return Topic(name, kind, slots=1 if slots is None else slots)
    if kind is None and slots is None:
        return known
    merge = known.merge if kind in (None, known.type) else None
    said = Topic(name, kind or known.type, slots=known.slots if slots is None else slots, merge=merge)
    return client.producer(said).topic


def _send_rows(
    session: Session,
    client: RmqClient,
    definition: Topic,
    merging: MergingSend,
    rows: Iterable[Numbered],
    stream: BinaryIO | None,
) -> None:
    messages = _Messages(definition, rows)
    with _shown_progress(session, stream) as moved:
        checked = messages.read(moved)
        # A mistake in the first message should not register a topic. A named call is checked as a whole: what is stored
        # under the name of one with a mistake could not be put right under that name.
        first = list(itertools.islice(checked, 1 if merging.once is None else None))
        if messages.error is not None:
            raise InvalidValueError(f"{messages.where}: {messages.error}; nothing was sent")
        producer = client.producer(definition)
        try:
            result = producer.send_many(itertools.chain(first, checked), fold=merging.fold, once=merging.once)
        except SendError as error:
            raise type(error)(_where_to_go_on(error, messages, definition, merging.once), topic=error.topic) from error
    stored = "sent" if definition.type is TopicType.STREAM else f"new, {result.merged:,} merged"
    stored += f", {result.dropped:,} dropped" if result.dropped else ""
    document = {"topic": definition.name, "new": result.new, "merged": result.merged, "dropped": result.dropped}
    session.result(document, f"{result.new:,} {stored}")
    if messages.error is not None:
        sent = f"{counted(result.accepted, 'message was', 'messages were')} sent before it, none after it"
        raise InvalidValueError(f"{messages.where}: {messages.error}; {sent}")


def _where_to_go_on(error: SendError, messages: _Messages, topic: Topic, once: str | None) -> str:
    """Describe an interrupted send: the number of accepted messages, and the position from which to send again."""
    left = sorted(map(messages.place, (*error.not_stored, *error.unknown)))
    if not left:
        return str(error)
    if not error.stored and not error.unknown:
        return f"{error}; nothing was sent"
    number, where = left[0]
    behind = error.stored - (number - 1)
    parts = [f"all before {where}"] if number > 1 else []
    parts += [f"{behind:,} after it"] if behind else []
    accepted = f"{error.stored:,} were accepted" + (f": {' and '.join(parts)}" if parts else "")
    go_on = f"continue at {where}" if once is None else f"send the whole input again with --once {once!r}"
    twice = behind + len(error.unknown)
    if once is None and twice and (topic.type is TopicType.STREAM or topic.merge is not None):
        go_on += f"; up to {twice:,} messages from there on may already be stored, and would count twice"
    return f"{error}; {accepted}; {go_on}"


class _Messages:
    """Converts rows to messages, up to the first invalid row, which is recorded in `error` and `where`."""

    def __init__(self, topic: Topic, rows: Iterable[Numbered]) -> None:
        self._topic = topic
        self._encoder = Encoder(topic)
        self._rows = rows
        self.error: InvalidValueError | None = None
        self.where = ""
        self._places: dict[int, tuple[int, str]] = {}

    def place(self, message: Message) -> tuple[int, str]:
        """Return the number of a message, from 1, and its position. The message must still be referenced."""
        return self._places[id(message)]

    def read(self, moved: Callable[[int], None]) -> Iterator[Message]:
        try:
            for count, (where, make) in enumerate(self._rows, 1):
                self.where = where
                message = make().message(self._topic)
                self._encoder.row(message)  # checks it
                self._places[id(message)] = count, where  # an id is used again, so this stays as small as what is alive
                yield message
                if count % _PROGRESS_EVERY == 0:
                    moved(count)
        except InvalidValueError as error:
            self.error = error


@contextmanager
def _opened(file: Path | None) -> Generator[BinaryIO]:
    if file is None or str(file) == "-":
        if sys.stdin is None:
            raise InvalidValueError("stdin is closed: give CONTENT, --field or --file")
        yield sys.stdin.buffer
        return
    try:
        stream = file.open("rb")
    except OSError as error:
        raise InvalidValueError(f"--file {str(file)!r} cannot be read: {error.strerror}") from None
    with stream:
        yield stream


@contextmanager
def _shown_progress(session: Session, stream: BinaryIO | None) -> Generator[Callable[[int], None]]:
    """Context manager that yields a function to report progress: in bytes of a file, or in messages of a pipe."""
    size = 0
    with suppress(OSError):  # a stream that is no file
        size = os.fstat(stream.fileno()).st_size if stream is not None and stream.seekable() else 0
    with session.progress("bytes" if size else "messages", size or None) as moved:
        yield lambda count: moved(stream.tell() if stream is not None and size else count)
