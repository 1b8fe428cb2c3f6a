"""The jobs of `rmq spark`: a module each, as plain functions over a session and frames, for programs of your own, too.

A job is `run(session, settings, say=nothing) -> Report`. Its settings and its report are frozen dataclasses. `say` gets
a line when a step begins. A job does not know the command line, and does not start or stop Spark. Its command is
`rmq/cli/commands/spark/<job>.py`, its program for `spark-submit` is `examples/spark_<job>.py`.
"""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str], None]
"""Gets a line when a step begins."""


def nothing(step: str) -> None:
    """Print nothing: the default of `say`."""
