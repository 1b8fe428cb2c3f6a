"""The audit of dead letters for spark-submit: counts and plots them, and redrives those that match a condition.

    spark-submit examples/spark_dead_audit.py redis://redis1:6379 price-image ./audit "error_type = 'TimeoutError'"

Without the condition nothing is redriven. Driver and executors need RMQ; the driver also needs rmq[plots].
"""

from __future__ import annotations

import sys

from rmq.spark import open_session
from rmq.spark.jobs.dead_audit import DeadAuditSettings, DeadReport, run
from rmq.spark.jobs.dead_files import write_files
from rmq.spark.jobs.redrive import Again


def main(url: str, topic: str, out: str, where: str | None = None) -> None:
    """Audit one topic."""
    settings = DeadAuditSettings((topic,), url, where, redrive=where is not None, again=Again(rate=500))

    def keep(report: DeadReport) -> None:
        for path in write_files(report, out):
            print(path)

    with open_session("dead audit") as spark:
        report = run(spark, settings, print, keep)
    for reason in report.reasons:
        print(f"{reason.dead:>9,}  {reason.error_type}: {reason.example}")
    print({name: counts.new for name, counts in report.redriven.items()})


if __name__ == "__main__":
    if not 4 <= len(sys.argv) <= 5:
        sys.exit(f"usage: {sys.argv[0]} REDIS_URL TOPIC OUT_FOLDER [CONDITION]")
    main(*sys.argv[1:])
