"""Sink, batch reader and streaming source through Spark Connect, with a server that this process starts.

Takes its options as JSON on the command line, and writes what it saw as JSON to the file that they name.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from rmq import Topic, TopicType
from rmq.spark import merged, register, with_slot
from tests.spark.frames import sink_of
from tests.spark.sessions import stream_of


def main() -> None:
    options = json.loads(sys.argv[1])
    url, folder, number = options["url"], Path(options["folder"]), options["number"]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    register(spark)
    filled, log = (Topic(options[name], TopicType.PRIORITY, slots=4) for name in ("filled", "log"))

    twice = spark.range(2 * number).selectExpr(f"concat('m', id % {number}) content", "id + 100 priority", "id")
    frame = merged(with_slot(twice, filled.slots), filled.type, order_by="id").drop("id")
    sink_of(frame, url, filled, merge="none").save()
    sink_of(spark.sql("select 'last' content, 1000L priority"), url, log).save()

    def read(topic: Topic) -> DataFrame:
        return spark.read.format("rmq").option("url", url).option("topic", topic.name).load()

    saw: dict[str, object] = {"connect": type(spark).__module__, "read": read(filled).count()}
    writer = stream_of(spark, url, filled.name, maxMessagesPerTrigger=number // 2).writeStream.format("rmq")
    writer = writer.option("url", url).option("topic", log.name).option("idempotent", "true")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    saw["ended"] = query.awaitTermination(120)
    saw["behind"] = [json.loads(each["sources"][0]["latestOffset"])["behind"] for each in query.recentProgress]
    saw["drained"] = sorted(bytes(row.content).decode() for row in read(log).collect())
    try:
        spark.read.format("rmq").option("url", url).option("topik", log.name).load().count()
    except PySparkException as error:
        saw["error"] = str(error)
    Path(options["report"]).write_text(json.dumps(saw))
    spark.stop()


if __name__ == "__main__":
    main()
