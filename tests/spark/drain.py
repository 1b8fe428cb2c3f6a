"""A query to be killed: drains a topic into Parquet files, one folder a batch, as told on the command line.

`stall` names where the driver waits to be killed: `read` (some of the first batch is read), `written` (the sink has
written it), `committed` (Spark has logged the commit, and nobody tells the source; the ack would come with the next
trigger), `told` (the same, and the source is told).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, cast

from pyspark.sql import DataFrame

from rmq.spark.source import commits
from tests.spark.sessions import make_session, stream_of


def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1])
    stall, checkpoint = options.get("stall"), Path(options["checkpoint"])

    def note(word: str) -> None:
        with Path(options["log"]).open("a", encoding="utf-8") as log:
            log.write(word + "\n")

    def write(frame: DataFrame, number: int) -> None:
        rows = frame.selectExpr("cast(content as string) content", "slot")
        if stall == "read":
            rows.limit(1).collect()
            note(f"stalled {number}")
            time.sleep(600)
        rows.write.mode("overwrite").parquet(f"{options['out']}/batch={number}")
        note(f"written {number}")
        if stall == "written":
            time.sleep(600)

    if stall == "committed":
        cast("Any", commits).tell = bool  # tells nobody
    stream = stream_of(make_session(), options["url"], options["topic"], **options["options"])
    query = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
    if options.get("available_now"):
        query.trigger(availableNow=True).start().awaitTermination()
        return
    running = query.trigger(processingTime=options.get("trigger", "0 seconds")).start()
    if stall in ("committed", "told"):
        while running.isActive and not (checkpoint / "commits" / "0").exists():
            time.sleep(0.05)
        note("committed 0")
    running.awaitTermination()


if __name__ == "__main__":
    main()
