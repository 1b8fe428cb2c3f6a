"""The progress of a job, polled by a thread while the job runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

_TASKS_EVERY_S = 0.5


@contextmanager
def watching(look: Callable[[], None], every_s: float) -> Generator[None]:
    """Call a function repeatedly in a separate thread while the block runs; its errors are ignored.

    Args:
        look: Reads the progress and shows it.
        every_s: Pause before each call, seconds.
    """
    stopped = threading.Event()

    def run() -> None:
        while not stopped.wait(every_s):
            with suppress(Exception):  # a job must not fail because its progress cannot be shown
                look()

    thread = threading.Thread(target=run, name="rmq-spark-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


@contextmanager
def watch_tasks(session: SparkSession, show: Callable[[int, int], None]) -> Generator[None]:
    """Show the number of finished tasks of the running stages every half second while the block runs.

    Args:
        session: The session; a remote one (Spark Connect) shows nothing.
        show: Called with the numbers of finished tasks and of all tasks, only while a stage runs.
    """
    try:
        tracker = session.sparkContext.statusTracker()
    except PySparkException:
        yield
        return

    def look() -> None:
        stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
        running = [stage for stage in stages if stage is not None]
        if running:
            show(sum(each.numCompletedTasks for each in running), sum(each.numTasks for each in running))

    with watching(look, _TASKS_EVERY_S):
        yield
