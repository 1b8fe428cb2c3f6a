"""Opens the Spark session of a job, or uses the existing one, and follows the progress of its tasks."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, cast
from weakref import WeakSet

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rmq.errors import RmqError
from rmq.spark.datasource import RmqDataSource
from rmq.spark.source.commits import CommitListener
from rmq.spi.scripts import java_home_for_spark

SETTINGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}
"""Settings of every session that `open_session` starts."""

LOCAL_SETTINGS: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # on one machine Spark's default of 200 would be mostly overhead
    "spark.sql.shuffle.partitions": "8",
}
"""Additional settings of a local session; on a cluster, the executors must reach the driver."""

_LISTENING: WeakSet[SparkSession] = WeakSet()

_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")


def register(spark: SparkSession) -> None:
    """Register `format("rmq")` with a session, classic or Spark Connect, and with this Python thread. Safe to repeat.

    In a classic session, a listener also tells the drivers of the queries when Spark has committed a batch, which is
    then acked at once instead of at the next trigger. The current value of `RMQ_URL` is the default of option `url`.
    """
    spark.dataSource.register(_source_for(os.environ.get("RMQ_URL")))
    _hear_commits(spark)
    if type(spark).getActiveSession() is None and hasattr(spark, "sparkContext"):
        # a write looks the format up in the session of its thread, and a new thread has none before such a call
        cast("Any", spark).createDataFrame([], "none int")


def _source_for(url: str | None) -> type[RmqDataSource]:
    """Return the data source with a default for option `url`, as Spark's processes have the environment of the JVM."""
    if url is None:
        return RmqDataSource

    class WithUrl(RmqDataSource):
        def __init__(self, options: Mapping[str, str]) -> None:
            super().__init__({**({} if "url" in map(str.lower, options) else {"url": url}), **options})

    return WithUrl


def _hear_commits(spark: SparkSession) -> None:
    """Listen for commits of a session's queries, except with Spark Connect, whose queries run on another machine."""
    if hasattr(spark, "sparkContext") and spark not in _LISTENING:
        spark.streams.addListener(CommitListener())
        _LISTENING.add(spark)


@contextmanager
def open_session(
    name: str, *, master: str = "local[*]", settings: Mapping[str, str] | None = None, quiet: bool = False
) -> Generator[SparkSession]:
    """Open a session with `format("rmq")` registered, for a `with` block; at its end, the session is stopped.

    An existing session of any thread is used without changes and stays open. Under `spark-submit`, or with
    `SPARK_REMOTE` set, their settings apply. Otherwise a session is started in UTC, with a Java that RMQ finds and
    tasks in this Python; it logs errors only.

    Args:
        name: The application's name.
        master: URL of the master: `local[2]` runs tasks on this machine, `spark://master:7077` on a cluster whose
            machines have this Python at the same path.
        settings: Settings of a new session; they override those of RMQ.
        quiet: If true, a new session prints nothing to stderr; if it fails to start, the error has its output.

    Raises:
        RmqError: Java was not found, or Spark does not start.
    """
    there = _session_there()
    if there is not None:
        register(there)
        yield there
        return
    # spark-submit starts the JVM before Python; a remote server has its own
    if "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ:
        session = SparkSession.builder.appName(name).getOrCreate()
    else:
        session = _start(name, master, settings or {}, quiet)
    try:
        register(session)
        yield session
    finally:
        session.stop()


def _session_there() -> SparkSession | None:
    active = SparkSession.getActiveSession()  # of this thread
    if active is not None:
        return active
    try:
        made = SparkSession.active()  # by another thread
    except PySparkException:
        return None
    context: Any = getattr(made, "sparkContext", None)  # Spark Connect has no JVM; a stopped session is not active
    return made if context is None or context._jsc is not None else None


def _start(name: str, master: str, settings: Mapping[str, str], quiet: bool) -> SparkSession:
    os.environ["JAVA_HOME"] = str(java_home_for_spark())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    local: Mapping[str, str] = {}
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        local = LOCAL_SETTINGS
    log = f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"
    builder = SparkSession.builder.appName(name).master(master).config("spark.driver.extraJavaOptions", log)
    for key, value in {**SETTINGS, **local, **settings}.items():
        builder = builder.config(key, value)
    with tempfile.TemporaryFile() as said:
        try:
            with _stderr_to(said.fileno()) if quiet else nullcontext():
                return builder.getOrCreate()
        except Exception as error:
            said.seek(0)
            raise RmqError(f"Spark did not start: {error}\n{said.read().decode(errors='replace')[-2000:]}") from error


@contextmanager
def _stderr_to(descriptor: int) -> Generator[None]:
    """Redirect stderr of the processes started in the block; it stays redirected for them."""
    kept = os.dup(2)
    try:
        os.dup2(descriptor, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


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
