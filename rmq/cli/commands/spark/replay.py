"""`rmq spark replay`: sends the dead messages of a day, or a day of an archive, again at a limited rate."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Annotated

import typer

from rmq.cli.commands.spark.session import LOCAL, Master, needs_spark, spark_running
from rmq.cli.console import Session
from rmq.cli.options import PER_SECOND, DueIn, NewPriority, instant, parse_day, typed
from rmq.spi import counted, shown


def replay(
    session: Session,
    topic: Annotated[str, typer.Argument()],
    day: Annotated[date, typer.Option(metavar="DAY", parser=typed(parse_day))],
    rate: Annotated[float, PER_SECOND],
    archive: Annotated[str | None, typer.Option(metavar="FOLDER")] = None,
    time_column: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    from_topic: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    priority: NewPriority = None,
    due_in: DueIn = None,
    fixed_time: Annotated[int | None, typer.Option(metavar="TIME", parser=instant)] = None,
    run_name: Annotated[str, typer.Option("--run", metavar="NAME")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run")] = False,
    master: Master = LOCAL,
) -> None:
    """Send messages again at a limited rate: those that died on a day, or those of a day of an archive.

    Options:
        topic: Name of the topic to send the messages to.
        day: Day in UTC, such as 2026-11-20.
        archive: Folder of Parquet files with archived messages.  [default: the topic's dead messages]
        time_column: Archive: column of the time.  [default: its timestamp column]
        from_topic: Archive: topic of the archived messages, if it is not TOPIC.
        priority: priority: new priority. Default: that in the archive, otherwise the lowest.
        fixed_time: Archive, fixed-time: due time of all messages.
        run_name: Archive: name of the run. A new name sends all messages again.
        dry_run: Only count the messages.
    """
    with needs_spark():
        from rmq.spark.jobs.redrive import Again
        from rmq.spark.jobs.replay import ReplaySettings, check, run
    again = Again(priority, due_in or None, rate)
    settings = ReplaySettings(topic, day, "", again, archive, time_column, from_topic, fixed_time, run_name, dry_run)
    with spark_running(session, "replay", master, lambda url: check(replace(settings, url=url))) as running:
        report = run(running.spark, replace(settings, url=running.url), running.say)
    if session.json:
        session.document({**vars(report), "sent": report.sent, "per_second": round(report.per_second, 1)})
        return
    source = "dead" if archive is None else "archive"
    session.line(f"{counted(report.found, 'message')} of {day} in the {source} of topic {shown(topic, 60)}")
    if dry_run or not report.found:
        return
    session.line(
        f"{report.sent:,} sent in {report.seconds:.1f} s, {report.per_second:,.1f}/s: {report.new:,} new, "
        f"{report.merged:,} merged with the backlog"
    )
    if report.skipped:
        why = "no longer dead" if archive is None else "sent by an earlier run; --run NAME sends them again"
        session.line(f"{report.skipped:,} skipped: {why}")
    if not report.resumable:
        session.note("the topic blocks or drops when full, or has a ttl, so another run would send all messages again")
