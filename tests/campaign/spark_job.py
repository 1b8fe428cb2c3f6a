"""A Spark job of a campaign: writes rows to a topic, batch after batch. Run with `python -m tests.campaign.spark_job`.

A write that fails is known to nobody: each of its rows may have been sent, or not.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any

from tests.campaign.topics import SPARK
from tests.histories.journal import Journal, now_s
from tests.spark.sessions import make_session

ROWS = 2_000
RANGE_MS = 500


def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1])
    logging.disable()
    journal = Journal(options["journal"])
    spark = make_session()
    written = failed = 0
    for number in range(options["writes"]):
        batch = f"k{os.getpid()}.{number}"
        contents = [f"{batch}.{row}" for row in range(ROWS)]
        journal.write("try", now_s(), os.getpid(), batch, SPARK, *(name for each in contents for name in (each, each)))
        frame = spark.createDataFrame([(each, RANGE_MS) for each in contents], "content string, time_range long")
        writer = frame.repartition(4).write.format("rmq").mode("append").option("url", options["url"])
        writer = writer.option("topic", SPARK).option("durability", "replicated").option("deadlineSeconds", 30)
        unknown = ""
        try:
            writer.save()
            written += 1
        except Exception as error:
            unknown = ",".join(contents)
            failed += 1
            print(f"write {number}: {str(error).splitlines()[0]}", file=sys.stderr)
        journal.write("sent", now_s(), batch, "", unknown)
        time.sleep(options["pause_s"])
    spark.stop()
    print(json.dumps({"written": written, "failed": failed}))


if __name__ == "__main__":
    main()
