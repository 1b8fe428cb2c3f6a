"""Updates the segments of customers who changed, for spark-submit.

    spark-submit examples/spark_audience.py redis://redis1:6379 /data/online-retail.parquet /tables/audience

All executors need `rmq[spark]`, and must reach Redis and both paths. Without spark-submit it runs on this machine.
"""

from __future__ import annotations

import sys

from spark_shop.audience import AudienceSettings, check, current_segments, run
from spark_shop.report import show_audience

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
    settings = AudienceSettings(lines, out, url, rules=RULES)
    check(settings)  # before Spark starts, which takes seconds
    with open_session("audience") as spark:
        show_audience(run(spark, settings, print), RULES)
        current_segments(spark, out).select("customer", "turnover", "segments").show(5, truncate=False)


if __name__ == "__main__":
    main()
