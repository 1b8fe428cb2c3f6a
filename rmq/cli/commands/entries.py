"""`rmq stream range`, `tail`, `delete` and `trim`: the entries of a stream topic, whatever its groups do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import Annotated, overload

import typer

from rmq._model.display import shown, when
from rmq._model.entries import Position, StreamEntry
from rmq._model.topics import Topic
from rmq.cli import documents
from rmq.cli.console import FAILED, Session, cut, redis_now_ms
from rmq.cli.options import Slots, StreamName
from rmq.cli.parsing import parse_past_ms

_ID = re.compile(r"\d{1,20}-\d{1,20}", re.ASCII)
_POSITION = "ID|TIME|AGE"


def show_range(
    session: Session,
    topic: StreamName,
    first: Annotated[str | None, typer.Option("--from", metavar=_POSITION, help="The oldest by default.")] = None,
    last: Annotated[
        str | None, typer.Option("--to", metavar=_POSITION, help="Up to this one; the newest by default.")
    ] = None,
    newest: Annotated[bool, typer.Option("--newest", help="The newest first.")] = False,
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="Most entries; 0 for all.")] = 50,
    slots: Slots = None,
) -> None:
    """Show entries in the order in which they were sent."""
    with session.opened(topic) as (client, definition):
        now_ms = redis_now_ms(client, definition)
        low, high = position_of(first, "--from", now_ms), position_of(last, "--to", now_ms)
        found = client.stream(definition).range(low, high, newest_first=newest, slots=slots)
        print_entries(session, definition, found, limit)


def tail(
    session: Session,
    topic: StreamName,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar=_POSITION, help="After this id, or from this time on; now by default."),
    ] = None,
    most: Annotated[int | None, typer.Option("--max", min=1, metavar="N", help="Stop after this many entries.")] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="S", help="Stop when nothing came for this many seconds.")
    ] = None,
    slots: Slots = None,
) -> None:
    """Show entries as they arrive, without a group, until Ctrl-C."""
    with session.opened(topic) as (client, definition):
        begin = position_of(start, "--from", redis_now_ms(client, definition))
        with suppress(KeyboardInterrupt):
            for entry in islice(client.stream(definition).tail(begin, timeout, slots), most):
                if session.json:
                    session.document(documents.entry(definition, entry))
                else:
                    facts = f"id {entry.id}", f"slot {entry.slot}", f"sent {when(entry.time_ms)}"
                    session.message(entry.content, facts, None if entry.body is None else ("body", shown(entry.body)))


def delete(
    session: Session,
    topic: StreamName,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids of entries.")],
    slot: Annotated[
        int | None,
        typer.Option("--slot", metavar="N", help="Their slot; looked for by default: ids are unique in a slot only."),
    ] = None,
) -> None:
    """Delete entries, also those that a group has not acked. Exit code 1: there were none."""
    with session.opened(topic) as (client, definition):
        deleted = client.stream(definition).delete(*ids, slot=slot)
    session.result({"topic": topic, "deleted": deleted}, f"{deleted:,} deleted")
    if not deleted:
        raise typer.Exit(FAILED)


def trim(session: Session, topic: StreamName) -> None:
    """Clean up now, as the topic's retention says; listeners and consumers do it by themselves."""
    with session.opened(topic) as (client, definition):
        done = client.stream(definition).trim()
    dropped, left = sum(slot.dropped for slot in done), sum(slot.length for slot in done)
    if not session.json and (definition.retention is None or not definition.retention.bounded):
        session.note(f"topic {topic} has no bounds: nothing is ever dropped")
        return
    session.result({"topic": topic, "dropped": dropped, "length": left}, f"{dropped:,} dropped, {left:,} left")


def print_entries(session: Session, topic: Topic, entries: Iterable[StreamEntry], limit: int) -> None:
    """Print entries as a table, or a line of JSON each."""
    session.rows(
        entries,
        lambda entry: documents.entry(topic, entry),
        ("id", "~content", ">slot", ">sent"),
        lambda entry: (entry.id, cut(entry.content), str(entry.slot), when(entry.time_ms)),
        f"no such entries in topic {topic.name}",
        limit,
    )


@overload
def position_of(text: str, name: str, now_ms: int) -> Position: ...
@overload
def position_of(text: str | None, name: str, now_ms: int) -> Position | None: ...
def position_of(text: str | None, name: str, now_ms: int) -> Position | None:
    """Return a position in a stream: an id, a time, or an age counted back from `now_ms`."""
    return text if text is None or _ID.fullmatch(text) else parse_past_ms(text, name, now_ms)
