"""Line charts as SVG, and the slots of a topic or of a stream's group as coloured cells. Pure.

Text is HTML beside the drawing, so that it keeps its size on a phone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rmq import GroupSlot, GroupStats, TopicStats
from rmq.spi import span
from rmq.views.columns import GROUP_SIZES, SIZES, plain

WIDTH, HEIGHT = 600, 120
MOST_POINTS = 360
GAP_MS = 180_000
"""Maximum interval between two points of a line. A longer one, in which no process recorded figures, leaves a gap."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: points are (epoch ms, value) in order of time."""

    name: str
    points: Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class DrawnLine:
    """A line to draw: SVG paths in a box of `WIDTH` x `HEIGHT`, and labels of its values."""

    name: str
    path: str
    area: str
    now: str
    highest: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart to draw.

    Attributes:
        top: Label of its upper edge; the lower one is 0.
        middle: Label of the line between them.
        data: The lines as JSON, for the script that shows single values.
        summary: A description for screen readers.
    """

    id: str
    title: str
    lines: tuple[DrawnLine, ...]
    top: str
    middle: str
    first_ms: int
    last_ms: int
    data: str
    summary: str
    empty: bool


def draw(
    id: str, title: str, lines: Sequence[Line], first_ms: int, last_ms: int, label: Callable[[float], str]
) -> Chart:
    """Return a chart of one to three lines. `id` must be unique on the page; `label` formats a value."""
    thinned = [Line(line.name, _thinned([p for p in line.points if p[0] >= first_ms])) for line in lines]
    values = [value for line in thinned for _, value in line.points]
    top = nice_top(max(values, default=0))
    drawn: list[DrawnLine] = []
    shapes: list[dict[str, object]] = []
    for line in thinned:
        placed = _placed(line, first_ms, last_ms, top)
        shapes.append({"name": line.name, "points": [[time, x, y, label(value)] for time, value, x, y in placed]})
        path, area = _paths(placed, max(GAP_MS, 3 * (last_ms - first_ms) // MOST_POINTS))
        now = label(line.points[-1][1]) if line.points else "none"
        highest = label(max(value for _, value in line.points)) if line.points else "none"
        drawn.append(DrawnLine(line.name, path, area, now, highest))
    data = json.dumps(shapes, separators=(",", ":"))
    words = "; ".join(f"{each.name}: now {each.now}, highest {each.highest}" for each in drawn)
    summary = f"{title} over the last {span(last_ms - first_ms)}. {words}" if values else f"{title}: no data yet"
    return Chart(id, title, tuple(drawn), label(top), label(top / 2), first_ms, last_ms, data, summary, not values)


def nice_top(highest: float) -> float:
    """Return a round number of at least 1 and at least `highest`."""
    if highest <= 1:
        return 1.0
    size = 10 ** math.floor(math.log10(highest))
    return next(step * size for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * size >= highest)


def short(value: float) -> str:
    """Return a number in short form: `17`, `4,210`, `52.3k`, `1.25M`."""
    if value < 10 and value != int(value):
        return f"{value:.1f}"
    if value < 10_000:
        return f"{value:,.0f}"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:,.0f}"


def _thinned(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Reduce points to about `MOST_POINTS`, keeping the highest of each group, so that peaks stay visible."""
    size = -(-len(points) // MOST_POINTS)
    if size <= 1:
        return list(points)
    return [max(points[first : first + size], key=lambda point: point[1]) for first in range(0, len(points), size)]


def _placed(line: Line, first_ms: int, last_ms: int, top: float) -> list[tuple[int, float, float, float]]:
    length = max(1, last_ms - first_ms)
    return [
        (time, value, round((time - first_ms) / length * WIDTH, 1), round(HEIGHT - value / top * (HEIGHT - 4) - 1, 1))
        for time, value in line.points
    ]


def _paths(placed: Sequence[tuple[int, float, float, float]], gap_ms: int) -> tuple[str, str]:
    """Return a line and the area below it as SVG paths, broken at gaps."""
    path: list[str] = []
    area: list[str] = []
    before: tuple[int, float] | None = None
    for time, _, x, y in placed:
        joined = before is not None and time - before[0] <= gap_ms
        if not joined and before is not None:
            area.append(f"L{before[1]} {HEIGHT}Z")
        path.append(f"{'L' if joined else 'M'}{x} {y}")
        area.append(f"L{x} {y}" if joined else f"M{x} {HEIGHT}L{x} {y}")
        before = time, x
    if before is not None:
        area.append(f"L{before[1]} {HEIGHT}Z")
    return "".join(path), "".join(area)


Heat = list[tuple[int, str, str]]
"""Per slot: number, CSS class of its colour, and tooltip."""

METRICS = {plain(name): column for name, column in SIZES.items()}
"""Metric of the colours of a topic's slots -> its column."""

GROUP_METRICS = {plain(name): column for name, column in GROUP_SIZES.items()}
"""Metric of the colours of a group's slots -> its column."""

HEAT_STEPS = 7
OWNER_COLOURS = 12


def by_slot(stats: TopicStats | GroupStats) -> list[TopicStats] | list[GroupSlot]:
    """Return the figures of each slot of a topic or group."""
    if isinstance(stats, GroupStats):
        return list(stats.slots)
    return [TopicStats(stats.topic, (slot,)) for slot in stats.slots]


def by_metric(stats: TopicStats | GroupStats, metric: str) -> list[Any]:
    """Return the slots as `by_slot` does, but the highest metric first; by number if it is `owner`."""
    return sorted(by_slot(stats), key=lambda row: -_value(row, metric))


def heat(stats: TopicStats | GroupStats, metric: str, owners: Mapping[int, str], names: Sequence[str]) -> Heat:
    """Return the slots of a topic or group in colours of a metric or of their owners.

    Args:
        stats: The figures.
        metric: One of `METRICS`, for a group of `GROUP_METRICS`, or `owner`.
        owners: Slot -> name of its owner.
        names: All owners; the position of a name determines its colour.
    """
    rows = [(slot, _value(each, metric)) for slot, each in zip(stats.slots, by_slot(stats), strict=True)]
    highest = max((value for _, value in rows), default=0)
    cells: Heat = []
    for slot, value in rows:
        owner = owners.get(slot.slot)
        if metric == "owner":
            colour = "none" if owner is None else f"owner{names.index(owner) % OWNER_COLOURS}"
            said = owner or "no owner"
        else:
            level = 0 if not value else 1 + min(HEAT_STEPS - 1, int(value / highest * (HEAT_STEPS - 0.001)))
            label = "ms late" if metric == "late" else metric
            colour, said = f"heat{level}", f"{value:,} {label}" + (f", {owner}" if owner else "")
        if slot.paused:
            colour, said = f"{colour} paused", f"{said}, paused"
        cells.append((slot.slot, colour, f"slot {slot.slot}: {said}"))
    return cells


def _value(figures: TopicStats | GroupSlot, metric: str) -> int:
    """Return a metric of a slot; 0 if it is unknown, or for the metric `owner`, which is no number."""
    columns: Any = GROUP_METRICS if isinstance(figures, GroupSlot) else METRICS
    return 0 if metric == "owner" else columns[metric].value(figures) or 0
