"""Columns of the tables that the command line and the dashboard draw alike. Pure.

A table is a dict of columns by name. A name begins with `>` if the column holds numbers, which are aligned to the
right, and with `~` if a terminal may cut its texts. The dashboard replaces a text by a link or a form where it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter, methodcaller
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from rmq import ConsumerStats, GroupSlot, GroupStats, ListenerInfo, TopicStats, TopicType
from rmq.spi import shown, span
from rmq.views.findings import TopicReading
from rmq.views.words import dashed, milliseconds

T = TypeVar("T", contravariant=True)
Tone = Literal["", "warn", "bad"]

LATE_MS = 60_000
"""Waiting time in ms from which the oldest message of a topic with due times stands out."""


def plain(name: str) -> str:
    """Return the name of a column without its prefix."""
    return name.lstrip(">~")


def number(value: int | None) -> str:
    """Return a whole number as text; `?` if it is unknown."""
    return "?" if value is None else f"{value:,}"


def wait(ms: int | None) -> str:
    """Return a waiting time; `?` if it is unknown, `-` if nothing waits."""
    return "?" if ms is None else span(ms) if ms else "-"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def share(value: float | None) -> str:
    """Return a share in percent; `-` without a whole."""
    return "-" if value is None else f"{value:.1%}"


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A column of a table.

    Attributes:
        value: Reads the value of a row, by which rows are sorted: a text or a number, `None` if it is unknown.
        show: Returns a value as text without control characters.
        about: Explains the column, for those whose names say too little.
        tone: Returns how much attention the cell of a row needs.
    """

    value: Callable[[T], Any]
    show: Callable[[Any], str] = number
    about: str = ""
    tone: Callable[[T], Tone] = lambda row: ""

    def __call__(self, row: T) -> str:
        """Return the text of a row's cell."""
        return self.show(self.value(row))

    def rank(self, row: T) -> Any:
        """Return a key that sorts texts upwards and numbers downwards."""
        value = self.value(row)
        return value if isinstance(value, str) else -(value or 0)


Columns: TypeAlias = Mapping[str, Column[T]]


def numbers(names: str) -> dict[str, Column[Any]]:
    """Return the columns of whole numbers that are attributes of the rows; `names` are separated by spaces."""
    return {f">{name.replace('_', ' ')}": Column(attrgetter(name)) for name in names.split()}


def totals(names: Iterable[str]) -> dict[str, Column[Any]]:
    """Return the columns of counters, which the method `total` of the rows returns."""
    return {f">{name}": Column(methodcaller("total", name)) for name in names}


def _dead(dead: Callable[[Any], int | None]) -> dict[str, Column[Any]]:
    return {">dead": Column(dead, about="failed permanently", tone=lambda row: "bad" if dead(row) else "")}


def _figure(name: str) -> Callable[[TopicReading], int | None]:
    return lambda each: None if each.trouble else getattr(each.figures, name)


def _oldest_tone(each: TopicReading) -> Tone:
    return "warn" if each.topic.type is not TopicType.PRIORITY and (each.oldest_ms or 0) > LATE_MS else ""


def _merged(each: TopicReading) -> float | None:
    sent = each.figures.accepted if each.stats is not None else 0
    return each.figures.merged / sent if sent else None


TOPICS: Columns[TopicReading] = {
    "~topic": Column(lambda each: each.topic.name, shown, "by name"),
    "type": Column(lambda each: dashed(each.topic.type), str, "by type"),
    ">backlog": Column(_figure("backlog"), about="messages that wait"),
    ">due": Column(_figure("due_now"), about="may be delivered now"),
    ">oldest": Column(lambda each: each.oldest_ms, wait, "waiting time of the oldest due message", _oldest_tone),
    ">in flight": Column(_figure("in_flight"), about="claimed by handlers"),
    ">waiting": Column(_figure("waiting"), about="waiting for a retry"),
    **_dead(_figure("dead")),
    ">merged": Column(_merged, share, "share of all sends that merged"),
    ">sent/s": Column(lambda each: each.rates.get("accepted"), _rate, "messages sent per second"),
    ">done/s": Column(lambda each: each.rates.get("acked"), _rate, "messages acked per second"),
}
"""Columns of topics, which `rmq status` and the overview show."""

SIZES: Columns[TopicStats] = {
    **numbers("backlog due_now"),
    ">late": Column(lambda each: each.lateness_ms if each.topic.type.timed else 0, wait),
    **numbers("in_flight waiting"),
    **_dead(attrgetter("dead")),
}
"""Columns of topics, or of single slots."""

GROUP_SIZES: Columns[GroupStats | GroupSlot] = {**numbers("lag in_flight waiting"), **_dead(attrgetter("dead"))}
"""Columns of groups, or of their slots."""

CONSUMERS: Columns[ConsumerStats] = {
    "consumer": Column(lambda each: each.name, shown),
    **numbers("pending"),
    ">idle": Column(lambda each: each.idle_ms, span),
    "state": Column(
        lambda each: "gone" if each.gone else "at work", str, tone=lambda each: "warn" if each.gone else ""
    ),
}
"""Columns of a group's consumers."""


def _handlers(each: ListenerInfo) -> str:
    """Return the number of handlers that may run, with "pauses" or "rate" if messages are held back."""
    allowed = f"{each.threads}" if each.limit is None else f"{each.limit} of {each.threads}"
    return allowed + (", pauses" if each.paused_ms else "") + (", rate" if each.throttled else "")


def _longest(each: ListenerInfo) -> str:
    """Return the running time of the oldest running handler, with "hung" if it exceeded its timeout."""
    first = next(iter(each.running), None)
    return "" if first is None else span(first.running_ms) + (", hung" if first.hung else "")


LISTENERS: Columns[ListenerInfo] = {
    ">slots": Column(lambda each: len(each.slots)),
    ">handlers": Column(_handlers, str, tone=lambda each: "bad" if each.paused_ms else ""),
    **numbers("in_flight"),
    ">p50": Column(lambda each: each.times.quantile_ms(0.5), milliseconds),
    ">p99": Column(lambda each: each.times.quantile_ms(0.99), milliseconds),
    ">handled/s": Column(lambda each: each.handled_per_s, _rate),
    ">failed/s": Column(lambda each: each.failed_per_s, _rate, tone=lambda each: "warn" if each.failed_per_s else ""),
    ">longest": Column(_longest, str),
}
"""Columns of the listeners of a worker."""
