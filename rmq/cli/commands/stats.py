"""`rmq stats`: how much is where."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from rmq.cli.session import Session, new_table
from rmq.cli.shown import span
from rmq.cli.stream_stats import StreamFigures, figures_as_json, read_figures, stream_parts
from rmq.client import RmqClient
from rmq.errors import InvalidValueError
from rmq.inspection import TopicStats
from rmq.results import SlotStats
from rmq.stream_values import check_group
from rmq.topics import Topic, TopicType

_TOTALS = ("accepted", "merged", "delivered", "acked", "retried", "buried")
_RARE = ("expired", "released", "exhausted", "redriven", "cancelled", "purged", "trimmed", "dropped", "ttl_expired")
_RED = "bold red"

Figures = TopicStats | StreamFigures


def stats(
    session: Session,
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="Names of topics; all of them by default.")
    ] = None,
    slots: Annotated[bool, typer.Option("--slots", help="Also show every slot that was ever used.")] = False,
    watch: Annotated[
        float | None, typer.Option(min=0.1, metavar="S", help="Show it again every so many seconds, until Ctrl-C.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="NAME", help="stream: only this group, with its consumers.")
    ] = None,
) -> None:
    """Show backlog, due now, in flight, waiting and dead, and the totals since the topics began.

    Of stream topics: length, oldest and newest entry, and each group's lag.
    """
    with session.client() as client:
        wanted = [client.topic(name) for name in topics] if topics else None
        if group is not None:
            if wanted is None:
                raise InvalidValueError("--group belongs to a stream topic: name it")
            for topic in wanted:
                check_group(topic, group, "new")
        if watch is None:
            _show(session, _read(client, wanted, group), slots)
            return
        try:
            _watch(session, lambda: _read(client, wanted, group), slots, watch)
        except KeyboardInterrupt:
            return


def _read(client: RmqClient, topics: Sequence[Topic] | None, group: str | None) -> list[Figures]:
    return [
        read_figures(client, topic, group) if topic.type is TopicType.STREAM else client.inspect(topic).stats()
        for topic in (client.topics() if topics is None else topics)
    ]


def _show(session: Session, found: Sequence[Figures], slots: bool) -> None:
    if session.json:
        session.document({"topics": [_as_json(each, slots) for each in found]})
    elif found:
        session.out.print(_view(found, slots))
    else:
        session.note("no topics: the first send or consumer registers one")


def _watch(session: Session, read: Callable[[], list[Figures]], slots: bool, every_s: float) -> None:
    if session.json or not session.out.is_terminal:
        while True:
            _show(session, read(), slots)
            time.sleep(every_s)
    with Live(console=session.out, auto_refresh=False) as live:
        while True:
            live.update(_view(read(), slots), refresh=True)
            time.sleep(every_s)


def _view(found: Sequence[Figures], slots: bool) -> RenderableType:
    plain = [each for each in found if isinstance(each, TopicStats)]
    parts = [_now_table(plain), _totals_table(plain), Group(*_remarks(plain))] if plain else []
    if slots:
        parts += [_slot_table(each) for each in plain]
    parts += stream_parts([each for each in found if isinstance(each, StreamFigures)], slots)
    return Group(*(Padding(part, (0, 0, 1, 0), expand=False) for part in parts))


def _now_table(found: Sequence[TopicStats]) -> RenderableType:
    table = new_table("topic", ">backlog", ">due now", ">late", ">in flight", ">waiting", ">dead", title="Now")
    for each in found:
        table.add_row(each.topic.name, *_sizes(each))
    return table


def _sizes(each: TopicStats | SlotStats) -> list[Text]:
    late_ms = each.lateness_ms if isinstance(each, TopicStats) else _slot_lateness_ms(each)
    return [
        Text(f"{each.backlog:,}"),
        Text(f"{each.due_now:,}"),
        Text(span(late_ms) if late_ms else "-"),
        Text(f"{each.in_flight:,}"),
        Text(f"{each.waiting:,}"),
        Text(f"{each.dead:,}", style="red" if each.dead else ""),
    ]


def _slot_lateness_ms(slot: SlotStats) -> int:
    return 0 if slot.oldest_due_ms is None else max(0, slot.now_ms - slot.oldest_due_ms)


def _totals_table(found: Sequence[TopicStats]) -> RenderableType:
    table = new_table("topic", *(f">{name}" for name in _TOTALS), title="Since the topic began")
    for each in found:
        table.add_row(each.topic.name, *(f"{each.total(name):,}" for name in _TOTALS))
    return table


def _remarks(found: Sequence[TopicStats]) -> Iterable[Text]:
    for each in found:
        rare = [f"{each.total(name):,} {name}" for name in _RARE if each.total(name)]
        if rare:
            yield Text(f"{each.topic.name}: also {', '.join(rare)}", style="dim")
        if paused := [slot.slot for slot in each.slots if slot.paused]:
            yield Text(f"{each.topic.name}: {len(paused):,} of {len(each.slots):,} slots are paused", style="yellow")
        if each.unaccounted:
            yield Text(f"{each.topic.name}: {each.unaccounted:,} messages unaccounted for", style=_RED)


def _slot_table(found: TopicStats) -> RenderableType:
    table = new_table(
        ">slot", ">backlog", ">due now", ">late", ">in flight", ">waiting", ">dead", ">acked", title=found.topic.name
    )
    used = [slot for slot in found.slots if _was_used(slot)]
    for slot in used:
        style = _RED if slot.unaccounted else "yellow" if slot.paused else None
        table.add_row(str(slot.slot), *_sizes(slot), f"{slot.totals.get('acked', 0):,}", style=style)
    parts: list[RenderableType] = [table]
    if unused := len(found.slots) - len(used):
        parts.append(Text(f"{unused:,} of {len(found.slots):,} slots were never used", style="dim"))
    parts += [
        Text(f"slot {slot.slot}: {slot.unaccounted:,} messages unaccounted for", style=_RED)
        for slot in used
        if slot.unaccounted
    ]
    return Group(*parts)


def _was_used(slot: SlotStats) -> bool:
    return any(slot.totals.values()) or bool(slot.backlog + slot.in_flight + slot.waiting + slot.dead)


def _as_json(found: Figures, slots: bool) -> dict[str, Any]:
    if isinstance(found, StreamFigures):
        return figures_as_json(found, slots)
    names = (*_TOTALS, *_RARE)
    document: dict[str, Any] = {
        "topic": found.topic.name,
        "type": found.topic.type.value,
        "slots": found.topic.slots,
        **_sizes_as_json(found, found.lateness_ms),
        "totals": {name: found.total(name) for name in names},
    }
    if slots:
        document["per_slot"] = [
            {
                "slot": slot.slot,
                **_sizes_as_json(slot, _slot_lateness_ms(slot)),
                "next_due_ms": slot.next_due_ms,
                "epoch": slot.epoch,
                "paused": slot.paused,
                "totals": {name: slot.totals.get(name, 0) for name in names},
            }
            for slot in found.slots
        ]
    return document


def _sizes_as_json(each: TopicStats | SlotStats, late_ms: int) -> dict[str, Any]:
    return {
        "backlog": each.backlog,
        "due_now": each.due_now,
        "oldest_due_ms": each.oldest_due_ms,
        "late_ms": late_ms,
        "in_flight": each.in_flight,
        "waiting": each.waiting,
        "dead": each.dead,
        "unaccounted": each.unaccounted,
    }
