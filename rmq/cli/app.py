"""The command `rmq`: its commands and global options."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from rmq import __version__
from rmq.cli.commands import (
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
from rmq.cli.commands.cluster import cluster_app
from rmq.cli.commands.spark.app import spark_app
from rmq.cli.console import GlobalOptions, Json, Session, Url, Verbose, command

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


def _register(group: typer.Typer, *functions: Callable[..., None], **named: Callable[..., None]) -> None:
    """Register commands: under the functions' names, with dashes, or under the names given."""
    for name, function in [*((each.__name__.replace("_", "-"), each) for each in functions), *named.items()]:
        command(group, name)(function)


_register(app, send.send, consume.consume, stats.stats, messages.peek, messages.cancel, messages.reschedule)
_register(app, steer.reprioritise, steer.promote, find.find, find.search, steer.pause, steer.resume, steer.purge)
_register(app, steer.audit, steer.workers, worker.worker, metrics.metrics, adopt.adopt, dashboard.dashboard, demo)
_register(app, bench.bench)
_register(dead_app, list=dead.list_dead, redrive=dead.redrive, purge=dead.purge)
_register(stream_app, streams.groups, streams.add_group, streams.remove_group, streams.consumers)
_register(stream_app, streams.remove_consumer, streams.pending, range=entries.show_range)
_register(stream_app, entries.tail, entries.delete, entries.trim)
command(topics_app, None)(topics.list_topics)
_register(topics_app, list=topics.list_topics, show=topics.show_topic, change=topics.change_topic)
app.add_typer(dead_app, name="dead")
app.add_typer(stream_app, name="stream")
app.add_typer(cluster_app, name="cluster")
app.add_typer(spark_app, name="spark")
app.add_typer(topics_app, name="topics")


def main() -> None:
    """Run the command line and end the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8
    app(prog_name="rmq")
