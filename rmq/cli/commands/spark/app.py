"""`rmq spark`: commands that run the jobs of `rmq.spark.jobs`.

Each command is a function in a module of this package; its first parameter is the `Session`. It imports the job inside
`needs_spark`, creates the settings, and runs the job inside `spark_running`, which calls the job's `check`, starts
Spark, and prints an error as one line; see `replay.py`. To add a command, import its module and register it here.
"""

from __future__ import annotations

from rmq.cli.commands.spark import archive_stream, dead, replay
from rmq.cli.console import make_group, register

spark_app = make_group("Run jobs in Spark, on this machine or with spark-submit. Requires the extra spark-local.")

register(spark_app, archive_stream.archive_stream, dead.dead, replay.replay)
