"""`rmq spark`: commands that run the jobs of `rmq.spark.jobs`.

Each command imports its job inside `needs_spark`, creates the settings, and runs the job inside `spark_running`, which
calls the job's `check`, starts Spark, and prints an error as one line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from rmq.cli.commands.messages import redriven
from rmq.cli.console import Session, cut, make_group, new_table, register
from rmq.cli.options import PER_SECOND, DueIn, NewPriority, duration, instant, parse_day, typed
from rmq.errors import InvalidValueError, RmqError
from rmq.spi import counted, shown
from rmq.views.documents import picked

if TYPE_CHECKING:
    from rmq.spark.jobs.dead_audit import DeadReport
    from rmq.spark.session import SparkSession

Master = Annotated[
    str,
    typer.Option("--master", metavar="MASTER", help="Spark master, such as local[2]. spark-submit sets it itself."),
]
LOCAL = "local[*]"


@dataclass(frozen=True, slots=True)
class Running:
    """Arguments that a command passes to its job.

    Attributes:
        spark: The Spark session.
        url: URL of Redis for `format("rmq")`, also of a temporary Redis.
        say: Called with the name of each step as it begins.
    """

    spark: SparkSession
    url: str
    say: Callable[[str], None]


@contextmanager
def spark_running(
    session: Session, name: str, master: str = LOCAL, check: Callable[[str], None] = lambda url: None
) -> Generator[Running]:
    """Context manager that connects to Redis, starts Spark, and shows progress if stderr is a terminal.

    Args:
        session: The command's session.
        name: Name of the job.
        master: Spark master, such as `local[2]`.
        check: Called with the URL of Redis before Spark starts, which takes seconds; raises for invalid settings.

    Raises:
        RmqError: The extra `spark-local` or Java is missing, Redis does not answer, or the job failed.
    """
    with needs_spark():
        from rmq.spark.jobs import plain_errors
        from rmq.spark.session import open_session, watch_tasks
    with session.client() as client, plain_errors():
        client.topics()  # so that a Redis that does not answer fails here, and not in Spark's tasks
        check(client.url)
        session.note("starting Spark ...")
        with open_session(f"rmq {name}", master=master, quiet=not session.options.verbose) as spark:
            if not session.err.is_terminal:
                yield Running(spark, client.url, session.note)
                return
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[tasks]}"))
            with Progress(*columns, TimeElapsedColumn(), console=session.err, transient=True) as bar:
                task = bar.add_task("", total=None, tasks="")

                def say(step: str) -> None:
                    bar.reset(task, total=None, description=shown(step, 60), tasks="")

                def show(done: int, total: int) -> None:
                    bar.update(task, completed=done, total=total, tasks=f"{done}/{total} tasks")

                with watch_tasks(spark, show):
                    yield Running(spark, client.url, say)


@contextmanager
def needs_spark() -> Generator[None]:
    """Context manager around imports that need pyspark; raises `RmqError` if the extra is not installed."""
    try:
        yield
    except ImportError as error:  # the error names what is missing
        raise RmqError(str(error)) from None


def archive_stream(
    session: Session,
    topic: Annotated[str, typer.Argument()],
    out: Annotated[str, typer.Option(metavar="FOLDER")],
    older_than: Annotated[int, typer.Option(metavar="DURATION", parser=duration)],
    group: Annotated[str, typer.Option(metavar="NAME")] = "archive",
    batch: Annotated[int, typer.Option(metavar="N")] = 100_000,
    trim_after: Annotated[int | None, typer.Option(metavar="DURATION", parser=duration)] = None,
    no_trim: Annotated[bool, typer.Option("--no-trim")] = False,
    accept_loss: Annotated[bool, typer.Option("--accept-loss")] = False,
    master: Master = LOCAL,
) -> None:
    """Copy entries older than an age to Parquet files by day, and trim archived entries. Run it regularly.

    Options:
        topic: Name of the stream topic.
        out: Folder of the archive, for this topic only.
        older_than: Archive entries older than this, such as 30d.
        group: Group whose position is the end of the archive.
        batch: Maximum number of entries in a batch.
        trim_after: Keep entries in the topic for this long after they are archived.  [default: 0s]
        no_trim: Do not trim the topic; leave that to its retention.
        accept_loss: Continue if entries were deleted before they were archived.
    """
    if no_trim and trim_after is not None:
        raise InvalidValueError("--trim-after and --no-trim cannot be combined")
    with needs_spark():
        from rmq.spark.jobs.archive_stream import ArchiveSettings, check, run
    settings = ArchiveSettings(topic, out, "", older_than, group, batch, trim_after or 0, not no_trim, accept_loss)
    with spark_running(session, "archive-stream", master, lambda url: check(replace(settings, url=url))) as running:
        report = run(running.spark, replace(settings, url=running.url), running.say)
    if session.json:
        session.document({**vars(report), "before": report.before.isoformat()})
        return
    session.line(
        f"{counted(report.archived, 'entry', 'entries')} of topic {shown(topic, 60)} from before "
        f"{report.before:%Y-%m-%d %H:%M:%S} UTC archived in {shown(out, 200)}"
    )
    if not no_trim:
        session.line(f"{counted(report.trimmed, 'entry', 'entries')} trimmed")
    if report.held_slots:
        session.line(
            f"archived entries of {counted(report.held_slots, 'slot')} were kept, because a group still needs them"
        )


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


spark_app = make_group("Run jobs in Spark, on this machine or with spark-submit. Requires the extra spark-local.")

register(spark_app, archive_stream, dead, replay)
