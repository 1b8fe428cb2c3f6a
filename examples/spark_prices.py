"""Requests pictures of new prices, and messages to customers: the job of `rmq spark prices`, for spark-submit.

    spark-submit examples/spark_prices.py redis://redis1:6379 /data/online-retail.parquet

All executors need `rmq[spark]`, and must reach Redis and the path. Without spark-submit it runs on this machine.
"""

from __future__ import annotations

import sys

from rmq.demo.spark.prices import PriceSettings, run
from rmq.spark import open_session


def main() -> None:
    """Read the arguments and run."""
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} REDIS_URL ORDER_LINES")
    url, lines = sys.argv[1:]
    with open_session("price pictures") as spark:
        report = run(spark, PriceSettings(lines, url, gold=0.05), print)
    for sent in (report.pictures, report.contacts):
        print(f"{sent.topic}: {sent.messages} asked for, {sent.folded} folded, {sent.merged} merged, {sent.new} new")
    for tier in report.tiers:
        print(f"{tier.tier}: {tier.customers} customers with a turnover of {tier.turnover}")


if __name__ == "__main__":
    main()
