"""What `rmq stats` shows of stream topics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from rmq.cli.session import new_table
from rmq.cli.shown import span, when
from rmq.cli.streams import consumers_table, group_as_json, group_tables
from rmq.client import RmqClient
from rmq.stream_values import ConsumerStats, GroupStats, StreamStats, id_key
from rmq.topics import Topic


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """A stream topic with its groups, as it is shown.

    Attributes:
        stats: The topic.
        groups: Its groups, or the one asked for.
        consumers: The consumers of the group asked for; `None` where none was.
    """

    stats: StreamStats
    groups: Sequence[GroupStats]
    consumers: list[ConsumerStats] | None


def read_figures(client: RmqClient, topic: Topic, group: str | None) -> StreamFigures:
    """Read a topic with all its groups, or with one group and its consumers."""
    view = client.stream(topic)
    stats = view.stats()
    if group is None:
        return StreamFigures(stats, [view.group(name) for name in stats.groups], None)
    return StreamFigures(stats, [view.group(group)], view.consumers(group))


def stream_parts(found: Sequence[StreamFigures], slots: bool) -> Iterable[RenderableType]:
    """Yield what is to be shown of stream topics."""
    if not found:
        return
    table = new_table("topic", ">length", "oldest", "newest", ">accepted", ">trimmed", ">deleted", title="Streams")
    for each in found:
        totals = (f"{each.stats.total(name):,}" for name in ("accepted", "trimmed", "deleted"))
        ends = (_sent(each.stats.first_id), _sent(each.stats.last_id))
        table.add_row(each.stats.topic.name, f"{each.stats.length:,}", *ends, *totals)
    yield table
    rows = [(each.stats.topic.name, group) for each in found for group in each.groups]
    if rows:
        yield group_tables(rows)
    for each in found:
        if each.consumers is not None:
            yield consumers_table(each.consumers, f"Consumers of group {each.groups[0].group}")
        if slots:
            yield _slot_table(each)
        yield from _remarks(each)


def figures_as_json(found: StreamFigures, slots: bool) -> dict[str, Any]:
    """Return what is known of a stream topic."""
    stats = found.stats
    document: dict[str, Any] = {
        "topic": stats.topic.name,
        "type": stats.topic.type.value,
        "slots": stats.topic.slots,
        "length": stats.length,
        "first_id": stats.first_id or None,
        "last_id": stats.last_id or None,
        "unaccounted": stats.unaccounted,
        "totals": {name: stats.total(name) for name in ("accepted", "copied", "trimmed", "deleted")},
        "groups": [group_as_json(group) for group in found.groups],
    }
    if found.consumers is not None:
        document["consumers"] = [asdict(each) for each in found.consumers]
    if slots:
        document["per_slot"] = [
            {
                "slot": slot.slot,
                "length": slot.length,
                "first_id": slot.first_id or None,
                "last_id": slot.last_id or None,
            }
            for slot in stats.slots
        ]
        document["groups_per_slot"] = [asdict(slot) for group in found.groups for slot in group.slots]
    return document


def _sent(entry_id: str) -> str:
    return when(id_key(entry_id)[0]) if entry_id else "-"


def _slot_table(found: StreamFigures) -> RenderableType:
    table = new_table(
        ">slot", ">length", "group", ">lag", ">in flight", ">waiting", ">dead", ">epoch", ">oldest open",
        title=found.stats.topic.name,
    )  # fmt: skip
    for slot in found.stats.slots:
        here = [group.slots[slot.slot] for group in found.groups]
        for each in here:
            lag = "unknown" if each.lag is None else f"{each.lag:,}"
            sizes = (f"{size:,}" for size in (each.in_flight, each.waiting, each.dead, each.epoch))
            style = "yellow" if each.paused else None
            age = span(max(0, slot.now_ms - id_key(each.oldest_id)[0])) if each.oldest_id else "-"
            table.add_row(str(slot.slot), f"{slot.length:,}", each.group, lag, *sizes, age, style=style)
        if not here:
            table.add_row(str(slot.slot), f"{slot.length:,}")
    return table


def _remarks(found: StreamFigures) -> Iterable[Text]:
    name = found.stats.topic.name
    if found.stats.unaccounted:
        yield Text(f"{name}: {found.stats.unaccounted:,} entries unaccounted for", style="bold red")
    for group in found.groups:
        if group.unaccounted:
            yield Text(f"{name}, group {group.group}: {group.unaccounted:,} entries unaccounted for", style="bold red")
        if paused := sum(slot.paused for slot in group.slots):
            yield Text(f"{name}, group {group.group}: {paused:,} slots are paused", style="yellow")
        if any(slot.last_id for slot in group.slots) is False:
            yield Text(f"{name} has no group {group.group}", style="yellow")
