"""`rmq spark archive-stream`: moves old entries of a stream topic from Redis to Parquet files, by day."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from rmq.cli.commands.spark.session import LOCAL, Master, needs_spark, spark_running
from rmq.cli.console import Session
from rmq.cli.options import duration
from rmq.errors import InvalidValueError
from rmq.spi import counted, shown


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
