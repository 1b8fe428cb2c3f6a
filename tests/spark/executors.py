"""Jobs in Spark's own small cluster, two executor processes; one of them is killed in the middle of each.

Takes its options as JSON on the command line, and writes what the source gave as JSON to the file that they name.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import udf

from rmq import Topic, TopicType
from tests.spark.frames import sink_of
from tests.spark.sessions import make_session, stream_of
from tests.support.waiting import wait_until

LIMIT_S = 300


def executors() -> list[psutil.Process]:
    """Return the executors' JVMs, children of the driver's."""
    found: list[psutil.Process] = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            if any("CoarseGrainedExecutorBackend" in word for word in process.cmdline()):
                found.append(process)
    return found


def kill_one_while(folder: Path, job: Callable[[Callable[[Any], Column]], None]) -> int:
    """Run a job, which gets a function that passes contents on slowly, and kill an executor, whose id is returned."""
    wait_until(lambda: len(executors()) == 2, LIMIT_S)
    at_work, killed = folder / "at-work", list[int]()
    at_work.unlink(missing_ok=True)

    def pass_on(content: str) -> str:
        if content.endswith("50"):
            at_work.write_text("")
        time.sleep(0.002)
        return content

    def kill() -> None:
        wait_until(at_work.exists, LIMIT_S)
        victim = executors()[0]
        victim.kill()
        killed.append(victim.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    job(udf(pass_on, "string", useArrow=False))
    killer.join(LIMIT_S)
    return killed[0]


def main() -> None:
    options = json.loads(sys.argv[1])
    url, folder = options["url"], Path(options["folder"])
    spark = make_session("local-cluster[2,1,1024]")
    reads: list[list[str]] = []

    def source(slowly: Callable[[Any], Column]) -> None:
        def write(frame: DataFrame, number: int) -> None:
            text = frame.content.cast("string")
            for column in (slowly(text), text):
                reads.append([row[0] for row in frame.select(column).collect()])

        query = stream_of(spark, url, options["first"]).writeStream.foreachBatch(write).trigger(availableNow=True)
        query.option("checkpointLocation", str(folder / "first")).start().awaitTermination()

    def streams(slowly: Callable[[Any], Column]) -> None:
        stream = stream_of(spark, url, options["second"])
        stream = stream.select(slowly(stream.content.cast("string")).alias("content"))
        writer = stream.writeStream.format("rmq").option("url", url).option("topic", options["log"])
        writer = writer.option("idempotent", "true").option("mergeRows", 100).option("chunkSize", 50)
        query = writer.option("checkpointLocation", str(folder / "second")).trigger(availableNow=True).start()
        query.awaitTermination()

    def sink(slowly: Callable[[Any], Column]) -> None:
        numbers = spark.range(0, options["number"], 1, 4).selectExpr("concat('m', id) content", "id + 100 priority")
        frame = numbers.select(slowly(numbers.content).alias("content"), "priority")
        topic = Topic(options["filled"], TopicType.PRIORITY, slots=4)
        sink_of(frame, url, topic, mergeRows=100, chunkSize=50).save()

    killed = {kill_one_while(folder, job) for job in (source, streams, sink)}
    first, again = (Counter(read) for read in reads)
    Path(options["report"]).write_text(json.dumps({"first": first, "again": again, "killed": len(killed)}))
    spark.stop()


if __name__ == "__main__":
    main()
