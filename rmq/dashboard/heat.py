"""The slots of a topic, or of a stream's group, as coloured cells and as table rows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rmq import GroupSlot, GroupStats, SlotStats, StreamStats, TopicStats
from rmq.spi import id_key

METRICS = {
    "backlog": ("backlog", "backlog"),
    "due": ("due_now", "due now"),
    "late": ("lateness_ms", "lateness"),
    "flight": ("in_flight", "in flight"),
    "waiting": ("waiting", "waiting"),
    "dead": ("dead", "dead"),
}
"""Metric of the colours -> its attribute of `TopicStats`, and its label."""

GROUP_METRICS = {
    "lag": ("lag", "lag"),
    "flight": ("in_flight", "in flight"),
    "waiting": ("waiting", "waiting"),
    "dead": ("dead", "dead"),
}
"""Metric of a group's colours -> its attribute of `GroupSlot`, and its label."""
HEAT_STEPS = 7
OWNER_COLOURS = 12

Heat = list[tuple[int, str, str]]
"""Per slot: number, CSS class of its colour, and tooltip."""


def heat(stats: TopicStats, metric: str, owners: Mapping[int, str], names: Sequence[str]) -> Heat:
    """Return the slots of a topic as coloured cells.

    Args:
        stats: The topic's figures.
        metric: One of `METRICS`, or `owner`.
        owners: Slot -> name of its owner.
        names: All owners; the position of a name determines its colour.
    """
    attribute, label = METRICS.get(metric, ("", ""))
    values = [getattr(TopicStats(stats.topic, (slot,)), attribute) if attribute else 0 for slot in stats.slots]
    words = [f"{value:,} {'ms late' if metric == 'late' else label}" for value in values] if attribute else []
    return _coloured(stats.slots, values, words, owners, names)


def heat_of_group(group: GroupStats, metric: str, owners: Mapping[int, str], names: Sequence[str]) -> Heat:
    """Return the slots of a group as coloured cells. `metric` is one of `GROUP_METRICS`, or `owner`."""
    attribute, label = GROUP_METRICS.get(metric, ("", ""))
    values = [(getattr(slot, attribute) or 0) if attribute else 0 for slot in group.slots]
    return _coloured(
        group.slots, values, [f"{value:,} {label}" for value in values] if attribute else [], owners, names
    )


def by_metric(stats: TopicStats, metric: str) -> list[tuple[SlotStats, int]]:
    """Return a topic's slots with their lateness in ms, highest metric first; by number if it is `owner`."""
    rows = [(slot, TopicStats(stats.topic, (slot,))) for slot in stats.slots]
    if metric in METRICS:
        rows.sort(key=lambda row: -getattr(row[1], METRICS[metric][0]))
    return [(slot, alone.lateness_ms) for slot, alone in rows]


def by_group_metric(group: GroupStats, stream: StreamStats, metric: str) -> list[tuple[GroupSlot, int, int]]:
    """Return the slots of a group, highest metric first: (slot, time of its oldest unacked entry or 0, Redis' time).

    Times are in epoch ms.
    """
    now_ms = {slot.slot: slot.now_ms for slot in stream.slots}
    slots = list(group.slots)
    if metric in GROUP_METRICS:
        slots.sort(key=lambda slot: -(getattr(slot, GROUP_METRICS[metric][0]) or 0))
    return [(slot, id_key(slot.oldest_id)[0] if slot.oldest_id else 0, now_ms.get(slot.slot, 0)) for slot in slots]


def _coloured(
    slots: Sequence[SlotStats] | Sequence[GroupSlot],
    values: Sequence[int],
    words: Sequence[str],
    owners: Mapping[int, str],
    names: Sequence[str],
) -> Heat:
    """Return the slots in colours of their values or, without `words`, of their owners."""
    highest = max(values, default=0)
    cells: Heat = []
    for index, slot in enumerate(slots):
        owner = owners.get(slot.slot)
        if not words:
            colour = "none" if owner is None else f"owner{names.index(owner) % OWNER_COLOURS}"
            said = owner or "no owner"
        else:
            value = values[index]
            level = 0 if not value else 1 + min(HEAT_STEPS - 1, int(value / highest * (HEAT_STEPS - 0.001)))
            colour, said = f"heat{level}", f"{words[index]}, {owner}" if owner else words[index]
        if slot.paused:
            colour, said = f"{colour} paused", f"{said}, paused"
        cells.append((slot.slot, colour, f"slot {slot.slot}: {said}"))
    return cells
