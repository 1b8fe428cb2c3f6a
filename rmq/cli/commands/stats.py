"""`rmq status` and `rmq doctor`: what needs attention; `rmq stats`: sizes, lateness and totals of topics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from rmq import (
    ConsumerStats,
    GroupSlot,
    GroupStats,
    RmqClient,
    StreamStats,
    Topic,
    TopicStats,
    TopicType,
    UnreadableTopic,
    __version__,
)
from rmq.cli.commands.streams import consumers_table, group_tables
from rmq.cli.commands.topics import show_topics
from rmq.cli.console import FAILED, Columns, Session, table_of
from rmq.errors import InvalidValueError, RedisUnavailableError, RmqError
from rmq.spi import check_group, counted, id_key, span
from rmq.views import documents
from rmq.views.columns import GROUP_SIZES, SIZES, TOPICS, numbers, totals
from rmq.views.doctor import Check, examine
from rmq.views.findings import all_well, findings_of, worst_first
from rmq.views.reading import read_all
from rmq.views.words import merge_name, when

_STYLES = {"critical": "bold red", "failed": "bold red", "warning": "yellow", "ok": "green", "unknown": "dim"}
_SHOWN = ("~topic", ">due", ">oldest", ">in flight", ">waiting", ">dead", ">sent/s", ">done/s")
_TOTALS = ("accepted", "merged", "delivered", "acked", "retried", "buried")
_RARE = [name for name in documents.SLOT_TOTALS if name not in _TOTALS]
_RED = "bold red"


def status(
    session: Session,
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC")] = None,
) -> int:
    """Show what is stuck, failing or nearly full, the worst first, each with a command that shows more.

    Below are the topics with their due messages and the waiting time of the oldest, those with problems first. Rates
    are those of the last minute, or "-" if no process has recorded them. Exit code 1: a problem is critical.

    Options:
        topics: Names of topics. Default: all topics.
    """
    with session.client() as client:
        reading = read_all(client, topics)
    findings = findings_of(reading)
    rows = worst_first(reading.topics, findings)
    if session.json:
        session.document(documents.status(reading, rows, findings))
    else:
        for each in findings:
            about = f"{each.about}: " if each.about else ""
            session.line((f"{each.severity.value:8}  ", _STYLES[each.severity.value]), (about, "bold"), each.text)
            session.line((f"          {each.command}", "dim"))
        if not findings:
            session.line((f"{all_well(reading)}.", "green"))
        if rows:
            session.line()
            session.out.print(table_of({name: TOPICS[name] for name in _SHOWN}, rows))
    return FAILED if any(each.severity.value == "critical" for each in findings) else 0


def doctor(session: Session) -> int:
    """Check a deployment: servers, clocks, definitions, rights, topics and workers. Changes nothing.

    Exit code 1: a check has failed. Warnings, and checks that could not be made, do not count.
    """
    with session.client() as client:
        checks: list[Check] = []
        if not session.json:
            session.line((f"RMQ {__version__} on {client.shown_url}", "dim"))
        for each in examine(client):
            checks.append(each)
            if not session.json:
                state = each.state.value
                session.line((f"{state:8}  ", _STYLES[state]), (f"{each.subject}: ", "bold"), each.text)
                if each.advice:
                    session.line((f"          {each.advice}", "dim"))
    failed = any(each.state.value == "failed" for each in checks)
    if session.json:
        documents = [asdict(each) | {"state": each.state.value} for each in checks]
        session.document({"version": __version__, "healthy": not failed, "checks": documents})
    return FAILED if failed else 0


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """Figures of a stream topic and its groups, with the consumers if a single group was requested."""

    stats: StreamStats
    groups: Sequence[GroupStats]
    consumers: list[ConsumerStats] | None


Figures = TopicStats | StreamFigures


def stats(
    session: Session,
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC")] = None,
    slots: Annotated[bool, typer.Option("--slots")] = False,
    watch: Annotated[float | None, typer.Option(min=0.1, max=86400, metavar="S")] = None,
    group: Annotated[str | None, typer.Option(metavar="NAME")] = None,
) -> None:
    """Show the number of messages in each state, and the totals since the topics were created.

    For stream topics: length, oldest and newest entry, and the lag of each group.

    Options:
        topics: Names of topics. Default: all topics.
        slots: Also show each slot that has been used.
        watch: Repeat at this interval until interrupted with Ctrl-C.
        group: stream: show only this group, with its consumers.
    """
    with session.client() as client:
        wanted = [client.topic(name) for name in topics] if topics else None
        if group is not None:
            if wanted is None:
                raise InvalidValueError("--group requires the name of a stream topic")
            for topic in wanted:
                check_group(topic, group, "new")
        if watch is None:
            _show(session, _read(client, wanted, group), slots)
            return
        with suppress(KeyboardInterrupt):
            _watch(session, lambda: _read(client, wanted, group), slots, watch)


class _Found(NamedTuple):
    figures: list[Figures]
    unreadable: Sequence[UnreadableTopic] = ()


def _read(client: RmqClient, topics: Sequence[Topic] | None, group: str | None) -> _Found:
    if topics is not None:
        return _Found([_figures(client, topic, group) for topic in topics])
    definitions = client.definitions()
    found: list[Figures] = []
    unreadable = list(definitions.unreadable)
    for topic in definitions.topics:
        try:
            found.append(_figures(client, topic, group))
        except RedisUnavailableError:
            raise
        except RmqError as error:  # the other topics are still worth seeing
            unreadable.append(UnreadableTopic(topic.name, f"topic {topic.name}: {error}"))
    return _Found(found, unreadable)


def _figures(client: RmqClient, topic: Topic, group: str | None) -> Figures:
    if topic.type is not TopicType.STREAM:
        return client.inspect(topic).stats()
    view = client.stream(topic)
    if group is None:
        return StreamFigures(*view.with_groups(), None)
    return StreamFigures(view.stats(), [view.group(group)], view.consumers(group))


def _show(session: Session, found: _Found, slots: bool) -> None:
    show_topics(session, [_document(each, slots) for each in found.figures], _view(found, slots), found.unreadable)


def _document(found: Figures, slots: bool) -> documents.Document:
    if isinstance(found, TopicStats):
        return documents.topic_stats(found, slots)
    return documents.stream_stats(found.stats, found.groups, found.consumers, slots)


def _watch(session: Session, read: Callable[[], _Found], slots: bool, every_s: float) -> None:
    if session.json or not session.out.is_terminal:
        while True:
            _show(session, read(), slots)
            time.sleep(every_s)
    with Live(console=session.out, auto_refresh=False) as live:
        while True:
            live.update(_view(read(), slots), refresh=True)
            time.sleep(every_s)


def _view(found: _Found, slots: bool) -> RenderableType:
    plain = [each for each in found.figures if isinstance(each, TopicStats)]
    name: Columns[TopicStats] = {"topic": lambda each: each.topic.name}
    now = table_of({**name, **SIZES}, plain, "Now")
    since = table_of({**name, **totals(_TOTALS)}, plain, "Since the topic began")
    parts: list[RenderableType] = [now, since, Group(*_remarks(plain))] if plain else []
    if slots:
        parts += map(_slot_table, plain)
    parts += _stream_parts([each for each in found.figures if isinstance(each, StreamFigures)], slots)
    return Group(*(Padding(part, (0, 0, 1, 0), expand=False) for part in parts))


def _remarks(found: Sequence[TopicStats]) -> Iterable[Text]:
    for each in found:
        if each.topic.merge is not None and each.total("accepted"):
            share = f"{each.merged_ratio:.1%} of the sends merged, by {merge_name(each.topic.merge)}"
            yield Text(f"{each.topic.name}: {share}", style="dim")
        rare = [f"{each.total(name):,} {name}" for name in _RARE if each.total(name)]
        if rare:
            yield Text(f"{each.topic.name}: also {', '.join(rare)}", style="dim")
        if paused := [slot.slot for slot in each.slots if slot.paused]:
            yield Text(f"{each.topic.name}: {len(paused):,} of {len(each.slots):,} slots are paused", style="yellow")
        yield from _unaccounted(each.topic.name, each.unaccounted, "message")


def _slot_table(found: TopicStats) -> RenderableType:
    used = [slot for slot in found.slots if any(slot.totals.values()) or slot.unaccounted]
    columns: Columns[TopicStats] = {">slot": lambda each: str(each.slots[0].slot), **SIZES, **totals(["acked"])}
    parts: list[RenderableType] = [
        table_of(columns, [TopicStats(found.topic, (slot,)) for slot in used], found.topic.name, _slot_style)
    ]
    if unused := len(found.slots) - len(used):
        parts.append(Text(f"{unused:,} of {len(found.slots):,} slots were never used", style="dim"))
    return Group(
        *parts, *(text for slot in used for text in _unaccounted(f"slot {slot.slot}", slot.unaccounted, "message"))
    )


def _slot_style(stats: TopicStats) -> str | None:
    return _RED if stats.unaccounted else "yellow" if stats.slots[0].paused else None


def _stream_parts(found: Sequence[StreamFigures], slots: bool) -> Iterable[RenderableType]:
    if not found:
        return
    columns: Columns[StreamStats] = {
        "topic": lambda each: each.topic.name,
        **numbers("length"),
        "oldest": lambda each: _sent(each.first_id),
        "newest": lambda each: _sent(each.last_id),
        **totals(["accepted", "trimmed", "deleted"]),
    }
    yield table_of(columns, [each.stats for each in found], "Streams")
    rows = [(each.stats.topic.name, group) for each in found for group in each.groups]
    if rows:
        yield group_tables(rows)
    for each in found:
        if each.consumers is not None:
            yield consumers_table(each.consumers, f"Consumers of group {each.groups[0].group}")
        if slots:
            yield _stream_slot_table(each)
        yield from _stream_remarks(each)


def _sent(entry_id: str) -> str:
    return when(id_key(entry_id)[0]) if entry_id else "-"


def _stream_slot_table(found: StreamFigures) -> RenderableType:
    slots = {slot.slot: slot for slot in found.stats.slots}

    def age(each: GroupSlot) -> str:
        return span(max(0, slots[each.slot].now_ms - id_key(each.oldest_id)[0])) if each.oldest_id else "-"

    of_group: Columns[GroupSlot] = {
        "group": lambda each: each.group,
        **GROUP_SIZES,
        **numbers("epoch"),
        ">oldest unacked": age,
    }
    rows: Sequence[Any] = [group.slots[number] for number in slots for group in found.groups]
    columns: Columns[Any] = {
        ">slot": lambda each: str(each.slot),
        ">length": lambda each: f"{slots[each.slot].length:,}",
        **(of_group if rows else dict.fromkeys(of_group, lambda _: "")),
    }
    title = found.stats.topic.name
    return table_of(columns, rows or found.stats.slots, title, lambda each: "yellow" if rows and each.paused else None)


def _stream_remarks(found: StreamFigures) -> Iterable[Text]:
    name = found.stats.topic.name
    yield from _unaccounted(name, found.stats.unaccounted, "entry", "entries")
    for group in found.groups:
        yield from _unaccounted(f"{name}, group {group.group}", group.unaccounted, "entry", "entries")
        if paused := sum(slot.paused for slot in group.slots):
            yield Text(f"{name}, group {group.group}: {counted(paused, 'slot is', 'slots are')} paused", style="yellow")
        if not any(slot.last_id for slot in group.slots):
            yield Text(f"topic {name} has no group {group.group}", style="yellow")


def _unaccounted(where: str, number: int, what: str, more: str = "") -> Iterable[Text]:
    if number:
        yield Text(f"{where}: {counted(number, what, more)} unaccounted for", style=_RED)
