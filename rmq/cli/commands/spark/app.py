"""`rmq spark`: the jobs of `rmq.spark.jobs` as commands.

A command lives in a module of its own in this package: a function whose first parameter is the `Session`. Its body
imports the job inside `needs_spark`, checks the settings, and runs the job inside `spark_running`, which starts Spark
and turns an error into one line; see `prices.py`. To add a command, import its module here and register it at the end.
"""

from __future__ import annotations

import typer

from rmq.cli.commands.spark import audience, dead, demo, prices, replay
from rmq.cli.console import command

spark_app = typer.Typer(
    help="Jobs that run in Spark, on this machine or under spark-submit. Needs the extra spark-local.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@spark_app.callback()
def _group() -> None: ...  # pyright: ignore[reportUnusedFunction] - makes a group of one command, too


command(spark_app, "audience")(audience.audience)
command(spark_app, "dead")(dead.dead)
command(spark_app, "demo")(demo.demo)
command(spark_app, "prices")(prices.prices)
command(spark_app, "replay")(replay.replay)
