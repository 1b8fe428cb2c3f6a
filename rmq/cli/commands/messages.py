"""`rmq peek`, `rmq cancel` and `rmq reschedule`: single messages."""

from __future__ import annotations

from enum import Enum
from itertools import islice
from typing import Annotated

import typer

from rmq._admin.stream_topic import StreamTopic
from rmq._model.display import from_now, json_payload, shown
from rmq._model.entries import check_group
from rmq._model.replies import ControlResult
from rmq._model.times import parse_duration_ms
from rmq._model.topics import Topic
from rmq._model.whereabouts import PeekedMessage, Place
from rmq.cli import documents
from rmq.cli.commands.entries import print_entries
from rmq.cli.commands.streams import print_pending
from rmq.cli.console import FAILED, Session, cut, new_table, redis_now_ms
from rmq.cli.options import Content, Group, SlotBasis, Slots, TopicName, Typed
from rmq.cli.parsing import checked_slots, parse_instant_ms


class Where(Enum):
    """Where a message lies, as it is typed."""

    STORE = "store"
    IN_FLIGHT = "in-flight"
    RETRY = "retry"


_PLACES: dict[Where, Place] = {Where.STORE: "store", Where.IN_FLIGHT: "prepare", Where.RETRY: "retry"}
_DUE = {Where.STORE: "due", Where.IN_FLIGHT: "lease ends", Where.RETRY: "retry"}


def peek(
    session: Session,
    topic: TopicName,
    place: Annotated[Where, typer.Option(help="The backlog, what is in flight, or what waits for a retry.")] = (
        Where.STORE
    ),
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Most messages.")] = 20,
    slots: Slots = None,
    group: Group = None,
) -> None:
    """Show the next messages without claiming them; of a stream topic those of a group."""
    with session.client() as client:
        definition = client.topic(topic)
        check_group(definition, group, "new")
        if group is not None:
            _peek_group(session, client.stream(definition), group, place, limit, checked_slots(definition, slots))
            return
        found = client.inspect(definition).peek(_PLACES[place], limit, checked_slots(definition, slots))
        found.sort(key=lambda message: _next_first(definition, message))
        if session.json:
            for message in found[:limit]:
                session.document(documents.peeked_message(message))
            return
        if not found:
            session.note(f"nothing in {place.value} of topic {topic}")
            return
        now_ms = redis_now_ms(client, definition)
        _print(session, definition, found[:limit], _DUE[place], now_ms)


def _peek_group(
    session: Session, view: StreamTopic, group: str, place: Where, limit: int, slots: list[int] | None
) -> None:
    """Show what a group has not read yet, or what it has in hand, or what waits for a retry."""
    if place is not Where.STORE:
        waits = place is Where.RETRY
        rows = (row for row in view.pending(group, None, slots) if (row.consumer is None) is waits)
        print_pending(session, view.topic.name, group, list(islice(rows, limit)))
        return
    print_entries(session, view.topic, view.unread(group, limit, slots))


def _next_first(topic: Topic, message: PeekedMessage) -> tuple[int, int]:
    """Order messages of several slots as if they were in one."""
    if topic.type.timed or message.place != "store":
        return (message.due_ms or 0, message.slot)
    return (-message.score, message.slot)


def _print(session: Session, topic: Topic, found: list[PeekedMessage], due: str, now_ms: int) -> None:
    prioritised = not topic.type.timed and found[0].place == "store"
    bodies = any(message.body is not None for message in found)
    columns = ["~content", *(["~body"] if bodies else []), ">slot", ">priority" if prioritised else f">{due}"]
    table = new_table(*columns, ">retries left")
    for message in found:
        fresh = message.retries_left is None
        moment = "now" if message.due_ms is None else from_now(message.due_ms, now_ms)
        table.add_row(
            cut(message.content),
            *([cut(message.body or b"")] if bodies else []),
            str(message.slot),
            (str(message.score) if fresh else "retry") if prioritised else moment,
            "all" if fresh else str(message.retries_left),
        )
    session.out.print(table)


def cancel(session: Session, topic: TopicName, content: Content, slot_basis: SlotBasis = None) -> None:
    """Take a message out of the backlog, or out of its wait for a retry. Exit code 1 where it was not there."""
    with session.client() as client:
        report(session, topic, content, client.control(topic).cancel(content, slot_basis), "cancelled")


def reschedule(
    session: Session,
    topic: TopicName,
    content: Content,
    due_in: Annotated[
        int | None,
        Typed(parse_duration_ms),
        typer.Option("--in", metavar="DURATION", help="Due this long after now; 0 for at once."),
    ] = None,
    at: Annotated[
        int | None, Typed(parse_instant_ms), typer.Option("--at", metavar="TIME", help="Due at this time.")
    ] = None,
    priority: Annotated[int | None, typer.Option(help="The new priority.")] = None,
    slot_basis: SlotBasis = None,
) -> None:
    """Give a message another due time or priority. Exit code 1 where it was not there."""
    with session.client() as client:
        result = client.control(topic).reschedule(
            content, due_in=due_in, fixed_time=at, priority=priority, slot_basis=slot_basis
        )
        report(session, topic, content, result, "rescheduled")


def report(session: Session, topic: str, content: bytes, result: ControlResult, done: str) -> None:
    """Print what became of a request by content; end with exit code 1 where it was not done."""
    name = shown(content)
    if session.json:
        session.document({"topic": topic, "content": json_payload(content), "result": result.value})
    elif result is ControlResult.DONE:
        session.line(f"{done}: {name}")
    elif result is ControlResult.IN_FLIGHT:
        session.warn(f"a handler has it at the moment; not touched: {name}")
    else:
        session.warn(f"neither in the backlog nor waiting for a retry: {name}")
    if result is not ControlResult.DONE:
        raise typer.Exit(FAILED)
