"""`rmq stream range`, `tail`, `delete` and `trim`: the entries of a stream topic, whatever its groups do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from typing import Annotated

import typer

from rmq._model.display import shown, when
from rmq._model.entries import Position, StreamEntry
from rmq._model.topics import Topic
from rmq.cli import documents
from rmq.cli.console import FAILED, Session, cut, new_table, redis_now_ms
from rmq.cli.options import Slots, StreamName
from rmq.cli.parsing import checked_slots, parse_past_ms

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
    with session.client() as client:
        definition = client.topic(topic)
        view = client.stream(definition)
        now_ms = redis_now_ms(client, definition)
        found = view.range(
            _position(first, "--from", now_ms),
            _position(last, "--to", now_ms),
            newest_first=newest,
            slots=checked_slots(definition, slots),
        )
        if print_entries(session, definition, islice(found, limit or None)) and limit and next(found, None):
            session.note(f"there are more than these {limit:,}: see --limit")


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
    with session.client() as client:
        definition = client.topic(topic)
        view = client.stream(definition)
        now_ms = redis_now_ms(client, definition)
        found = view.tail(_position(start, "--from", now_ms), timeout, checked_slots(definition, slots))
        try:
            for entry in islice(found, most):
                print_entry(session, definition, entry)
        except KeyboardInterrupt:
            return


def delete(
    session: Session,
    topic: StreamName,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids of entries.")],
    slot: Annotated[
        int | None,
        typer.Option("--slot", metavar="N", help="Their slot; looked for by default: ids are unique in a slot only."),
    ] = None,
) -> None:
    """Delete entries, whoever may still need them. Exit code 1 where none was there."""
    with session.client() as client:
        definition = client.topic(topic)
        checked_slots(definition, None if slot is None else [slot])
        deleted = client.stream(definition).delete(*ids, slot=slot)
    if session.json:
        session.document({"topic": topic, "deleted": deleted})
    else:
        session.line(f"{deleted:,} deleted")
    if not deleted:
        raise typer.Exit(FAILED)


def trim(session: Session, topic: StreamName) -> None:
    """Clean up now, as the topic's retention says; listeners do it by themselves."""
    with session.client() as client:
        definition = client.topic(topic)
        done = client.stream(definition).trim()
    dropped, left = sum(slot.dropped for slot in done), sum(slot.length for slot in done)
    if session.json:
        session.document({"topic": topic, "dropped": dropped, "length": left})
    elif definition.retention is None or not definition.retention.bounded:
        session.note(f"topic {topic} has no bounds: nothing is ever dropped")
    else:
        session.line(f"{dropped:,} dropped, {left:,} left")


def print_entries(session: Session, topic: Topic, entries: Iterable[StreamEntry]) -> int:
    """Print entries as a table, or a line of JSON each; return how many."""
    found = list(entries) if not session.json else entries
    count = 0
    if session.json:
        for entry in found:
            count += 1
            session.document(documents.entry(topic, entry))
        return count
    table = new_table("id", "~content", ">slot", ">sent")
    for entry in found:
        count += 1
        table.add_row(entry.id, cut(entry.content), str(entry.slot), when(entry.time_ms))
    if count:
        session.out.print(table)
    else:
        session.note(f"no such entries in topic {topic.name}")
    return count


def print_entry(session: Session, topic: Topic, entry: StreamEntry) -> None:
    """Print one entry."""
    if session.json:
        session.document(documents.entry(topic, entry))
        return
    session.line((shown(entry.content), "bold"))
    session.line((f"  id {entry.id}, slot {entry.slot}, sent {when(entry.time_ms)}", "dim"))
    if entry.body is not None:
        session.line(("  body ", "dim"), shown(entry.body))


def _position(text: str | None, name: str, now_ms: int) -> Position | None:
    """Return a position in a stream: an id, a time, or an age counted back from `now_ms`."""
    return text if text is None or _ID.fullmatch(text) else parse_past_ms(text, name, now_ms)
