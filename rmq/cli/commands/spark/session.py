"""Code shared by the commands of `rmq spark`: connections to Spark and Redis, progress, and errors."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from rmq.cli.console import Session
from rmq.errors import RmqError
from rmq.spi import shown

if TYPE_CHECKING:
    from rmq.spark.session import SparkSession

Master = Annotated[
    str,
    typer.Option("--master", metavar="MASTER", help="Spark master, such as local[2]. spark-submit sets it itself."),
]
LOCAL = "local[*]"


@dataclass(frozen=True, slots=True)
class Running:
    """Arguments that a command passes to its job.

    Attributes:
        spark: The Spark session.
        url: URL of Redis for `format("rmq")`, also of a temporary Redis.
        say: Called with the name of each step as it begins.
    """

    spark: SparkSession
    url: str
    say: Callable[[str], None]


@contextmanager
def spark_running(
    session: Session, name: str, master: str = LOCAL, check: Callable[[str], None] = lambda url: None
) -> Generator[Running]:
    """Context manager that connects to Redis, starts Spark, and shows progress if stderr is a terminal.

    Args:
        session: The command's session.
        name: Name of the job.
        master: Spark master, such as `local[2]`.
        check: Called with the URL of Redis before Spark starts, which takes seconds; raises for invalid settings.

    Raises:
        RmqError: The extra `spark-local` or Java is missing, Redis does not answer, or the job failed.
    """
    with needs_spark():
        from rmq.spark.failures import plain_errors
        from rmq.spark.session import open_session, watch_tasks
    with session.client() as client, plain_errors():
        client.topics()  # so that a Redis that does not answer fails here, and not in Spark's tasks
        check(client.url)
        session.note("starting Spark ...")
        with open_session(f"rmq {name}", master=master, quiet=not session.options.verbose) as spark:
            if not session.err.is_terminal:
                yield Running(spark, client.url, session.note)
                return
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[tasks]}"))
            with Progress(*columns, TimeElapsedColumn(), console=session.err, transient=True) as bar:
                task = bar.add_task("", total=None, tasks="")

                def say(step: str) -> None:
                    bar.reset(task, total=None, description=shown(step, 60), tasks="")

                def show(done: int, total: int) -> None:
                    bar.update(task, completed=done, total=total, tasks=f"{done}/{total} tasks")

                with watch_tasks(spark, show):
                    yield Running(spark, client.url, say)


@contextmanager
def needs_spark() -> Generator[None]:
    """Context manager around imports that need pyspark; raises `RmqError` if the extra is not installed."""
    try:
        yield
    except ImportError as error:  # the error names what is missing
        raise RmqError(str(error)) from None
