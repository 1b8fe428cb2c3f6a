"""A write on which each send counts, in a process that may be killed: options as JSON on the command line."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import DataFrame

from rmq.spark import keyed
from tests.spark.sessions import make_session


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    spark = make_session(given["master"])
    options = {"url": given["url"], "topic": given["topic"], "maxRate": "2000", "chunkSize": "50"}

    def write(frame: DataFrame, **names: str) -> None:
        rows = keyed(frame, partitions=given["partitions"])
        rows.write.format("rmq").mode("append").options(**options, **names).save()

    def write_batch(frame: DataFrame, batch: int) -> None:
        write(frame, txnAppId=given["topic"], txnVersion=str(batch))

    if given["kind"] == "once":
        write(spark.read.schema(given["schema"]).json(given["source"]), once=given["topic"])
        return
    stream = spark.readStream.schema(given["schema"]).json(given["source"])
    if given["kind"] == "foreachBatch":
        writer = stream.writeStream.foreachBatch(write_batch)
    else:
        writer = keyed(stream, partitions=given["partitions"]).writeStream.format("rmq").options(**options)
    writer.option("checkpointLocation", given["checkpoint"]).trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
