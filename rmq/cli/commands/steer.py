"""`rmq pause`, `resume` and `purge`, and what was done and runs: `rmq audit` and `rmq workers`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import typer

from rmq import AuditLine, TopicType
from rmq.cli.console import Columns, Session, cells_of, cut, new_table
from rmq.cli.options import Group, Limit, Slots, TopicName, Yes
from rmq.errors import InvalidValueError
from rmq.spi import counted, shown, span
from rmq.views import documents
from rmq.views.columns import LISTENERS
from rmq.views.words import from_now, when


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
    place: Annotated[Literal["store", "retry"], typer.Option()] = "store",
    slots: Slots = None,
    limit: Limit = None,
    yes: Yes = False,
) -> None:
    """Delete messages permanently, by default the backlog, once the topic's name is confirmed.

    For dead messages, use `rmq dead purge`.

    Options:
        place: State of the messages: store (the backlog), or retry (waiting for a retry).
    """
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
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 50,
    slots: Slots = None,
) -> None:
    """Show the audit log of a topic, newest line first.

    Options:
        limit: Maximum number of lines.
    """
    with session.opened(topic) as (client, definition):
        if definition.type is TopicType.STREAM:
            lines = client.stream(definition).audit(limit)
        else:
            lines = client.inspect(definition).audit(limit, slots)
    columns: Columns[AuditLine] = {
        "when": lambda line: when(line.time_ms)[:19],
        "~who": lambda line: cut(line.actor),
        "what": lambda line: shown(line.action),
        "~on": lambda line: cut(" ".join(map(shown, filter(None, (line.content, line.detail))))),
        "~outcome": lambda line: cut(line.outcome),
    }
    document = partial(documents.picked, names="topic slot time_ms actor action content detail outcome")
    session.rows(lines, document, columns, f"the audit log of topic {topic} is empty")


ALL_COLUMNS = 100
"""Minimum width of a terminal, in characters, to show all columns of `rmq workers`."""


def workers(session: Session) -> None:
    """Show the processes that run listeners, from their last reports (every 5 s).

    handlers: number of handlers that may run in parallel; with Adaptive(), the current limit; "pauses" while the
    listener is paused, "rate" while the topic's rate limit holds messages back. p99: 99 % of the handler calls of the
    last 5 minutes took at most this long. longest: running time of the oldest running handler; "hung" if it exceeded
    its timeout. Below 100 columns, "slots" and "handlers" are left out, and "longest" and "seen" share a column.
    """
    with session.client() as client:
        found = client.workers()
    wide = session.out.width >= ALL_COLUMNS
    names = [">in flight", ">handled/s", ">failed/s", ">p99", ">longest"]
    names = [">slots", ">handlers", *names] if wide else names
    figures = {name: LISTENERS[name] for name in names}
    table = new_table("~worker, topics", *([*names, ">seen"] if wide else [*names[:-1], ">longest, seen"]))
    for worker in found:
        style = "yellow" if worker.stale else None
        blank = [""] * (len(table.columns) - 2)
        table.add_row(cut(worker.name), *blank, from_now(worker.seen_ms, worker.now_ms), style=style)
        for each in worker.listeners:
            name = each.topic if each.group is None else f"{each.topic}@{each.group}"
            table.add_row(cut(f"  {name}"), *cells_of(figures, each), style=style)
    document = {"workers": [documents.worker(each) for each in found]}
    session.overview(document, table if found else None, "no process with running listeners has reported")
    stale = [worker for worker in found if worker.stale]
    if stale and not session.json:
        longest = span(max(worker.silent_ms for worker in stale))
        session.warn(
            f"{counted(len(stale), 'worker has', 'workers have')} not reported for up to {longest} and may have stopped"
        )
