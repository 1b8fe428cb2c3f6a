"""`rmq status`: what needs attention, and the figures of the topics, those with trouble first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from rich.text import Text

from rmq.cli.console import FAILED, Columns, Session, cut, table_of
from rmq.spi import span
from rmq.views import documents
from rmq.views.findings import TopicReading, all_well, findings_of, worst_first
from rmq.views.reading import read_all

_STYLES = {"critical": "bold red", "warning": "yellow"}


def status(
    session: Session,
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC")] = None,
) -> None:
    """Show what is stuck, failing or nearly full, the worst first, each with a command that shows more.

    Below, the topics with their due messages and the waiting time of the oldest, those with trouble first. Rates are
    those of the last minute; "-" if no process has recorded it. Exit code 1: something is critical.

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
            session.out.print(table_of(_COLUMNS, rows))
    if any(each.severity.value == "critical" for each in findings):
        raise typer.Exit(FAILED)


def _figure(name: str) -> Callable[[TopicReading], str]:
    return lambda each: "?" if each.trouble else f"{getattr(each.figures, name):,}"


def _rate(name: str) -> Callable[[TopicReading], str]:
    return lambda each: f"{each.rates[name]:,.1f}" if each.rates else "-"


def _oldest(each: TopicReading) -> Text | str:
    if each.oldest_ms is None:
        return "?"
    return span(each.oldest_ms) if each.oldest_ms else "-"


_COLUMNS: Columns[TopicReading] = {
    "~topic": lambda each: cut(each.topic.name),
    ">due": _figure("due_now"),
    ">oldest": _oldest,
    ">in flight": _figure("in_flight"),
    ">waiting": _figure("waiting"),
    ">dead": _figure("dead"),
    ">sent/s": _rate("accepted"),
    ">done/s": _rate("acked"),
}
