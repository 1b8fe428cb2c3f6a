"""Updates the segments of customers who changed: the job of `rmq spark audience`, for spark-submit.

    spark-submit examples/spark_audience.py redis://redis1:6379 /data/online-retail.parquet /tables/audience

All executors need `rmq[spark]`, and must reach Redis and both paths. Without spark-submit it runs on this machine.
"""

from __future__ import annotations

import sys

from rmq.demo.spark.audience import AudienceSettings, current_segments, run
from rmq.spark import open_session

RULES = {
    "vip": "turnover >= 5000",
    "win-back": "orders >= 3 and days_since_last_order > 90",
    "returns-often": "cancellations >= 2 and cancelled_share > 0.25",
}


def main() -> None:
    """Read the arguments and run."""
    if len(sys.argv) != 4:
        sys.exit(f"usage: {sys.argv[0]} REDIS_URL ORDER_LINES OUT_FOLDER")
    url, lines, out = sys.argv[1:]
    with open_session("audience") as spark:
        report = run(spark, AudienceSettings(lines, out, url, rules=RULES), print)
        print(f"{report.merged_share:.1%} of the changes merged; {report.evaluated} customers evaluated")
        for name, members in report.members.items():
            print(f"{name}: {members} of {report.customers}")
        current_segments(spark, out).select("customer", "turnover", "segments").show(5, truncate=False)


if __name__ == "__main__":
    main()
