"""Numbers as people read them, Markdown tables, and the plots' common look."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

COLOURS = ("#1f5f99", "#d9822b", "#3a8f5c", "#a03c5f", "#6b5ca5", "#777777")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table; columns after the first hold numbers."""
    lines = ["| " + " | ".join(columns) + " |", "|---|" + "---:|" * (len(columns) - 1)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines)


def number(value: float | None, digits: int = 0) -> str:
    """Return a number with thousands set apart; a dash for none."""
    return "–" if value is None else f"{value:,.{digits}f}"


def ratio(value: float | None) -> str:
    """Return a ratio as `1.15 ×`."""
    return "–" if value is None else f"{value:.2f} ×"


def figure(panels: int, title: str, *, height: float = 4.2) -> tuple[Any, list[Any]]:
    """Return a figure with so many panels side by side."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    made, axes = plt.subplots(1, panels, figsize=(5.6 * panels, height), constrained_layout=True, squeeze=False)
    made.suptitle(title, fontsize=12)
    for axis in axes[0]:
        axis.grid(axis="y", color="#dddddd", linewidth=0.7)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return made, list(axes[0])


def bars(axis: Any, labels: Sequence[str], series: Mapping[str, Sequence[float]], unit: str, digits: int = 1) -> None:
    """Draw grouped bars with their values on top, upright where there are many."""
    turned = 90 if len(labels) * len(series) > 16 else 0
    width = 0.8 / len(series)
    for index, (name, values) in enumerate(series.items()):
        places = [place - 0.4 + width * (index + 0.5) for place in range(len(labels))]
        drawn = axis.bar(places, values, width * 0.94, label=name, color=COLOURS[index % len(COLOURS)])
        shown = [f"{value:,.{digits}f}" for value in values]
        axis.bar_label(drawn, labels=shown, fontsize=7, padding=2, rotation=turned)
    axis.set_xticks(range(len(labels)), labels, fontsize=8)
    axis.set_ylabel(unit)
    axis.margins(y=0.22 if turned else 0.14)
    if len(series) > 1:
        axis.legend(fontsize=8, frameon=False)


def thousands(axis: Any) -> None:
    """Let the y axis set thousands apart."""
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def save(made: Any, path: Path) -> None:
    """Write a figure and forget it."""
    from matplotlib import pyplot as plt

    made.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(made)
