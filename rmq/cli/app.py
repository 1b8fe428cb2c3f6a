"""The command `rmq`: registers its subcommands and its global options."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from pathlib import Path
from typing import Annotated, cast

import typer
from typer.core import TyperGroup

from rmq import __version__
from rmq.cli.commands import (
    consume,
    demo,
    messages,
    schedules,
    send,
    serving,
    stats,
    steer,
    streams,
    topics,
    worker,
)
from rmq.cli.console import GlobalOptions, Json, Session, Url, Verbose, command, make_group, register, settable
from rmq.cli.settings_file import SERVICES, VARIABLE, read_settings
from rmq.errors import RmqError
from rmq.spi import URL_VARIABLE, shown

app = make_group(
    "RMQ: a message queue on Redis that merges duplicates, orders by priority, and delivers at a given time.",
    epilog="Exit codes: 0 success, 1 failure, 2 wrong usage or input, 3 topics differ, 75 a handler hung, 130 Ctrl-C.",
)
dead_app = make_group("List, redrive and purge dead messages.")
stream_app = make_group("Manage the groups, consumers and entries of stream topics.")
schedules_app = make_group("List (the default), put, remove and run recurring messages.", no_args_is_help=False)
topics_app = make_group(
    "List (the default), create, show and change topics, and compare them with those of a program.",
    no_args_is_help=False,
)


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
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            envvar=VARIABLE,
            show_envvar=False,
            help=f"Settings file.  \\[default: {VARIABLE}, else rmq.toml, or \\[tool.rmq] in pyproject.toml]",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Store the global options that are given before the command."""
    del version
    ctx.obj = options = GlobalOptions(url, json, verbose)
    commands = cast("TyperGroup", ctx.command).commands
    known = {name: settable(commands[name]) for name in SERVICES}
    try:
        settings = read_settings(config, known)
    except RmqError as error:
        raise Session(options).fail(error) from None
    ctx.default_map = dict(settings.options)
    if url is None and not {URL_VARIABLE, f"{URL_VARIABLE}_FILE"} & os.environ.keys():
        ctx.obj = replace(options, url=settings.url)


register(app, send.send, consume.consume, stats.status, stats.stats, messages.peek, messages.cancel)
register(app, messages.reschedule, messages.reprioritise, messages.promote, messages.find, messages.search)
register(app, steer.pause, steer.resume, steer.purge, steer.audit, steer.workers, worker.worker, serving.metrics)
register(app, steer.adopt, serving.dashboard, stats.doctor, demo.bench)
register(dead_app, list=messages.list_dead, redrive=messages.redrive, purge=messages.purge)
register(stream_app, streams.groups, streams.add_group, streams.remove_group, streams.consumers, streams.move_group)
register(stream_app, streams.remove_consumer, streams.pending, range=streams.show_range)
register(stream_app, streams.tail, streams.delete, streams.trim)
command(schedules_app, None, schedules.list_schedules)
register(schedules_app, schedules.put, schedules.remove, schedules.run_now, list=schedules.list_schedules)
command(topics_app, None, topics.list_topics)
register(topics_app, list=topics.list_topics, create=topics.create_topic, show=topics.show_topic)
register(topics_app, change=topics.change_topic, delete=topics.delete_topic)
register(topics_app, topics.diff, topics.apply)
app.add_typer(dead_app, name="dead")
app.add_typer(stream_app, name="stream")
app.add_typer(demo.cluster_app, name="cluster")
app.add_typer(schedules_app, name="schedules")
app.add_typer(topics_app, name="topics")


def _add_commands_of_packages() -> None:
    """Add the commands of the entry-point group `rmq.commands`: name -> a Typer group, or a function for `register`.

    `rmq demo` and `rmq spark` come this way, too. A command that cannot be loaded, or that has the name of another one,
    is left out with a warning: the others still run.
    """
    taken = {each.name for each in (*app.registered_commands, *app.registered_groups)}
    for entry in sorted(entry_points(group="rmq.commands"), key=attrgetter("name")):
        problem = "another command has this name" if entry.name in taken else _add(entry)
        taken.add(entry.name)
        if problem:
            package = shown(entry.dist.name if entry.dist else entry.value)
            typer.echo(f"rmq: left out the command {shown(entry.name)} of {package}: {shown(problem)}", err=True)


def _add(entry: EntryPoint) -> str:
    """Add the command that an entry point names, and return why this failed, if it did."""
    try:
        found = entry.load()
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=entry.name)
        else:
            register(app, **{entry.name: found})
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


_add_commands_of_packages()


def main() -> None:
    """Run the command line and end the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8
    app(prog_name="rmq")
