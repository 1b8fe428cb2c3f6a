"""Files of the audit of dead letters, in a local folder: three tables and a chart of each."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import astuple, fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from rmq.errors import InvalidValueError, RmqError
from rmq.spark.arrow import pa, parquet
from rmq.spark.jobs.dead_audit import DeadReport, HourCount, Reason, SlotCount
from rmq.spi import shown

FORMATS = ("csv", "parquet")

MOST_SERIES = 6
"""Maximum number of error types with a colour of their own; the others share grey."""

MOST_BARS = 15
MOST_SLOTS = 256
"""Maximum number of bars for slots; with more slots, a bar is the sum of several."""

_OTHERS = "all others"
_UNKNOWN = "(unknown)"
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")  # apart for colour-blind readers, too
_GREY = "#bbbbbb"

Row = TypeVar("Row", Reason, HourCount, SlotCount)
Key = TypeVar("Key", bound=Hashable)


def check_files(form: str, folder: str) -> None:
    """Check that the files can be written, before the audit starts.

    Raises:
        InvalidValueError: The format is unknown, or the folder cannot be created.
        RmqError: matplotlib is missing.
    """
    if form not in FORMATS:
        raise InvalidValueError(f"format is {form!r}; it must be one of {', '.join(FORMATS)}")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidValueError(f"folder {folder!r} cannot be created: {error.strerror}") from None
    _figure()


def write_files(report: DeadReport, folder: str, form: str = "csv") -> tuple[Path, ...]:
    """Write the tables `by_reason`, `by_hour` and `by_slot` and a PNG chart of each, overwriting earlier files.

    Args:
        report: The report of the audit.
        folder: Folder for the files; created if missing.
        form: `csv` or `parquet`.

    Returns:
        The paths of the files. Without dead messages there are no charts, and those of an earlier audit are deleted.

    Raises:
        InvalidValueError: The format is unknown, or the folder cannot be created.
        RmqError: matplotlib is missing, or a file cannot be written.
    """
    check_files(form, folder)
    try:
        return _write(report, Path(folder), form)
    except OSError as error:
        raise RmqError(f"folder {folder!r} cannot be written: {error}") from None


def _write(report: DeadReport, place: Path, form: str) -> tuple[Path, ...]:
    tables = [
        _table(place / "by_reason", Reason, report.reasons, form),
        _table(place / "by_hour", HourCount, report.hours, form),
        _table(place / "by_slot", SlotCount, report.slots, form),
    ]
    pictures = [table.with_suffix(".png") for table in tables]
    if not report.chosen:
        for path in pictures:  # an earlier audit's pictures would belie the tables
            path.unlink(missing_ok=True)
        return tuple(tables)
    _draw_reasons(pictures[0], report.reasons)
    _draw_hours(pictures[1], report.hours)
    _draw_slots(pictures[2], report.slots)
    return (*tables, *pictures)


def _table(path: Path, kind: type[Row], rows: Sequence[Row], form: str) -> Path:
    names = [field.name for field in fields(kind)]
    path = path.with_suffix(f".{form}")
    if form == "parquet":
        columns: list[list[Any]] = [[getattr(row, name) for row in rows] for name in names]
        types = {"topic": pa.string(), "error_type": pa.string(), "example": pa.string(), "slot": pa.int64()}
        types |= {"dead": pa.int64(), "attempts": pa.float64()}
        time = pa.timestamp("ms", tz="UTC")
        arrays = [pa.array(column, types.get(name, time)) for name, column in zip(names, columns, strict=True)]
        parquet.write_table(pa.table(dict(zip(names, arrays, strict=True))), path)
        return path
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows([_cell(value) for value in astuple(row)] for row in rows)
    return path


def _cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return "'" + value  # an error's text must not become a formula in a spreadsheet
    return value


def _figure(height: float = 4.5) -> Any:
    """Return a matplotlib figure that needs no display."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RmqError(f"charts need matplotlib ({error}): install rmq[plots]") from None
    figure: Any = Figure(figsize=(9, height), dpi=120, layout="constrained")
    return figure


def _draw_reasons(path: Path, reasons: Iterable[Reason]) -> None:
    counts: Counter[str] = Counter()
    for row in reasons:
        counts[_name(row.error_type)] += row.dead
    shown_ones = counts.most_common(MOST_BARS)
    rest = counts.total() - sum(number for _, number in shown_ones)
    if rest:
        shown_ones.append((_OTHERS, rest))
    figure = _figure(height=1.3 + 0.32 * len(shown_ones))
    axes = figure.subplots()
    names, numbers = zip(*reversed(shown_ones), strict=True)
    bars = axes.barh(names, numbers, color=[_GREY if name == _OTHERS else _COLOURS[0] for name in names])
    axes.bar_label(bars, [f"{number:,}" for number in numbers], padding=3)
    axes.margins(x=0.12)
    _finish(figure, axes, path, f"Dead messages by reason: {counts.total():,} in total", "dead", "", "x")


def _draw_hours(path: Path, hours: Sequence[HourCount]) -> None:
    first, last = hours[0].hour, max(row.hour for row in hours)
    span_h = int((last - first).total_seconds()) // 3_600 + 1
    # at most about 200 bars: hours of a week, days of a month
    step_h = 1 if span_h <= 200 else 24
    start = first if step_h == 1 else first.replace(hour=0)

    def place(row: HourCount) -> datetime:
        steps = int((row.hour - start).total_seconds()) // (3_600 * step_h)
        return start + timedelta(hours=steps * step_h)

    figure = _figure()
    axes = figure.subplots()
    _stack(axes, hours, place, timedelta(hours=step_h * 0.9))
    axes.set_xlim(start - timedelta(hours=step_h), last + timedelta(hours=step_h))
    from matplotlib import dates

    locator: Any = dates.AutoDateLocator(minticks=3, maxticks=9)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    unit = "hour" if step_h == 1 else "day"
    _finish(figure, axes, path, f"Dead messages by {unit} of death", "UTC", "dead", "y")


def _draw_slots(path: Path, slots: Sequence[SlotCount]) -> None:
    largest = max(row.slot for row in slots)
    step = largest // MOST_SLOTS + 1
    figure = _figure()
    axes = figure.subplots()
    _stack(axes, slots, lambda row: row.slot // step * step + (step - 1) / 2, 0.9 * step)
    axes.xaxis.get_major_locator().set_params(integer=True)
    topics = sorted({row.topic for row in slots})
    of = f"topic {shown(topics[0], 60)}" if len(topics) == 1 else f"{len(topics)} topics"
    label = "slot" if step == 1 else f"slot ({step} per bar)"
    _finish(figure, axes, path, f"Dead messages by slot of {of}", label, "dead", "y")


def _stack(axes: Any, rows: Sequence[Row], place: Callable[[Row], Key], width: Any) -> None:
    """Draw bars, stacked by error type."""
    by_type: Counter[str] = Counter()
    for row in rows:
        by_type[_name(row.error_type)] += row.dead
    named = [name for name, _ in by_type.most_common(MOST_SERIES)]
    counts: dict[str, Counter[Key]] = {}
    for row in rows:
        name = _name(row.error_type)
        counts.setdefault(name if name in named else _OTHERS, Counter())[place(row)] += row.dead
    floor: Counter[Key] = Counter()
    for name, colour in zip([*named, _OTHERS], [*_COLOURS, _GREY], strict=False):
        if found := counts.get(name):
            floors = [floor[at] for at in found]
            axes.bar(list(found), list(found.values()), width, floors, label=name, color=colour)
            floor.update(found)
    if len(counts) > 1:
        axes.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _finish(figure: Any, axes: Any, path: Path, title: str, x: str, y: str, grid: str) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axes.set_title(title, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    counting: Any = axes.xaxis if grid == "x" else axes.yaxis
    counting.set_major_locator(MaxNLocator(6, integer=True))
    counting.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    figure.savefig(path)


def _name(error_type: str) -> str:
    return shown(error_type, 40).replace("$", r"\$") if error_type else _UNKNOWN
