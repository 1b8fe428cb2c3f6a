"""A replay for spark-submit: sends one day's messages of an archive, or its dead letters, again, at a given rate.

    spark-submit examples/spark_replay.py redis://redis1:6379 price-image 2026-11-20 500 /archive/price-image

If it is killed, run it again in the same way, and it sends the rest. Without an archive it redrives that day's dead.
"""

from __future__ import annotations

import sys
from datetime import date

from rmq.spark import open_session
from rmq.spark.jobs.redrive import Again
from rmq.spark.jobs.replay import ReplaySettings, run


def main(url: str, topic: str, day: str, rate: str, archive: str | None = None) -> None:
    """Replay one day."""
    settings = ReplaySettings(topic, date.fromisoformat(day), url, Again(rate=float(rate)), archive)
    with open_session("replay") as spark:
        report = run(spark, settings, print)
    print(f"{report.sent:,} sent: {report.new:,} new, {report.merged:,} merged; {report.seconds:.1f} s")
    print(f"{report.skipped:,} sent by an earlier run")


if __name__ == "__main__":
    if not 5 <= len(sys.argv) <= 6:
        sys.exit(f"usage: {sys.argv[0]} REDIS_URL TOPIC DAY RATE [ARCHIVE]")
    main(*sys.argv[1:])
