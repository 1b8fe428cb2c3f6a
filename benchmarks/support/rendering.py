"""Numbers as people read them, Markdown tables, and the plots' common look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

Column = tuple[str, str | Callable[[Any], Any]]
"""A heading, and what stands below it for a row: a format of the row's figures, or what a function makes of the row."""

TEXTS = Path(__file__).parents[1] / "texts"
COLOURS = ("#1f5f99", "#d9822b", "#3a8f5c", "#a03c5f", "#6b5ca5", "#777777")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table; columns after the first hold numbers."""
    lines = ["| " + " | ".join(columns) + " |", "|---|" + "---:|" * (len(columns) - 1)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines)


class _Figures(Formatter):
    """Formats figures; none is a dash, and `×` marks a ratio."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            return "–"
        return ratio(value) if format_spec == "×" else format(value, format_spec)


_figures = _Figures()


def shown(row: Mapping[str, Any], form: str | Callable[[Any], Any]) -> str:
    """Return a cell: `{send_us:,.2f}`, `{floor[server_us]:×}`."""
    return _figures.vformat(form, (), row) if isinstance(form, str) else str(form(row))


def listed(rows: Iterable[Mapping[str, Any]], *columns: Column) -> str:
    """Return a Markdown table with a line for each row."""
    return table([head for head, _ in columns], [[shown(row, form) for _, form in columns] for row in rows])


def text(name: str, document: Mapping[str, Any], **more: Any) -> str:
    """Return what benchmarks/texts says around a result's tables, with the document's figures in it, and more."""
    paragraphs = (TEXTS / f"{name}.md").read_text("utf-8").strip().split("\n\n")
    return _figures.vformat("\n\n".join(each.replace("\n", " ") for each in paragraphs), (), {**document, **more})


def number(value: float | None, digits: int = 0) -> str:
    """Return a number with thousands set apart; a dash for none."""
    return "–" if value is None else f"{value:,.{digits}f}"


def ratio(value: float | None) -> str:
    """Return a ratio as `1.15 ×`."""
    return "–" if value is None else f"{value:.2f} ×"


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars side by side in a picture.

    Attributes:
        unit: What the bars show.
        name: A row's name, as a format of its figures.
        series: Label -> the figure of a row, by its name or by a function.
        rows: Which part of a document has the rows.
        where: Which of them are drawn.
        each: What a bar of height 1 stands for.
        digits: Digits behind the point.
        log: Whether the scale is a logarithmic one.
    """

    unit: str
    name: str
    series: Mapping[str, str | Callable[[Any], float]]
    rows: str = "rows"
    where: Callable[[Any], bool] = lambda row: True
    each: float = 1.0
    digits: int = 1
    log: bool = False


def picture(title: str, *panels: Panel, height: float = 4.2) -> Callable[[Mapping[str, Any], Path], None]:
    """Return what draws a document."""

    def draw(document: Mapping[str, Any], path: Path) -> None:
        made, axes = figure(len(panels), title, height=height)
        for axis, panel in zip(axes, panels, strict=True):
            rows = [row for row in document.get(panel.rows, ()) if panel.where(row)]
            heights = {
                label: [(row[key] if isinstance(key, str) else key(row)) / panel.each for row in rows]
                for label, key in panel.series.items()
            }
            bars(axis, [shown(row, panel.name) for row in rows], heights, panel.unit, panel.digits)
            if panel.log:
                axis.set_yscale("log")
        made.savefig(path, dpi=110, metadata={"Software": None})

    return draw


def figure(panels: int, title: str, *, height: float) -> tuple[Any, list[Any]]:
    """Return a figure with so many panels side by side."""
    from matplotlib.figure import Figure

    made: Any = Figure(figsize=(5.6 * panels, height), layout="constrained")
    made.suptitle(title, fontsize=12)
    axes = list(made.subplots(1, panels, squeeze=False)[0])
    for axis in axes:
        axis.grid(axis="y", color="#dddddd", linewidth=0.7)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return made, axes


def bars(axis: Any, labels: Sequence[str], series: Mapping[str, Sequence[float]], unit: str, digits: int = 1) -> None:
    """Draw grouped bars with their values on top, upright where there are many."""
    turned = 90 if len(labels) * len(series) > 16 else 0
    width = 0.8 / len(series)
    for index, (name, values) in enumerate(series.items()):
        places = [place - 0.4 + width * (index + 0.5) for place in range(len(labels))]
        drawn = axis.bar(places, values, width * 0.94, label=name, color=COLOURS[index % len(COLOURS)])
        shown = [f"{value:,.{digits}f}" for value in values]
        axis.bar_label(drawn, labels=shown, fontsize=7, padding=2, rotation=turned)
    axis.set_xticks(range(len(labels)), labels, fontsize=8 if len(labels) * len(series) < 12 else 6.5)
    axis.set_ylabel(unit)
    axis.margins(y=0.22 if turned else 0.14)
    if len(series) > 1:
        axis.legend(fontsize=8, frameon=False)
