"""`rmq stream`: groups of a stream topic, their consumers, and the entries in flight at each consumer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType

from rmq import ConsumerStats, GroupSlot, GroupStats, PendingEntry
from rmq.cli.commands.entries import BOUND, bound_of, position_of
from rmq.cli.console import FAILED, Columns, Session, numbers, redis_now_ms, table_of, totals
from rmq.cli.options import GroupName, Slots, Start, StreamName, duration
from rmq.errors import InvalidValueError
from rmq.spi import counted, span
from rmq.views import documents

GROUP_COUNTS = ("delivered", "acked", "retried", "expired", "buried", "lost")
"""Totals of a group that are always shown."""


def groups(session: Session, topic: StreamName) -> None:
    """Show the groups of a stream topic: lag, in flight, waiting, dead, and totals."""
    with session.client() as client:
        found = client.stream(topic).groups()
    document = {"topic": topic, "groups": [documents.group(each) for each in found]}
    tables = group_tables([(topic, each) for each in found]) if found else None
    session.overview(document, tables, f"topic {topic} has no groups; the first consumer of a group registers it")


def add_group(session: Session, topic: StreamName, group: GroupName, start: Start = None) -> None:
    """Create a group before its first consumer does. An existing group keeps its position."""
    with session.client() as client:
        client.stream(topic).add_group(group, start or "new")
    session.result({"topic": topic, "group": group}, f"group {group} of topic {topic} is registered")


def move_group(
    session: Session,
    topic: StreamName,
    group: GroupName,
    place: Annotated[str, typer.Argument(metavar="new|all|ID|TIME|AGE")],
) -> None:
    """Set the position of a group. Entries that are in flight, waiting or dead are not affected.

    Options:
        place: New position: after this id, or from this time or age on.
    """
    with session.opened(topic) as (client, definition):
        named = place in ("new", "all")
        try:
            start = place if named else position_of(place, "place", redis_now_ms(client, definition))
        except InvalidValueError as error:
            raise InvalidValueError(f"{error}, or new, or all") from None
        client.stream(definition).move_group(group, start)
    session.result({"topic": topic, "group": group, "start": start}, f"group {group} of topic {topic} was moved")


def remove_group(
    session: Session,
    topic: StreamName,
    group: GroupName,
    force: Annotated[bool, typer.Option("--force")] = False,
) -> None:
    """Remove a group with its position, pending entries and dead entries. Exit code 1: there is no such group.

    Options:
        force: Remove the group even if a consumer is active.
    """
    with session.client() as client:
        removed = client.stream(topic).remove_group(group, force=force)
    done = f"group {group} removed" if removed else f"topic {topic} has no group {group}"
    session.result({"topic": topic, "group": group, "removed": removed}, done)
    if not removed:
        raise typer.Exit(FAILED)


def consumers(session: Session, topic: StreamName, group: GroupName) -> None:
    """Show the consumers of a group: pending entries, idle time, and whether they are gone."""
    with session.client() as client:
        found = client.stream(topic).consumers(group)
    document = {"topic": topic, "group": group, "consumers": [asdict(each) for each in found]}
    table = consumers_table(found) if found else None
    session.overview(document, table, f"group {group} of topic {topic} has no consumers")


def remove_consumer(
    session: Session,
    topic: StreamName,
    group: GroupName,
    name: Annotated[str | None, typer.Argument(metavar="NAME")] = None,
    gone: Annotated[bool, typer.Option("--gone")] = False,
    idle: Annotated[int | None, typer.Option(metavar="DURATION", parser=duration)] = None,
) -> None:
    """Remove a dead consumer. Its entries go to the other consumers at once.

    Options:
        name: Name of a dead consumer.
        gone: Remove all consumers that are gone, instead of one by name.
        idle: With --gone: minimum idle time.  [default: two leases]
    """
    if (name is None) is not gone or (idle is not None and not gone):
        raise InvalidValueError("give either the NAME of a consumer, or --gone, optionally with --idle")
    with session.client() as client:
        view = client.stream(topic)
        if name is not None:
            known = {each.name for each in view.consumers(group)}
            if name not in known:
                raise InvalidValueError(f"group {group} of topic {topic} has no consumer {name!r}")
            number = view.remove_consumer(group, name)
            document: dict[str, Any] = {"removed": [name], "given_back": number}
            text = f"{name} removed, {counted(number, 'entry', 'entries')} returned"
        else:
            removed = view.remove_gone_consumers(group, None if idle is None else idle / 1000)
            document, text = {"removed": removed}, f"{len(removed):,} removed{': ' * bool(removed)}{', '.join(removed)}"
    session.result({"topic": topic, "group": group, **document}, text)


def pending(
    session: Session,
    topic: StreamName,
    group: GroupName,
    consumer: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    first: Annotated[str | None, typer.Option("--from", metavar=BOUND)] = None,
    idle: Annotated[int | None, typer.Option(metavar="DURATION", parser=duration)] = None,
    limit: Annotated[int, typer.Option(min=0, metavar="N")] = 50,
    slots: Slots = None,
) -> None:
    """Show the entries that a group has not acked, with consumer, idle time, and number of deliveries.

    Options:
        consumer: Only entries of this consumer.
        first: First id; '(ID' excludes it. Default: the oldest entry.
        idle: Only entries that have not been claimed or renewed for this long.
        limit: Maximum number of entries; 0 for all.
    """
    with session.opened(topic) as (client, definition):
        start = None if first is None else bound_of(first, "--from", redis_now_ms(client, definition))
        idle_s = 0.0 if idle is None else idle / 1000
        found = client.stream(definition).pending(group, consumer, slots, start=start, idle_s=idle_s)
        print_pending(session, topic, group, found, limit)


def print_pending(session: Session, topic: str, group: str, rows: Iterable[PendingEntry], limit: int) -> None:
    """Print entries that are in flight or wait for a retry."""
    columns: Columns[PendingEntry] = {
        "id": lambda row: row.id,
        ">slot": lambda row: str(row.slot),
        "held by": lambda row: row.consumer or "waits for a retry",
        ">idle": lambda row: span(row.idle_ms),
        ">deliveries": lambda row: str(row.deliveries),
    }
    empty = f"group {group} of topic {topic} has no pending entries"
    session.rows(rows, lambda row: {"topic": topic, "group": group, **asdict(row)}, columns, empty, limit)


def lag_words(stats: GroupStats | GroupSlot) -> str:
    """Return the number of entries that a group has not read."""
    return "unknown" if stats.lag is None else f"{stats.lag:,}"


def group_tables(found: list[tuple[str, GroupStats]]) -> Group:
    """Return two tables of groups with their topics: the present figures, and the totals."""
    topics = {id(group): topic for topic, group in found}
    name: Columns[GroupStats] = {"topic": lambda each: topics[id(each)], "group": lambda each: each.group}
    groups = [group for _, group in found]
    now = table_of({**name, ">lag": lag_words, **numbers("in_flight waiting dead")}, groups, "Groups now")
    return Group(now, "", table_of({**name, **totals(GROUP_COUNTS)}, groups, "Since the group began"))


def consumers_table(found: list[ConsumerStats], title: str | None = None) -> RenderableType:
    """Return a table of a group's consumers."""
    columns: Columns[ConsumerStats] = {
        "consumer": lambda each: each.name,
        **numbers("pending"),
        ">idle": lambda each: span(each.idle_ms),
        "state": lambda each: "gone" if each.gone else "at work",
    }
    return table_of(columns, found, title, lambda each: "yellow" if each.gone else None)
