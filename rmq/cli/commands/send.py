"""`rmq send`: sends messages from the command line, a file or a pipe."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from rmq import RmqClient, Topic, TopicType
from rmq.cli.console import Session, is_terminal
from rmq.cli.input_rows import Row, parse_fields, parse_row, read_lines
from rmq.cli.options import TopicName, duration, instant, parse_type, payload
from rmq.errors import InvalidValueError, SendError, UnknownTopicError
from rmq.spi import Message, counted
from rmq.spi.scripts import MAX_COUNT, MAX_WHOLE, Encoder

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
