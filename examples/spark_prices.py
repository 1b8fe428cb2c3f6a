"""Requests pictures of new prices, and messages to customers, for spark-submit.

    spark-submit examples/spark_prices.py redis://redis1:6379 /data/online-retail.parquet

All executors need `rmq[spark]`, and must reach Redis and the path. Without spark-submit it runs on this machine.
"""

from __future__ import annotations

import sys

from spark_shop.prices import PriceSettings, check, run
from spark_shop.report import show_prices

from rmq.spark import open_session


def main() -> None:
    """Read the arguments and run."""
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} REDIS_URL ORDER_LINES")
    url, lines = sys.argv[1:]
    settings = PriceSettings(lines, url, gold=0.05)
    check(settings)  # before Spark starts, which takes seconds
    with open_session("price pictures") as spark:
        show_prices(run(spark, settings, print))


if __name__ == "__main__":
    main()
