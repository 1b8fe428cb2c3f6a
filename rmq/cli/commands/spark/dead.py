"""`rmq spark dead`: counts dead messages by error, hour and slot, draws charts, and redrives a selection."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from rmq.cli.commands.dead import redriven
from rmq.cli.commands.spark.session import LOCAL, Master, needs_spark, spark_running
from rmq.cli.console import Session, cut, new_table
from rmq.cli.options import PER_SECOND, DueIn, NewPriority
from rmq.errors import InvalidValueError
from rmq.spi import shown
from rmq.views.documents import picked

if TYPE_CHECKING:
    from rmq.spark.jobs.dead_audit import DeadReport

_MOST_LINES = 20
_BAR = 30


def dead(
    session: Session,
    topics: Annotated[list[str], typer.Argument()],
    where: Annotated[str | None, typer.Option(metavar="SQL")] = None,
    out: Annotated[str | None, typer.Option(metavar="FOLDER")] = None,
    form: Annotated[str, typer.Option("--format", metavar="csv|parquet")] = "csv",
    rows: Annotated[str | None, typer.Option(metavar="FOLDER")] = None,
    redrive: Annotated[bool, typer.Option("--redrive")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run")] = False,
    rate: Annotated[float | None, PER_SECOND] = None,
    priority: NewPriority = None,
    due_in: DueIn = None,
    master: Master = LOCAL,
) -> None:
    """Count the dead messages of topics by error, hour and slot, draw charts, and send selected ones again.

    Options:
        topics: Names of topics whose dead messages are read.
        where: Select messages by a SQL condition, such as "error_type = 'TimeoutError' and hour(died) = 3". Times are
            UTC. Columns: topic, slot, content, text, body, died, error_type, error_message, attempts, first_failed,
            last_failed.
        out: Folder for the tables and charts.
        form: Format of the tables in --out.
        rows: Folder for the dead messages, as Parquet.
        redrive: Send the selected messages again. Requires --where; 'true' selects all.
        dry_run: Only show the messages that --redrive would send.
    """
    if (redrive or dry_run) and where is None:
        raise InvalidValueError("--redrive and --dry-run require --where; --where true selects all dead messages")
    if not redrive and not dry_run and (rate, priority, due_in) != (None, None, None):
        raise InvalidValueError("--rate, --priority and --due-in require --redrive or --dry-run")
    with needs_spark():
        from rmq.spark.jobs import dead_audit
        from rmq.spark.jobs.dead_files import check_files, write_files
        from rmq.spark.jobs.redrive import Again
    again = Again(priority, due_in or None, rate)
    settings = dead_audit.DeadAuditSettings(tuple(topics), "", where, rows, redrive, dry_run, again)
    files: list[str] = []

    def check(url: str) -> None:
        dead_audit.check(replace(settings, url=url))
        if out is not None:
            check_files(form, out)

    def keep(report: DeadReport) -> None:
        if out is not None:
            files.extend(map(str, write_files(report, out, form)))

    with spark_running(session, "dead", master, check) as running:
        report = dead_audit.run(running.spark, replace(settings, url=running.url), running.say, keep)
    if session.json:
        session.document(_as_json(report, files, dry_run))
        return
    _show(session, report, where, dry_run)
    for file in files:
        session.line(f"wrote {shown(file, 200)}")


def _show(session: Session, report: DeadReport, where: str | None, dry_run: bool) -> None:
    chosen = "" if where is None else f", of which {report.chosen:,} meet the condition"
    session.line((f"{report.found:,} dead{chosen}", "bold"))
    if report.chosen:
        session.line("")
        _show_reasons(session, report)
        by_hour: Counter[str] = Counter()
        for hour in report.hours:
            by_hour[f"{hour.hour:%Y-%m-%d %H}:00"] += hour.dead
        _show_bars(session, "hour (UTC)", sorted(by_hour.items())[-_MOST_LINES:], len(by_hour), "last")
        by_slot: Counter[tuple[str, int]] = Counter()
        for slot in report.slots:
            by_slot[slot.topic, slot.slot] += slot.dead
        fullest = [(f"{shown(topic, 60)} {number}", dead) for (topic, number), dead in by_slot.most_common(_MOST_LINES)]
        _show_bars(session, "topic and slot", fullest, len(by_slot), "largest")
    if dry_run:
        _show_examples(session, report)
    for topic, counts in report.redriven.items():
        session.line(f"topic {shown(topic, 60)}: ", redriven(counts.new, counts.merged, counts.skipped))


def _show_reasons(session: Session, report: DeadReport) -> None:
    table = new_table("topic", "error", ">dead", ">attempts", ">first died (UTC)", ">last died (UTC)", "~last message")
    for row in report.reasons[:_MOST_LINES]:
        table.add_row(
            Text(shown(row.topic, 60)),
            Text(shown(row.error_type or "(unknown)", 60)),
            f"{row.dead:,}",
            f"{row.attempts:.1f}",
            f"{row.first_died:%m-%d %H:%M:%S}",
            f"{row.last_died:%m-%d %H:%M:%S}",
            cut(row.example),
        )
    session.out.print(table)
    _more(session, len(report.reasons), "largest")
    session.line("")


def _show_bars(session: Session, name: str, rows: list[tuple[str, int]], number: int, which: str) -> None:
    table = new_table(name, ">dead", "")
    most = max(dead for _, dead in rows)
    for label, dead in rows:
        table.add_row(Text(label), f"{dead:,}", Text("█" * max(1, round(_BAR * dead / most)), style="cyan"))
    session.out.print(table)
    _more(session, number, which)
    session.line("")


def _more(session: Session, number: int, which: str) -> None:
    if number > _MOST_LINES:
        session.note(f"only the {which} {_MOST_LINES} of {number:,} are shown; --out and --json give all")


def _show_examples(session: Session, report: DeadReport) -> None:
    if report.examples:
        table = new_table("~content", "topic", ">slot", "error", ">died (UTC)")
        for row in report.examples:
            error = shown(": ".join(filter(None, (row.error_type, row.error_message))), 80)
            cells = (Text(shown(row.topic, 60)), str(row.slot), Text(error), f"{row.died:%Y-%m-%d %H:%M:%S}")
            table.add_row(cut(row.content), *cells)
        session.out.print(table)
    first = f"; the {len(report.examples)} that died first are shown" if report.chosen > len(report.examples) else ""
    session.line(f"would be redriven: {report.chosen:,}{first}")


def _as_json(report: DeadReport, files: list[str], dry_run: bool) -> dict[str, Any]:
    would = {"would_redrive": report.chosen} if dry_run else {}
    return {
        "found": report.found,
        "chosen": report.chosen,
        **would,
        "reasons": [
            picked(row, "topic error_type dead attempts first_died last_died example") for row in report.reasons
        ],
        "hours": [picked(row, "topic hour error_type dead") for row in report.hours],
        "slots": [vars(row) for row in report.slots],
        "examples": [picked(row, "topic slot content died") for row in report.examples],
        "redriven": {
            topic: {"redriven": counts.new, "merged": counts.merged, "absent": counts.skipped}
            for topic, counts in report.redriven.items()
        },
        "files": files,
    }
