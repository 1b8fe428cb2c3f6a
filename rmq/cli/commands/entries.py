"""`rmq stream range`, `tail`, `delete` and `trim`: the entries of a stream topic, independent of its groups."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Annotated, overload

import typer

from rmq import Retention, StreamEntry, Topic, tail_all
from rmq.cli.console import FAILED, Columns, Session, cut, redis_now_ms
from rmq.cli.options import Slots, StreamName, duration, span_of
from rmq.cli.parsing import parse_past_ms
from rmq.errors import InvalidValueError
from rmq.spi import shown
from rmq.views import documents
from rmq.views.words import when

_ID = re.compile(r"\d{1,20}-\d{1,20}", re.ASCII)
_POSITION = "ID|TIME|AGE"
BOUND = "ID|(ID|TIME|AGE"
"""Forms of an end of a range. An id after `(` is excluded from the range."""


def show_range(
    session: Session,
    topic: StreamName,
    first: Annotated[str | None, typer.Option("--from", metavar=BOUND)] = None,
    last: Annotated[str | None, typer.Option("--to", metavar=BOUND)] = None,
    newest: Annotated[bool, typer.Option("--newest")] = False,
    limit: Annotated[int, typer.Option(min=0, metavar="N")] = 50,
    slots: Slots = None,
) -> None:
    """Show entries in the order in which they were sent.

    Options:
        first: First id; '(ID' excludes it. Default: the oldest entry.
        last: Last id; '(ID' excludes it. Default: the newest entry.
        newest: Newest entries first.
        limit: Maximum number of entries; 0 for all.
    """
    with session.opened(topic) as (client, definition):
        now_ms = redis_now_ms(client, definition)
        low, high = bound_of(first, "--from", now_ms), bound_of(last, "--to", now_ms)
        found = client.stream(definition).range(low, high, newest_first=newest, slots=slots)
        print_entries(session, definition, found, limit)


def tail(
    session: Session,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...")],
    start: Annotated[str | None, typer.Option("--from", metavar=_POSITION)] = None,
    most: Annotated[int | None, typer.Option("--max", min=1, metavar="N")] = None,
    timeout: Annotated[float | None, typer.Option(min=0, metavar="S")] = None,
    slots: Slots = None,
) -> None:
    """Show entries as they arrive in one topic or several, without a group, until Ctrl-C.

    Options:
        topics: Names of stream topics.
        start: Show entries after this id, or from this time on. Default: now.
        most: Stop after this many entries.
        timeout: Stop after this many seconds without an entry.
    """
    if slots and len(topics) > 1:
        raise InvalidValueError(f"--slot cannot be used with {len(topics)} topics; give one topic")
    with session.client() as client:
        known = {name: client.topic(name) for name in topics}
        begin = position_of(start, "--from", redis_now_ms(client, known[topics[0]]))
        views = [client.stream(definition) for definition in known.values()]
        found = views[0].tail(begin, timeout, slots) if len(views) == 1 else tail_all(views, begin, timeout)
        with suppress(KeyboardInterrupt):
            for entry in islice(found, most):
                if session.json:
                    session.document(documents.entry(known[entry.topic], entry))
                else:
                    where = [f"topic {entry.topic}"] if len(views) > 1 else []
                    facts = (*where, f"id {entry.id}", f"slot {entry.slot}", f"sent {when(entry.time_ms)}")
                    session.message(entry.content, facts, None if entry.body is None else ("body", shown(entry.body)))


def delete(
    session: Session,
    topic: StreamName,
    ids: Annotated[list[str], typer.Argument(metavar="ID")],
    slot: Annotated[int | None, typer.Option("--slot", metavar="N")] = None,
) -> None:
    """Delete entries, including entries that a group has not acked. Exit code 1: none of them exists.

    Options:
        ids: Ids of entries.
        slot: Slot of the entries, since ids are unique only within a slot. Default: all slots are searched.
    """
    with session.opened(topic) as (client, definition):
        deleted = client.stream(definition).delete(*ids, slot=slot)
    session.result({"topic": topic, "deleted": deleted}, f"{deleted:,} deleted")
    if not deleted:
        raise typer.Exit(FAILED)


def trim(
    session: Session,
    topic: StreamName,
    max_length: Annotated[int | None, typer.Option(min=0, metavar="N")] = None,
    max_age: Annotated[int | None, typer.Option(metavar="DURATION", parser=duration)] = None,
    exact: Annotated[bool, typer.Option("--exact")] = False,
    unacked: Annotated[bool, typer.Option("--unacked")] = False,
) -> None:
    """Remove the oldest entries now, by the topic's retention or by the limits given here.

    Options:
        max_length: Keep at most this many entries, divided equally among the slots; for this call only.
        max_age: Keep entries up to this age; for this call only.
        exact: Trim exactly. By default only whole nodes are removed, so that a few more entries are kept.
        unacked: Also remove entries that a group has not acked.
    """
    own = None
    if max_length is not None or max_age is not None:
        own = Retention(max_length=max_length, max_age=span_of(max_age), approximate=not exact, unacked=unacked)
    elif exact or unacked:
        raise InvalidValueError("--exact and --unacked require --max-length or --max-age")
    with session.opened(topic) as (client, definition):
        done = client.stream(definition).trim(retention=own)
    dropped, left = sum(slot.dropped for slot in done), sum(slot.length for slot in done)
    bounds = own or definition.retention
    if not session.json and (bounds is None or not bounds.bounded):
        session.note(
            f"nothing was removed: the retention of topic {topic} has no limits; give --max-length or --max-age"
        )
        return
    session.result({"topic": topic, "dropped": dropped, "length": left}, f"{dropped:,} dropped, {left:,} left")


def print_entries(session: Session, topic: Topic, entries: Iterable[StreamEntry], limit: int) -> None:
    """Print entries as a table, or with --json as one line of JSON each."""
    columns: Columns[StreamEntry] = {
        "id": lambda entry: entry.id,
        "~content": lambda entry: cut(entry.content),
        ">slot": lambda entry: str(entry.slot),
        ">sent": lambda entry: when(entry.time_ms),
    }
    session.rows(entries, partial(documents.entry, topic), columns, f"no entries found in topic {topic.name}", limit)


@overload
def position_of(text: str, name: str, now_ms: int) -> str | int: ...
@overload
def position_of(text: str | None, name: str, now_ms: int) -> str | int | None: ...
def position_of(text: str | None, name: str, now_ms: int) -> str | int | None:
    """Parse a position in a stream: an id, a time, or an age, which is counted back from `now_ms`."""
    if text is None or _ID.fullmatch(text):
        return text
    try:
        return parse_past_ms(text, name, now_ms)
    except InvalidValueError as error:
        raise InvalidValueError(f"{error}, or an id such as 1795238693731-0") from None


def bound_of(text: str | None, name: str, now_ms: int) -> str | int | None:
    """Parse an end of a range: a position, or an id after `(`, which is excluded from the range."""
    if text is None or not text.startswith("("):
        return position_of(text, name, now_ms)
    if not _ID.fullmatch(text[1:]):
        raise InvalidValueError(f"{name} is {text!r}; after ( it must be an id, as in '(1795238693731-0'")
    return text
