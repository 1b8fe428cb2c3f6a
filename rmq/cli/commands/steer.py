"""`rmq promote`, `reprioritise`, `pause`, `resume`, `purge`; `rmq audit` and `rmq workers`."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Annotated

import typer

from rmq._model.display import from_now, shown, span, when
from rmq._model.topics import TopicType
from rmq.cli import documents
from rmq.cli.commands.messages import report
from rmq.cli.console import FAILED, Session, cut, is_terminal, new_table
from rmq.cli.options import Content, Group, Limit, SlotBasis, Slots, TopicName, Yes
from rmq.cli.parsing import checked_slots
from rmq.client import RmqClient
from rmq.errors import InvalidValueError


class Purgeable(Enum):
    """What can be purged, as it is typed."""

    STORE = "store"
    RETRY = "retry"


def promote(session: Session, topic: TopicName, content: Content, slot_basis: SlotBasis = None) -> None:
    """Make a message due now; with priorities, put it before all others of its slot. Exit code 1: it was not there."""
    with session.client() as client:
        report(session, topic, content, client.control(topic).promote(content, slot_basis), "promoted")


def reprioritise(
    session: Session,
    topic: TopicName,
    content: Content,
    priority: Annotated[int, typer.Argument(help="The new priority.")],
    slot_basis: SlotBasis = None,
) -> None:
    """Give a message another priority. Exit code 1: it was not there."""
    with session.client() as client:
        result = client.control(topic).reprioritise(content, priority, slot_basis)
        report(session, topic, content, result, "reprioritised")


def pause(session: Session, topic: TopicName, slots: Slots = None, group: Group = None) -> None:
    """Let no worker claim from a topic. What is in flight goes on, and sends are taken."""
    _pause(session, topic, slots, group, True)


def resume(session: Session, topic: TopicName, slots: Slots = None, group: Group = None) -> None:
    """End a pause."""
    _pause(session, topic, slots, group, False)


def _pause(session: Session, topic: str, slots: list[int] | None, group: str | None, paused: bool) -> None:
    with session.client() as client:
        definition = client.topic(topic)
        if group is not None:
            if slots:
                raise InvalidValueError("a group is paused on all slots: leave out --slot")
            stream = client.stream(definition)
            changed = stream.pause(group) if paused else stream.resume(group)
        else:
            control = client.control(definition)
            wanted = checked_slots(definition, slots)
            changed = control.pause(wanted) if paused else control.resume(wanted)
    if session.json:
        session.document({"topic": topic, "group": group, "paused": paused, "changed_slots": changed})
        return
    done = "paused" if paused else "resumed"
    session.line(f"{changed:,} slots {done}" if changed else f"nothing to do: {done} already")


def purge(
    session: Session,
    topic: TopicName,
    place: Annotated[Purgeable, typer.Option(help="The backlog, or what waits for a retry.")] = Purgeable.STORE,
    slots: Slots = None,
    limit: Limit = None,
    yes: Yes = False,
) -> None:
    """Drop the backlog for good. Asks for the topic's name first; the dead: see `rmq dead purge`."""
    if not yes and not is_terminal(sys.stdin):
        raise InvalidValueError("purge drops messages for good and cannot ask without a terminal: add --yes")
    with session.client() as client:
        definition = client.topic(topic)
        wanted = checked_slots(definition, slots)
        count = _count(client, topic, place, wanted, limit)
        if (
            not yes
            and typer.prompt(f"This drops {count:,} messages for good. Type the topic's name", err=True) != topic
        ):
            session.note("nothing was dropped")
            raise typer.Exit(FAILED)
        with session.progress("purged", count) as moved:
            dropped = client.control(definition).purge(
                place.value, confirm=topic, slots=wanted, limit=limit, progress=moved
            )
    if session.json:
        session.document({"purged": dropped})
    else:
        session.line(f"{dropped:,} purged")


def _count(client: RmqClient, topic: str, place: Purgeable, slots: list[int] | None, limit: int | None) -> int:
    stats = client.inspect(topic).stats(slots)
    count = stats.backlog if place is Purgeable.STORE else stats.waiting
    return count if limit is None else min(count, limit)


def audit(
    session: Session,
    topic: TopicName,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Most lines.")] = 50,
    slots: Slots = None,
) -> None:
    """Show who steered what, the newest first."""
    with session.client() as client:
        definition = client.topic(topic)
        if definition.type is TopicType.STREAM:
            lines = client.stream(definition).audit(limit)
        else:
            lines = client.inspect(definition).audit(limit, checked_slots(definition, slots))
    if session.json:
        for line in lines:
            session.document(documents.picked(line, "topic slot time_ms actor action content detail outcome"))
    elif not lines:
        session.note(f"the audit log of topic {topic} is empty")
    else:
        table = new_table("when", "~who", "what", "~on", "~outcome")
        for line in lines:
            on = shown(line.detail) if line.content is None else " ".join([shown(line.content), shown(line.detail)])
            table.add_row(when(line.time_ms)[:19], cut(line.actor), shown(line.action), cut(on), cut(line.outcome))
        session.out.print(table)


def workers(session: Session) -> None:
    """Show the processes that run listeners, as they last reported (every 5 s)."""
    with session.client() as client:
        found = client.workers()
    if session.json:
        session.document({"workers": [documents.worker(each) for each in found]})
        return
    if not found:
        session.note("no process with running listeners has reported")
        return
    table = new_table("~worker, topics", ">slots", ">in flight", ">handled/s", ">failed/s", ">seen")
    for worker in found:
        style = "yellow" if worker.stale else None
        table.add_row(cut(worker.name), "", "", "", "", from_now(worker.seen_ms, worker.now_ms), style=style)
        for each in worker.listeners:
            place = each.topic if each.group is None else f"{each.topic}@{each.group}"
            table.add_row(
                cut(f"  {place}"),
                f"{len(each.slots):,}",
                f"{each.in_flight:,}",
                f"{each.handled_per_s:,.1f}",
                f"{each.failed_per_s:,.1f}",
                "",
                style=style,
            )
    session.out.print(table)
    if stale := [worker for worker in found if worker.stale]:
        longest = span(max(worker.silent_ms for worker in stale))
        session.warn(f"{len(stale):,} were silent for up to {longest}: they may have stopped")
