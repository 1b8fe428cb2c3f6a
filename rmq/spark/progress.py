"""How far a session's work is: tasks done and begun, for a bar."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

_LOOK_EVERY_S = 0.5


@contextmanager
def watch_tasks(session: SparkSession, show: Callable[[int, int], None]) -> Generator[None]:
    """Tell how many tasks of the running stages are done, every half second, by a thread of its own.

    Args:
        session: The session; nothing is told of one that is remote (Spark Connect).
        show: Gets the tasks done and the tasks in all; called only while something runs.
    """
    stopped = threading.Event()
    try:
        tracker = session.sparkContext.statusTracker()
    except PySparkException:
        yield
        return

    def look() -> None:
        while not stopped.wait(_LOOK_EVERY_S):
            with suppress(Exception):  # a bar ends no job
                stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
                running = [stage for stage in stages if stage is not None]
                if running:
                    show(sum(each.numCompletedTasks for each in running), sum(each.numTasks for each in running))

    thread = threading.Thread(target=look, name="rmq-spark-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
