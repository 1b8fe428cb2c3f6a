"""Commands that manage messages and topics, and show workers and the audit log."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Literal

import typer

from rmq._model.display import counted, from_now, milliseconds, shown, span, when
from rmq._model.topics import TopicType
from rmq._model.workers import ListenerInfo
from rmq.cli import documents
from rmq.cli.commands.messages import steer
from rmq.cli.console import Session, cut, new_table
from rmq.cli.options import Content, Group, Limit, SlotBasis, Slots, TopicName, Yes
from rmq.errors import InvalidValueError


def promote(session: Session, topic: TopicName, content: Content, slot_basis: SlotBasis = None) -> None:
    """Make a message due now; on a priority topic, put it first in its slot. Exit code 1: there is no such message."""
    steer(session, topic, content, "promoted", lambda control: control.promote(content, slot_basis))


def reprioritise(
    session: Session,
    topic: TopicName,
    content: Content,
    priority: Annotated[int, typer.Argument(help="The new priority.")],
    slot_basis: SlotBasis = None,
) -> None:
    """Change the priority of a message. Exit code 1: there is no such message."""
    steer(session, topic, content, "reprioritised", lambda control: control.reprioritise(content, priority, slot_basis))


def pause(session: Session, topic: TopicName, slots: Slots = None, group: Group = None) -> None:
    """Stop handing out messages of a topic. Running handlers finish, and sends are still accepted."""
    _pause(session, topic, slots, group, True)


def resume(session: Session, topic: TopicName, slots: Slots = None, group: Group = None) -> None:
    """Resume a paused topic."""
    _pause(session, topic, slots, group, False)


def _pause(session: Session, topic: str, slots: list[int] | None, group: str | None, paused: bool) -> None:
    with session.opened(topic) as (client, definition):
        if group is None:
            control = client.control(definition)
            changed = control.pause(slots) if paused else control.resume(slots)
        elif slots:
            raise InvalidValueError("--group and --slot cannot be combined: a group is paused and resumed on all slots")
        else:
            stream = client.stream(definition)
            changed = stream.pause(group) if paused else stream.resume(group)
    done = "paused" if paused else "resumed"
    document = {"topic": topic, "group": group, "paused": paused, "changed_slots": changed}
    session.result(document, f"{counted(changed, 'slot')} {done}" if changed else f"nothing changed: already {done}")


def purge(
    session: Session,
    topic: TopicName,
    place: Annotated[
        Literal["store", "retry"], typer.Option(help="Which messages: the backlog, or those waiting for a retry.")
    ] = "store",
    slots: Slots = None,
    limit: Limit = None,
    yes: Yes = False,
) -> None:
    """Delete the backlog permanently, once the topic's name is confirmed. For dead messages, use `rmq dead purge`."""
    with session.opened(topic) as (client, definition):

        def count() -> int:
            stats = client.inspect(definition).stats(slots)
            return min(stats.backlog if place == "store" else stats.waiting, limit or sys.maxsize)

        def agreed(number: int) -> bool:
            return (
                typer.prompt(f"This permanently deletes {counted(number, 'message')}. Type the topic's name", err=True)
                == topic
            )

        def purge_(moved: Callable[[int], None]) -> int:
            control = client.control(definition)
            return control.purge(place, confirm=topic, slots=slots, limit=limit, progress=moved)

        session.drop(yes, count, agreed, purge_)


def audit(
    session: Session,
    topic: TopicName,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Maximum number of lines.")] = 50,
    slots: Slots = None,
) -> None:
    """Show the audit log of a topic, newest line first."""
    with session.opened(topic) as (client, definition):
        if definition.type is TopicType.STREAM:
            lines = client.stream(definition).audit(limit)
        else:
            lines = client.inspect(definition).audit(limit, slots)
    session.rows(
        lines,
        lambda line: documents.picked(line, "topic slot time_ms actor action content detail outcome"),
        ("when", "~who", "what", "~on", "~outcome"),
        lambda line: (
            when(line.time_ms)[:19], cut(line.actor), shown(line.action),
            cut(" ".join(map(shown, filter(None, (line.content, line.detail))))), cut(line.outcome),
        ),
        f"the audit log of topic {topic} is empty",
    )  # fmt: skip


ALL_COLUMNS = 100
"""Minimum width of a terminal, in characters, to show all columns of `rmq workers`."""


def workers(session: Session) -> None:
    """Show the processes that run listeners, from their last reports (every 5 s).

    handlers: number of handlers that may run in parallel, with Adaptive() its present limit; "pauses" while the
    listener is paused, "rate" while the topic's rate limit holds messages back. p99: 99 % of the handler calls of the
    last 5 minutes took at most this long. longest: running time of the oldest running handler; "hung" if it exceeded
    its timeout. Below 100 columns, "slots" and "handlers" are left out, and "longest" and "seen" share a column.
    """
    with session.client() as client:
        found = client.workers()
    narrow = session.out.width < ALL_COLUMNS
    if narrow:
        names = ">in flight", ">handled/s", ">failed/s", ">p99", ">longest, seen"
    else:
        names = ">slots", ">handlers", ">in flight", ">handled/s", ">failed/s", ">p99", ">longest", ">seen"
    table = new_table("~worker, topics", *names)
    for worker in found:
        style = "yellow" if worker.stale else None
        seen = from_now(worker.seen_ms, worker.now_ms)
        table.add_row(cut(worker.name), *[""] * (len(names) - 1), seen, style=style)
        for each in worker.listeners:
            name = each.topic if each.group is None else f"{each.topic}@{each.group}"
            rates = (
                f"{each.handled_per_s:,.1f}",
                f"{each.failed_per_s:,.1f}",
                milliseconds(each.times.quantile_ms(0.99)),
                _longest(each),
            )
            load = [f"{len(each.slots):,}", _allowed(each), f"{each.in_flight:,}", *rates, ""]
            table.add_row(cut(f"  {name}"), *(load[2:-1] if narrow else load), style=style)
    document = {"workers": [documents.worker(each) for each in found]}
    session.overview(document, table if found else None, "no process with running listeners has reported")
    stale = [worker for worker in found if worker.stale]
    if stale and not session.json:
        longest = span(max(worker.silent_ms for worker in stale))
        session.warn(
            f"{counted(len(stale), 'worker has', 'workers have')} not reported for up to {longest} and may have stopped"
        )


def _allowed(listener: ListenerInfo) -> str:
    """Format the number of handlers that may run, with "pauses" or "rate" if messages are held back."""
    number = f"{listener.threads}" if listener.limit is None else f"{listener.limit} of {listener.threads}"
    return number + (", pauses" if listener.paused_ms else "") + (", rate" if listener.throttled else "")


def _longest(listener: ListenerInfo) -> str:
    """Format the running time of the oldest running handler, with "hung" if it exceeded its timeout."""
    first = next(iter(listener.running), None)
    return "" if first is None else span(first.running_ms) + (", hung" if first.hung else "")
