"""`rmq status` and `rmq doctor`: what needs attention in the topics, and checks of a deployment."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from rmq import __version__
from rmq.cli.console import FAILED, Session, table_of
from rmq.views import documents
from rmq.views.columns import TOPICS
from rmq.views.doctor import Check, examine
from rmq.views.findings import all_well, findings_of, worst_first
from rmq.views.reading import read_all

_STYLES = {"critical": "bold red", "failed": "bold red", "warning": "yellow", "ok": "green", "unknown": "dim"}
_SHOWN = ("~topic", ">due", ">oldest", ">in flight", ">waiting", ">dead", ">sent/s", ">done/s")


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
