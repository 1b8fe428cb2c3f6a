"""`rmq find` and `rmq search`: where messages are."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from rmq._model.display import from_now, shown, span
from rmq._model.whereabouts import PLACES, AnyPlace, FoundMessage, PeekedMessage, Whereabouts
from rmq.cli import documents
from rmq.cli.console import FAILED, Session, cut, new_table
from rmq.cli.options import Content, SlotBasis, Slots, TopicName, Typed, payload
from rmq.cli.parsing import checked_slots
from rmq.errors import InvalidValueError


class Anywhere(Enum):
    """Where to search, as it is typed."""

    STORE = "store"
    IN_FLIGHT = "in-flight"
    RETRY = "retry"
    DEAD = "dead"


_PLACES: dict[Anywhere, AnyPlace] = dict(zip(Anywhere, PLACES, strict=True))


def find(
    session: Session,
    topic: TopicName,
    content: Content,
    slot_basis: SlotBasis = None,
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="Look in all slots: its slot basis is not known.")
    ] = False,
) -> None:
    """Say where a content is right now. Exit code 1 where it is nowhere: done, cancelled, or never sent."""
    with session.client() as client:
        found = client.inspect(topic).find(content, slot_basis, everywhere)
    if session.json:
        session.document(documents.whereabouts(found))
    else:
        _print(session, found)
    if found.gone:
        raise typer.Exit(FAILED)


def _print(session: Session, found: Whereabouts) -> None:
    now_ms = found.now_ms
    if found.gone:
        session.warn(f"not found in slot {found.slot}: done, cancelled, or never sent: {shown(found.content)}")
        return
    session.line((shown(found.content), "bold"), f" in slot {found.slot} of {found.topic}")
    if found.in_flight is not None:
        holders = ", ".join(map(shown, found.holders)) or "not known"
        left_ms = found.in_flight.lease_left_ms
        lease = f"its lease runs for {span(left_ms)} more" if left_ms else "its lease is over"
        session.line("  in flight: ", lease, f", {found.in_flight.retries_left} retries left after this delivery")
        session.line("    workers that hold messages of this slot: ", holders)
    if found.stored is not None:
        session.line("  in store: ", _stored_in_words(found.stored, now_ms))
    if found.waiting is not None:
        when = from_now(found.waiting.due_ms or 0, now_ms)
        session.line(f"  waits for a retry, {when}, {found.waiting.retries_left} retries left")
    if found.failure is not None:
        why = f"{shown(found.failure.type)}: {shown(found.failure.message)}"
        session.line(f"  failed last {from_now(found.failure.last_ms, now_ms)}: ", (why, "red"))
    if found.dead is not None:
        why = f"{shown(found.dead.error_type)}: {shown(found.dead.error_message)}"
        session.line(
            f"  dead: died {from_now(found.dead.died_ms, now_ms)} after {found.dead.attempts} deliveries: ",
            (why, "red"),
        )
    for name, body in _bodies(found).items():
        session.line(f"  {name}, {len(body):,} bytes: ", shown(body))


def _stored_in_words(message: PeekedMessage, now_ms: int) -> str:
    if message.retries_left is not None:
        return f"a retry, due at once, {message.retries_left} retries left"
    if message.due_ms is None:
        return f"priority {message.score}"
    return f"due {from_now(message.due_ms, now_ms)}"


def _bodies(found: Whereabouts) -> dict[str, bytes]:
    living = next((each for each in (found.stored, found.in_flight, found.waiting) if each is not None), None)
    bodies: dict[str, bytes] = {}
    if living is not None and living.body is not None:
        bodies["body"] = living.body
    if found.dead is not None and found.dead.body is not None:
        bodies["body of the dead"] = found.dead.body
    return bodies


def search(
    session: Session,
    topic: TopicName,
    pattern: Annotated[
        bytes | None, Typed(payload), typer.Argument(help="What contents match, with * ? and \\[...]; all of them.")
    ] = None,
    prefix: Annotated[
        bytes | None, Typed(payload), typer.Option(metavar="TEXT", help="Instead: how contents begin, literally.")
    ] = None,
    places: Annotated[
        list[Anywhere] | None, typer.Option("--place", help="Only there; repeatable; everywhere by default.")
    ] = None,
    slots: Slots = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="End after about this many messages.")] = 50,
    budget: Annotated[
        int, typer.Option(min=1, metavar="N", help="End after about this many entries were looked at.")
    ] = 1_000_000,
    cursor: Annotated[str | None, typer.Option(metavar="CURSOR", help="Go on where a search before ended.")] = None,
) -> None:
    """Search messages by content. What moves meanwhile may be missed or shown twice. Exit code 1: none found."""
    if pattern is not None and prefix is not None:
        raise InvalidValueError("search takes a pattern or --prefix, not both")
    with session.client() as client:
        definition = client.topic(topic)
        view = client.inspect(definition)
        wanted: list[AnyPlace] = [_PLACES[place] for place in places or Anywhere]
        numbers = checked_slots(definition, slots)
        found: list[FoundMessage] = []
        looked_at = 0
        while True:
            page = view.search(pattern, prefix=prefix, places=wanted, slots=numbers, cursor=cursor, limit=limit)
            found += page.messages
            looked_at += page.looked_at
            cursor = page.cursor
            if cursor is None or len(found) >= limit or looked_at >= budget:
                break
    if session.json:
        for message in found:
            session.document(documents.found_message(message))
    elif found:
        _print_found(session, found)
    if cursor is not None:
        session.note(f"looked at about {looked_at:,} entries; go on with --cursor '{cursor}'")
    elif not found:
        session.note(f"no such message in topic {topic}")
    if not found:
        raise typer.Exit(FAILED)


def _print_found(session: Session, found: list[FoundMessage]) -> None:
    bodies = any(message.body is not None for message in found)
    table = new_table("~content", *(["~body"] if bodies else []), "place", ">slot", ">when", "~why")
    for message in found:
        table.add_row(
            cut(message.content),
            *([cut(message.body or b"")] if bodies else []),
            documents.PLACES[message.place],
            str(message.slot),
            _when(message),
            cut(": ".join(filter(None, (message.error_type, message.error_message)))),
        )
    session.out.print(table)


def _when(message: FoundMessage) -> str:
    if message.due_ms is not None:
        return from_now(message.due_ms, message.now_ms)
    return "retry" if message.retries_left is not None else f"{message.score:,}"
