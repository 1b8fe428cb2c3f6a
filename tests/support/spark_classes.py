"""How the JVMs of Spark start in tests: without the second compiler, and with an archive of Spark's classes.

`python -m tests.support.spark_classes` runs a few queries, and Java archives the classes that these have loaded
(class data sharing). A JVM with the archive neither parses nor verifies these classes: until the end of its first
query it takes half of the processor time. Java ignores an archive that another Java has made, or of other jars.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Half the processor time of a JVM that lives for minutes goes into its second compiler, which pays off later.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Nothing that Java has to say about an archive may get into a standard output that tests read.
QUIET = "-Xlog:disable -Xlog:all=error:stderr"
LIMIT_S = 300


def archive() -> Path:
    """Return where the archive is, or will be: in the environment whose jars it is of."""
    return Path(sys.prefix, f"spark-classes-{importlib.metadata.version('pyspark')}.jsa")


def jvm_options() -> str:
    """Return the options of a JVM that lives for seconds, or at most for minutes."""
    return f"{QUICK} {QUIET} -XX:SharedArchiveFile={archive()}" if archive().exists() else QUICK


def make_archive() -> bool:
    """Make the archive; return whether Java has written it."""
    from tests.spark.sessions import make_session

    with tempfile.TemporaryDirectory(dir=sys.prefix) as folder:
        made = Path(folder, "made.jsa")
        os.environ["SPARK_SUBMIT_OPTS"] = f"{QUICK} {QUIET} -XX:ArchiveClassesAtExit={made}"
        spark = make_session()
        java: subprocess.Popen[bytes] = spark.sparkContext._gateway.proc  # pyright: ignore
        _run_queries(spark, folder)
        spark.stop()
        assert java.stdin
        java.stdin.close()  # the JVM ends then, and writes the archive
        java.wait(LIMIT_S)
        if made.exists():
            made.replace(archive())  # in one step: tests that run meanwhile see none, or a whole one
    return archive().exists()


def _run_queries(spark: SparkSession, folder: str) -> None:
    """Write to a topic, read it, select from it as a stream into files, and group what is there."""
    from rmq import RmqClient, Topic, TopicType
    from tests.spark.frames import sink_of
    from tests.spark.sessions import stream_of
    from tests.support.servers import RedisServer

    topic = Topic("classes", TopicType.PRIORITY, slots=2)
    with RedisServer() as server, RmqClient(server.url) as client:
        sink_of(spark.range(100).selectExpr("concat('m', id) content", "id + 100 priority"), server.url, topic).save()
        backlog = spark.read.format("rmq").option("url", server.url).option("topic", topic.name).load()
        backlog.groupBy("slot").count().collect()
        writer = stream_of(spark, server.url, topic.name).writeStream.option(
            "checkpointLocation", f"{folder}/checkpoint"
        )
        assert writer.trigger(availableNow=True).format("parquet").start(f"{folder}/files").awaitTermination(LIMIT_S)
        stats = client.inspect(topic).stats()
    files = spark.read.parquet(f"{folder}/files")
    assert files.count() == stats.total("acked") == 100, stats
    files.createOrReplaceTempView("files")
    spark.sql("SELECT date(now()) AS day, count(*) AS rows FROM files GROUP BY ALL ORDER BY rows DESC").toArrow()


if __name__ == "__main__":
    sys.exit(None if make_archive() else "Java wrote no archive: Spark's JVMs start without one")
