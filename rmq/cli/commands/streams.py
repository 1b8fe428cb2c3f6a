"""`rmq stream`: groups and consumers of a stream topic, their pending entries, and the entries themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import Annotated, Any, overload

import typer
from rich.console import Group, RenderableType

from rmq import ConsumerStats, GroupStats, PendingEntry, Retention, StreamEntry, Topic, tail_all
from rmq.cli.console import FAILED, Columns, Session, cut, redis_now_ms, table_of
from rmq.cli.options import GroupName, Slots, Start, StreamName, duration, parse_past_ms, span_of
from rmq.errors import InvalidValueError
from rmq.spi import counted, shown, span
from rmq.views import documents
from rmq.views.columns import CONSUMERS, GROUP_SIZES, totals
from rmq.views.words import when

_ID = re.compile(r"\d{1,20}-\d{1,20}", re.ASCII)
_POSITION = "ID|TIME|AGE"
BOUND = "ID|(ID|TIME|AGE"
"""Forms of an end of a range. An id after `(` is excluded from the range."""


def show_range(
    session: Session,
    topic: StreamName,
    first: Annotated[str | None, typer.Option("--from", metavar=BOUND)] = None,
    last: Annotated[str | None, typer.Option("--to", metavar=BOUND)] = None,
    newest: Annotated[bool, typer.Option("--newest")] = False,
    limit: Annotated[int, typer.Option(min=0, metavar="N")] = 50,
    slots: Slots = None,
) -> None:
    """Show entries in the order in which they were sent.

    Options:
        first: First id; '(ID' excludes it. Default: the oldest entry.
        last: Last id; '(ID' excludes it. Default: the newest entry.
        newest: Newest entries first.
        limit: Maximum number of entries; 0 for all.
    """
    with session.opened(topic) as (client, definition):
        now_ms = redis_now_ms(client, definition)
        low, high = bound_of(first, "--from", now_ms), bound_of(last, "--to", now_ms)
        found = client.stream(definition).range(low, high, newest_first=newest, slots=slots)
        print_entries(session, definition, found, limit)


def tail(
    session: Session,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...")],
    start: Annotated[str | None, typer.Option("--from", metavar=_POSITION)] = None,
    most: Annotated[int | None, typer.Option("--max", min=1, metavar="N")] = None,
    timeout: Annotated[float | None, typer.Option(min=0, metavar="S")] = None,
    slots: Slots = None,
) -> None:
    """Show entries as they arrive in one topic or several, without a group, until Ctrl-C.

    Options:
        topics: Names of stream topics.
        start: Show entries after this id, or from this time on. Default: now.
        most: Stop after this many entries.
        timeout: Stop after this many seconds without an entry.
    """
    if slots and len(topics) > 1:
        raise InvalidValueError(f"--slot cannot be used with {len(topics)} topics; give one topic")
    with session.client() as client:
        known = {name: client.topic(name) for name in topics}
        begin = position_of(start, "--from", redis_now_ms(client, known[topics[0]]))
        views = [client.stream(definition) for definition in known.values()]
        found = views[0].tail(begin, timeout, slots) if len(views) == 1 else tail_all(views, begin, timeout)
        with suppress(KeyboardInterrupt):
            for entry in islice(found, most):
                if session.json:
                    session.document(documents.entry(known[entry.topic], entry))
                else:
                    where = [f"topic {entry.topic}"] if len(views) > 1 else []
                    facts = (*where, f"id {entry.id}", f"slot {entry.slot}", f"sent {when(entry.time_ms)}")
                    session.message(entry.content, facts, None if entry.body is None else ("body", shown(entry.body)))


def delete(
    session: Session,
    topic: StreamName,
    ids: Annotated[list[str], typer.Argument(metavar="ID")],
    slot: Annotated[int | None, typer.Option("--slot", metavar="N")] = None,
) -> int:
    """Delete entries, including entries that a group has not acked. Exit code 1: none of them exists.

    Options:
        ids: Ids of entries.
        slot: Slot of the entries, since ids are unique only within a slot. Default: all slots are searched.
    """
    with session.opened(topic) as (client, definition):
        deleted = client.stream(definition).delete(*ids, slot=slot)
    session.result({"topic": topic, "deleted": deleted}, f"{deleted:,} deleted")
    return 0 if deleted else FAILED


def trim(
    session: Session,
    topic: StreamName,
    max_length: Annotated[int | None, typer.Option(min=0, metavar="N")] = None,
    max_age: Annotated[int | None, typer.Option(metavar="DURATION", parser=duration)] = None,
    exact: Annotated[bool, typer.Option("--exact")] = False,
    unacked: Annotated[bool, typer.Option("--unacked")] = False,
) -> None:
    """Remove the oldest entries now, by the topic's retention or by the limits given here.

    Options:
        max_length: Keep at most this many entries, divided equally among the slots; for this call only.
        max_age: Keep entries up to this age; for this call only.
        exact: Trim exactly. By default Redis removes only whole nodes of its stream, so a few more entries are kept.
        unacked: Also remove entries that a group has not acked.
    """
    own = None
    if max_length is not None or max_age is not None:
        own = Retention(max_length=max_length, max_age=span_of(max_age), approximate=not exact, unacked=unacked)
    elif exact or unacked:
        raise InvalidValueError("--exact and --unacked require --max-length or --max-age")
    with session.opened(topic) as (client, definition):
        done = client.stream(definition).trim(retention=own)
    dropped, left = sum(slot.dropped for slot in done), sum(slot.length for slot in done)
    bounds = own or definition.retention
    if not session.json and (bounds is None or not bounds.bounded):
        session.note(
            f"nothing was removed: the retention of topic {topic} has no limits; give --max-length or --max-age"
        )
        return
    session.result({"topic": topic, "dropped": dropped, "length": left}, f"{dropped:,} dropped, {left:,} left")


def print_entries(session: Session, topic: Topic, entries: Iterable[StreamEntry], limit: int) -> None:
    """Print entries as a table, or with --json as one line of JSON each."""
    columns: Columns[StreamEntry] = {
        "id": lambda entry: entry.id,
        "~content": lambda entry: cut(entry.content),
        ">slot": lambda entry: str(entry.slot),
        ">sent": lambda entry: when(entry.time_ms),
    }
    session.rows(entries, partial(documents.entry, topic), columns, f"no entries found in topic {topic.name}", limit)


@overload
def position_of(text: str, name: str, now_ms: int) -> str | int: ...
@overload
def position_of(text: str | None, name: str, now_ms: int) -> str | int | None: ...
def position_of(text: str | None, name: str, now_ms: int) -> str | int | None:
    """Parse a position in a stream: an id, a time, or an age, which is counted back from `now_ms`."""
    if text is None or _ID.fullmatch(text):
        return text
    try:
        return parse_past_ms(text, name, now_ms)
    except InvalidValueError as error:
        raise InvalidValueError(f"{error}, or an id such as 1795238693731-0") from None


def bound_of(text: str | None, name: str, now_ms: int) -> str | int | None:
    """Parse an end of a range: a position, or an id after `(`, which is excluded from the range."""
    if text is None or not text.startswith("("):
        return position_of(text, name, now_ms)
    if not _ID.fullmatch(text[1:]):
        raise InvalidValueError(f"{name} is {text!r}; the text after ( must be an id, as in '(1795238693731-0'")
    return text


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
            start = place if named else position_of(place, "position", redis_now_ms(client, definition))
        except InvalidValueError as error:
            raise InvalidValueError(f"{error}, or new, or all") from None
        client.stream(definition).move_group(group, start)
    session.result({"topic": topic, "group": group, "start": start}, f"group {group} of topic {topic} was moved")


def remove_group(
    session: Session,
    topic: StreamName,
    group: GroupName,
    force: Annotated[bool, typer.Option("--force")] = False,
) -> int:
    """Remove a group with its position, pending entries and dead entries. Exit code 1: there is no such group.

    Options:
        force: Remove the group even if a consumer is active.
    """
    with session.client() as client:
        removed = client.stream(topic).remove_group(group, force=force)
    done = f"group {group} removed" if removed else f"topic {topic} has no group {group}"
    session.result({"topic": topic, "group": group, "removed": removed}, done)
    return 0 if removed else FAILED


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
    """Remove a consumer that is gone. Its entries go to the other consumers at once.

    Options:
        name: Name of the consumer.
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


def group_tables(found: list[tuple[str, GroupStats]]) -> Group:
    """Return two tables of groups with their topics: the present figures, and the totals."""
    topics = {id(group): topic for topic, group in found}
    name: Columns[GroupStats] = {"topic": lambda each: topics[id(each)], "group": lambda each: each.group}
    groups = [group for _, group in found]
    now = table_of({**name, **GROUP_SIZES}, groups, "Groups now")
    return Group(now, "", table_of({**name, **totals(GROUP_COUNTS)}, groups, "Since the group began"))


def consumers_table(found: list[ConsumerStats], title: str | None = None) -> RenderableType:
    """Return a table of a group's consumers."""
    return table_of(CONSUMERS, found, title, lambda each: "yellow" if each.gone else None)
