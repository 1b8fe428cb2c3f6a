"""`rmq spark`: the jobs of `rmq.spark.jobs` as commands.

A command lives in a module of its own in this package: a function whose first parameter is the `Session`. Its body
imports the job inside `needs_spark`, makes the settings, and runs the job inside `spark_running`. That calls the job's
`check`, starts Spark, and turns an error into one line; see `prices.py`. To add a command, import its module here and
register it at the end.
"""

from __future__ import annotations

from rmq.cli.commands.spark import archive_stream, audience, dead, demo, prices, replay
from rmq.cli.console import make_group, register

spark_app = make_group("Jobs that run in Spark, on this machine or under spark-submit. Needs the extra spark-local.")

register(
    spark_app, archive_stream.archive_stream, audience.audience, dead.dead, demo.demo, prices.prices, replay.replay
)
