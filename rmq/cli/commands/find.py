"""`rmq find` and `rmq search`: where messages are."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import typer

from rmq.cli.messages import Content, SlotBasis, TopicName
from rmq.cli.session import FAILED, Session, cut, new_table
from rmq.cli.shown import from_now, json_payload, shown, span
from rmq.cli.values import checked_slots, typed_bytes
from rmq.errors import InvalidValueError
from rmq.findings import PLACES, AnyPlace, FoundMessage, PeekedMessage, Whereabouts
from rmq.inspection import Inspection


class Anywhere(Enum):
    """Where to search, as it is typed."""

    STORE = "store"
    IN_FLIGHT = "in-flight"
    RETRY = "retry"
    DEAD = "dead"


_PLACES: dict[Anywhere, AnyPlace] = dict(zip(Anywhere, PLACES, strict=True))
_NAMES = {place: typed.value for typed, place in _PLACES.items()}


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
        basis = None if slot_basis is None else typed_bytes(slot_basis)
        found = client.inspect(topic).find(typed_bytes(content), basis, everywhere)
    if session.json:
        session.document(_whereabouts_as_json(found))
    else:
        _print(session, found)
    if found.gone:
        raise typer.Exit(FAILED)


def _print(session: Session, found: Whereabouts) -> None:
    now_ms = found.now_ms
    if found.gone:
        session.warn(f"in no place of slot {found.slot}: done, cancelled, or never sent: {shown(found.content)}")
        return
    session.line((shown(found.content), "bold"), f" in slot {found.slot} of {found.topic}")
    if found.in_flight is not None:
        holders = ", ".join(map(shown, found.holders)) or "not known"
        left_ms = found.in_flight.lease_left_ms
        lease = f"its lease runs for {span(left_ms)} more" if left_ms else "its lease is over"
        session.line("  in flight: ", lease, f", {found.in_flight.retries_left} retries left after this delivery")
        session.line("    with a worker that holds something of this slot: ", holders)
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


def _whereabouts_as_json(found: Whereabouts) -> dict[str, Any]:
    places: dict[str, Any] = {}
    for message in (found.stored, found.in_flight, found.waiting):
        if message is not None:
            places[_NAMES[message.place]] = {
                "score": message.score,
                "due_ms": message.due_ms,
                "retries_left": message.retries_left,
                "body": json_payload(message.body),
            }
    if found.in_flight is not None:
        places["in-flight"] |= {"lease_left_ms": found.in_flight.lease_left_ms, "holders": list(found.holders)}
    if found.dead is not None:
        dead = found.dead
        places["dead"] = {
            "died_ms": dead.died_ms,
            "error_type": dead.error_type,
            "error_message": dead.error_message,
            "attempts": dead.attempts,
            "body": json_payload(dead.body),
        }
    failure = found.failure and {
        "error_type": found.failure.type,
        "error_message": found.failure.message,
        "first_ms": found.failure.first_ms,
        "last_ms": found.failure.last_ms,
    }
    return {
        "topic": found.topic,
        "slot": found.slot,
        "content": json_payload(found.content),
        "now_ms": found.now_ms,
        "places": places,
        "failure": failure,
        "gone": found.gone,
    }


def search(
    session: Session,
    topic: TopicName,
    pattern: Annotated[str | None, typer.Argument(help="What contents match, with * ? and \\[...]; all of them.")] = (
        None
    ),
    prefix: Annotated[str | None, typer.Option(metavar="TEXT", help="Instead: how contents begin, literally.")] = None,
    places: Annotated[
        list[Anywhere] | None, typer.Option("--place", help="Only there; repeatable; everywhere by default.")
    ] = None,
    slots: Annotated[list[int] | None, typer.Option("--slot", metavar="N", help="Only this slot; repeatable.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="End after about so many messages.")] = 50,
    budget: Annotated[
        int, typer.Option(min=1, metavar="N", help="End after about so many entries were looked at.")
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
        found, cursor, looked_at = _look(
            view, pattern, prefix, wanted, checked_slots(definition, slots), cursor, limit, budget
        )
    if session.json:
        for message in found:
            session.document(_found_as_json(message))
    elif found:
        _print_found(session, found)
    if cursor is not None:
        session.note(f"looked at about {looked_at:,} entries; go on with --cursor '{cursor}'")
    elif not found:
        session.note(f"no such message in topic {topic}")
    if not found:
        raise typer.Exit(FAILED)


def _look(
    view: Inspection,
    pattern: str | None,
    prefix: str | None,
    places: list[AnyPlace],
    slots: list[int] | None,
    cursor: str | None,
    limit: int,
    budget: int,
) -> tuple[list[FoundMessage], str | None, int]:
    """Go on page by page until there is enough, or nothing more."""
    found: list[FoundMessage] = []
    looked_at = 0
    while True:
        page = view.search(
            None if pattern is None else typed_bytes(pattern),
            prefix=None if prefix is None else typed_bytes(prefix),
            places=places,
            slots=slots,
            cursor=cursor,
            limit=limit,
        )
        found += page.messages
        looked_at += page.looked_at
        cursor = page.cursor
        if cursor is None or len(found) >= limit or looked_at >= budget:
            return found, cursor, looked_at


def _print_found(session: Session, found: list[FoundMessage]) -> None:
    bodies = any(message.body is not None for message in found)
    table = new_table("~content", *(["~body"] if bodies else []), "place", ">slot", ">when", "~why")
    for message in found:
        table.add_row(
            cut(message.content),
            *([cut(message.body or b"")] if bodies else []),
            _NAMES[message.place],
            str(message.slot),
            _when(message),
            cut(": ".join(filter(None, (message.error_type, message.error_message)))),
        )
    session.out.print(table)


def _when(message: FoundMessage) -> str:
    if message.due_ms is not None:
        return from_now(message.due_ms, message.now_ms)
    return "retry" if message.retries_left is not None else f"{message.score:,}"


def _found_as_json(message: FoundMessage) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "slot": message.slot,
        "place": _NAMES[message.place],
        "content": json_payload(message.content),
        "body": json_payload(message.body),
        "body_bytes": message.body_bytes,
        "due_ms": message.due_ms,
        "priority": message.score if message.due_ms is None and message.retries_left is None else None,
        "retries_left": message.retries_left,
        "error_type": message.error_type,
        "error_message": message.error_message,
    }
