"""The command `rmq`: its commands and global options."""

from __future__ import annotations

import io
import sys
from typing import Annotated, Any

import typer

from rmq import __version__
from rmq.cli import (
    adopt,
    bench,
    consume,
    dashboard,
    dead,
    entries,
    find,
    messages,
    metrics,
    send,
    stats,
    steer,
    streams,
    topics,
    worker,
)
from rmq.cli.cluster import cluster_app
from rmq.cli.session import GlobalOptions, Json, Session, Url, Verbose, command
from rmq.cli.spark import spark_app

_EPILOG = "Exit codes: 0 done, 1 it did not work, 2 wrong usage or input, 130 ended by Ctrl-C."
_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
_GROUP: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,  # they would show the values of variables
    "context_settings": _SETTINGS,
}

app = typer.Typer(
    help="RMQ: a message queue on Redis that merges duplicates, orders by priority and delivers at a time.",
    epilog=_EPILOG,
    no_args_is_help=True,
    **_GROUP,
)
dead_app = typer.Typer(help="List, redrive and purge dead messages.", no_args_is_help=True, **_GROUP)
stream_app = typer.Typer(
    help="Stream topics: groups, consumers, and entries without a group.", no_args_is_help=True, **_GROUP
)
topics_app = typer.Typer(help="List (by default), show and change topics.", **_GROUP)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rmq {__version__}")
        raise typer.Exit


@app.callback()
def take_global_options(
    ctx: typer.Context,
    url: Url = None,
    json: Json = False,
    verbose: Verbose = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Note the options that stand before the command."""
    del version
    ctx.obj = GlobalOptions(url, json, verbose)


def demo(
    session: Session,
    seconds: Annotated[float, typer.Option(min=1, help="How long the demo's day lasts.")] = 20.0,
) -> None:
    """Run the price-picture job on real orders, with a live table and the accounts checked."""
    from rmq.demo import run  # loaded only here: it brings its data along

    code = run(url=session.options.url, seconds=seconds, json_output=session.json, console=session.out)
    if code:
        raise typer.Exit(code)


command(app, "send")(send.send)
command(app, "consume")(consume.consume)
command(app, "stats")(stats.stats)
command(app, "peek")(messages.peek)
app.add_typer(dead_app, name="dead")
command(dead_app, "list")(dead.list_dead)
command(dead_app, "redrive")(dead.redrive)
command(dead_app, "purge")(dead.purge)
command(app, "cancel")(messages.cancel)
command(app, "reschedule")(messages.reschedule)
command(app, "reprioritise")(steer.reprioritise)
command(app, "promote")(steer.promote)
command(app, "find")(find.find)
command(app, "search")(find.search)
command(app, "pause")(steer.pause)
command(app, "resume")(steer.resume)
command(app, "purge")(steer.purge)
command(app, "audit")(steer.audit)
command(app, "workers")(steer.workers)
app.add_typer(stream_app, name="stream")
command(stream_app, "groups")(streams.groups)
command(stream_app, "add-group")(streams.add_group)
command(stream_app, "remove-group")(streams.remove_group)
command(stream_app, "consumers")(streams.consumers)
command(stream_app, "remove-consumer")(streams.remove_consumer)
command(stream_app, "pending")(streams.pending)
command(stream_app, "range")(entries.show_range)
command(stream_app, "tail")(entries.tail)
command(stream_app, "delete")(entries.delete)
command(stream_app, "trim")(entries.trim)
app.add_typer(cluster_app, name="cluster")
app.add_typer(spark_app, name="spark")
app.add_typer(topics_app, name="topics")
command(topics_app, None)(topics.list_topics)
command(topics_app, "list")(topics.list_topics)
command(topics_app, "show")(topics.show_topic)
command(topics_app, "change")(topics.change_topic)
command(app, "worker")(worker.worker)
command(app, "metrics")(metrics.metrics)
command(app, "adopt")(adopt.adopt)
command(app, "dashboard")(dashboard.dashboard)
command(app, "demo")(demo)
command(app, "bench")(bench.bench)


def main() -> None:
    """Run the command line and end the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8
    app(prog_name="rmq")
