"""The jobs of `rmq spark`, one module each: functions of a session and settings, which other programs can call, too.

A job is `run(session, settings, say=nothing) -> Report`. Settings and report are frozen dataclasses. `say` is called
with a line of text when a step begins. A job does not depend on the command line, and does not start or stop Spark. Its
command is in `rmq/cli/commands/spark/app.py`, its program for `spark-submit` is `examples/spark_<job>.py`.
"""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str], None]
"""Called with a line of text when a step begins."""


def nothing(step: str) -> None:
    """Ignore a line: the default of `say`."""
