"""`rmq doctor`: checks a deployment, and says what to do."""

from __future__ import annotations

from dataclasses import asdict

import typer

from rmq import __version__
from rmq.cli.console import FAILED, Session
from rmq.views.doctor import Check, examine

_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red", "unknown": "dim"}


def doctor(session: Session) -> None:
    """Check a deployment: servers, clocks, definitions, rights, topics and workers. Changes nothing.

    Exit code 1: a check has failed. Warnings, and what could not be checked, do not count.
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
    if failed:
        raise typer.Exit(FAILED)
