"""`rmq spark`: the jobs of `rmq.spark.jobs` as commands.

A command lives in a module of its own, `rmq/cli/spark_<name>.py`: a function whose first parameter is the `Session`,
as for all commands. Its body imports the job inside `needs_spark`, checks the settings, and runs the job inside
`spark_running`, which starts Spark and makes one line of its errors: `spark_prices.py` shows it. To add one, import its
module here and add a line at the end.
"""

from __future__ import annotations

import typer

from rmq.cli import spark_audience, spark_dead, spark_demo, spark_prices, spark_replay
from rmq.cli.session import command

spark_app = typer.Typer(
    help="Jobs that run in Spark, on this machine or under spark-submit. Needs the extra spark-local.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@spark_app.callback()
def _group() -> None: ...  # pyright: ignore[reportUnusedFunction] - makes a group of one command, too


command(spark_app, "audience")(spark_audience.audience)
command(spark_app, "dead")(spark_dead.dead)
command(spark_app, "demo")(spark_demo.demo)
command(spark_app, "prices")(spark_prices.prices)
command(spark_app, "replay")(spark_replay.replay)
