"""`rmq peek`, `rmq cancel` and `rmq reschedule`: show and change single messages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Annotated, Any, Literal, cast

import typer

from rmq import Control, ControlResult, PeekedMessage, StreamTopic, Topic
from rmq.cli.commands.entries import print_entries
from rmq.cli.commands.find import holder_words, value_columns
from rmq.cli.commands.streams import print_pending
from rmq.cli.console import FAILED, Columns, Session, cut, is_terminal
from rmq.cli.options import Content, Group, SlotBasis, Slots, TopicName, Yes, duration, instant, payload, span_of
from rmq.errors import InvalidValueError
from rmq.spi import check_group, counted, moment_at, shown
from rmq.views import documents
from rmq.views.words import age_words, from_now, json_payload

Where = Literal["store", "in-flight", "retry"]
_DUE = {"store": "due", "in-flight": "lease ends", "retry": "retry"}


def peek(
    session: Session,
    topic: TopicName,
    place: Annotated[Where, typer.Option()] = "store",
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 20,
    slots: Slots = None,
    group: Group = None,
) -> None:
    """Show the next messages without claiming them. A stream topic requires --group.

    Options:
        place: Which messages: store (the backlog), in-flight, or retry (waiting for a retry).
        limit: Maximum number of messages.
    """
    with session.opened(topic) as (client, definition):
        check_group(definition, group, "new")
        if group is not None:
            _peek_group(session, client.stream(definition), group, place, limit, slots)
            return
        found = client.inspect(definition).peek(cast("Any", documents.Place(place).name), limit, slots)
        found = sorted(found, key=lambda message: _next_first(definition, message))[:limit]
        columns: Columns[PeekedMessage] = {
            "~content": lambda message: cut(message.content),
            **value_columns(definition, found),
            **({} if definition.merge is None else {">sent": lambda message: age_words(message, message.now_ms)}),
            ">slot": lambda message: str(message.slot),
        }
        if definition.type.timed or place != "store":
            columns |= {f">{_DUE[place]}": _due_words}
        else:
            columns |= {">priority": lambda message: str(message.priority) if _is_new(message) else "retry"}
        if definition.merge is None or not all(map(_is_new, found)):
            columns |= {">retries left": lambda message: "all" if _is_new(message) else str(message.retries_left)}
        if place == "in-flight":
            columns |= {"~held": holder_words}
        document = partial(documents.message, definition)
        session.rows(found, document, columns, f"topic {topic} has no messages with --place {place}")


def _is_new(message: PeekedMessage) -> bool:
    return message.retries_left is None


def _due_words(message: PeekedMessage) -> str:
    return "now" if message.due_ms is None else from_now(message.due_ms, message.now_ms)


def _peek_group(
    session: Session, view: StreamTopic, group: str, place: Where, limit: int, slots: list[int] | None
) -> None:
    """Show the entries of a group that are unread, in flight, or waiting for a retry."""
    if place == "store":
        print_entries(session, view.topic, view.unread(group, limit, slots), 0)
        return
    rows = (row for row in view.pending(group, None, slots) if (row.consumer is None) is (place == "retry"))
    print_pending(session, view.topic.name, group, islice(rows, limit), 0)


def _next_first(topic: Topic, message: PeekedMessage) -> tuple[int, int]:
    """Return a sort key that orders the messages of several slots as if they were in one slot."""
    if topic.type.timed or message.place != "store":
        return (message.due_ms or 0, message.slot)
    return (-message.score, message.slot)


def cancel(
    session: Session,
    topic: TopicName,
    content: Annotated[bytes | None, typer.Argument(metavar="[CONTENT]", parser=payload)] = None,
    slot_basis: SlotBasis = None,
    matching: Annotated[bytes | None, typer.Option(metavar="PATTERN", parser=payload)] = None,
    prefix: Annotated[bytes | None, typer.Option(metavar="TEXT", parser=payload)] = None,
    slots: Slots = None,
    dry_run: Annotated[bool, typer.Option("--dry-run")] = False,
    yes: Yes = False,
) -> None:
    """Remove messages that are in the backlog or wait for a retry: one by its content, or all that match.

    Messages in flight are not changed. Exit code 1: there is no such message, or none matches.

    Options:
        content: Content of the message.
        matching: Remove all messages whose content matches this glob pattern, with * ? and [...].
        prefix: Remove all messages whose content starts with this text.
        dry_run: With --matching or --prefix: only count.
    """
    if [content, matching, prefix].count(None) != 2:
        raise InvalidValueError("give one of CONTENT, --matching and --prefix")
    if content is not None:
        if slots or dry_run or yes:
            raise InvalidValueError("--slot, --dry-run and --yes require --matching or --prefix")
        steer(session, topic, content, "cancelled", lambda control: control.cancel(content, slot_basis))
        return
    if slot_basis is not None:
        raise InvalidValueError("--slot-basis requires CONTENT; --matching and --prefix look in all slots")
    if not (yes or dry_run or is_terminal(sys.stdin)):
        raise InvalidValueError(
            "--matching and --prefix remove messages permanently, and cannot ask for confirmation without a terminal: "
            "add --yes, or --dry-run to only count"
        )
    with session.client() as client:
        control = client.control(topic)
        found = control.cancel_matching(matching, prefix=prefix, slots=slots, dry_run=True)
        about = f"{counted(found.cancelled, 'message matches', 'messages match')}"
        about += f"; {found.in_flight:,} more in flight are not changed" if found.in_flight else ""
        if not dry_run and found.cancelled:
            session.note(about)
            if not yes and not typer.confirm("Permanently remove them?", err=True):
                session.note("nothing was cancelled")
                raise typer.Exit(FAILED)
            with session.progress("cancelled", found.cancelled) as moved:
                found = control.cancel_matching(matching, prefix=prefix, slots=slots, progress=moved)
    document = {"topic": topic, "dry_run": dry_run, "cancelled": found.cancelled, "in_flight": found.in_flight}
    session.result(document, about if dry_run or not found.cancelled else f"{found.cancelled:,} cancelled")
    if not found.cancelled:
        raise typer.Exit(FAILED)


def reschedule(
    session: Session,
    topic: TopicName,
    content: Content,
    due_in: Annotated[int | None, typer.Option("--in", metavar="DURATION", parser=duration)] = None,
    at: Annotated[int | None, typer.Option(metavar="TIME", parser=instant)] = None,
    priority: Annotated[int | None, typer.Option()] = None,
    slot_basis: SlotBasis = None,
) -> None:
    """Change the due time or priority of a message. Exit code 1: there is no such message.

    Options:
        due_in: New due time, as a duration from now; 0s for now.
        at: New due time.
        priority: The new priority.
    """
    if [due_in, at, priority].count(None) != 2:
        raise InvalidValueError("give exactly one of --in, --at and --priority")

    def act(control: Control) -> ControlResult:
        moment = None if at is None else moment_at(at)
        return control.reschedule(
            content, due_in=span_of(due_in), fixed_time=moment, priority=priority, slot_basis=slot_basis
        )

    steer(session, topic, content, "rescheduled", act)


def steer(session: Session, topic: str, content: bytes, done: str, act: Callable[[Control], ControlResult]) -> None:
    """Change one message and print the result; exit with code 1 if the message was not found."""
    with session.client() as client:
        result = act(client.control(topic))
    why = {
        ControlResult.IN_FLIGHT: "not changed, because it is in flight",
        ControlResult.ABSENT: "not found in the backlog, nor waiting for a retry",
    }.get(result)
    if session.json or why is None:
        document = {"topic": topic, "content": json_payload(content), "result": result.value}
        session.result(document, f"{done}: {shown(content)}")
    else:
        session.warn(f"{why}: {shown(content)}")
    if result is not ControlResult.DONE:
        raise typer.Exit(FAILED)
