"""`rmq schedules`: list, put, remove and run recurring messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from rmq import Schedule, ScheduleInfo, SchedulePut
from rmq.cli.console import FAILED, Columns, Session, cut
from rmq.cli.options import TopicName, instant, span_of
from rmq.cli.options import duration as parse_duration
from rmq.spi import shown, span
from rmq.views import documents
from rmq.views.words import from_now

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the schedule.")]
_Moment = typer.Option(metavar="TIME", parser=instant)


def list_schedules(session: Session, limit: Annotated[int, typer.Option(min=0, metavar="N")] = 200) -> None:
    """List the schedules by name: when they are due next, and when they last ran.

    Options:
        limit: Maximum number of schedules; 0 for all.
    """
    with session.client() as client:
        found = client.schedules.list()
    columns: Columns[ScheduleInfo] = {
        "~schedule": lambda info: cut(info.name),
        "~topic": lambda info: cut(info.schedule.topic_name),
        "~when": lambda info: cut(info.schedule.rule),
        ">next": _next,
        ">last": lambda info: "" if info.last_due_ms is None else from_now(info.last_due_ms, info.now_ms),
        ">late by": lambda info: "" if info.last_late_ms is None else span(info.last_late_ms),
    }
    session.rows(found, document_of, columns, "no schedules", limit)


def document_of(info: ScheduleInfo) -> dict[str, Any]:
    """Return a schedule as a JSON document."""
    document = documents.picked(info, "name due_ms late_ms last_due_ms last_sent_ms last_late_ms error")
    return {**document, **info.schedule.to_fields()}


def _next(info: ScheduleInfo) -> Text:
    if info.error:
        return Text(f"fails: {shown(info.error, 60)}", style="red")
    if info.due_ms is None:
        return Text("unknown")
    return Text(from_now(info.due_ms, info.now_ms), style="yellow" if info.late_ms > 1_000 else "")


def put(
    session: Session,
    name: Name,
    topic: TopicName,
    content: Annotated[str, typer.Argument(metavar="CONTENT")],
    cron: Annotated[str | None, typer.Option(metavar="RULE")] = None,
    every: Annotated[int | None, typer.Option(metavar="DURATION", parser=parse_duration)] = None,
    tz: Annotated[str, typer.Option(metavar="ZONE")] = "UTC",
    body: Annotated[str | None, typer.Option(metavar="TEXT")] = None,
    priority: Annotated[int | None, typer.Option(metavar="N")] = None,
    catch_up: Annotated[bool, typer.Option("--catch-up")] = False,
    start: Annotated[int | None, _Moment] = None,
    until: Annotated[int | None, _Moment] = None,
    version: Annotated[int | None, typer.Option(metavar="N")] = None,
) -> int:
    """Create or replace a schedule, which sends a message again and again.

    Exit code 1: the existing schedule has a higher version and is kept, or no due time is left before --until.
    {scheduled} in the content or the body is replaced by the due time.

    Options:
        content: Content of the messages.
        cron: Five fields: minute, hour, day, month, day of the week. Requires the extra cron.
        every: Instead of --cron: the interval, 1s or more.
        tz: Time zone of --cron and {scheduled}, such as Europe/Berlin.
        body: Body of the messages.
        priority: priority: priority of the messages.
        catch_up: After a time without a running worker, send a message for each missed due time, instead of one.
        start: Earliest due time.
        until: Latest due time.
        version: A schedule with a lower version, or without one, does not replace this one.
    """
    ends = {"start": start, "until": until}
    moments = {key: datetime.fromtimestamp(each / 1_000, UTC) for key, each in ends.items() if each is not None}
    schedule = Schedule(
        name, topic, content, cron=cron, every=span_of(every), tz=tz, body=body, priority=priority, catch_up=catch_up,
        version=version, **moments,
    )  # fmt: skip
    with session.client() as client:
        result = client.schedules.put(schedule)
        info = client.schedules.get(name)
    due = "" if info is None or info.due_ms is None else f", next {from_now(info.due_ms, info.now_ms)}"
    if result is SchedulePut.OVER:
        due = ", no due time is left before --until; nothing was stored"
    session.result({"schedule": name, "result": result.value}, f"schedule {name}: {result.value}{due}")
    return FAILED if result in (SchedulePut.OUTRANKED, SchedulePut.OVER) else 0


def remove(session: Session, name: Name) -> int:
    """Remove a schedule. Exit code 1: there is no such schedule."""
    with session.client() as client:
        return _end(session, name, client.schedules.remove(name), "removed", "removed")


def run_now(session: Session, name: Name) -> int:
    """Make a schedule due now, in addition to its times. Exit code 1: there is no such schedule."""
    with session.client() as client:
        return _end(session, name, client.schedules.run_now(name), "due", "is due now")


def _end(session: Session, name: str, done: bool, result: str, words: str) -> int:
    """Print the result, and return exit code 1 unless there is such a schedule."""
    text = f"schedule {name} {words}" if done else f"there is no schedule {name}"
    session.result({"schedule": name, "result": result if done else "absent"}, text)
    return 0 if done else FAILED
