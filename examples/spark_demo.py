"""Runs both sample applications on a year of real orders, and checks their guarantees; `make demo-spark` calls it.

    python examples/spark_demo.py
    python examples/spark_demo.py --url redis://localhost --orders online-retail.parquet --master 'local[2]'

It uses a temporary Redis, or that of --url, with topics named demo.spark-...
"""

from __future__ import annotations

import argparse
import sys
import tempfile

from spark_shop import audience, prices
from spark_shop.order_lines import slice_path, whole_path
from spark_shop.report import show_audience, show_prices

from rmq import RmqClient
from rmq.spark import open_session

RIVALS = 20
"""Number of customers that a consumer outside Spark handles while Spark drains the topic, to test exclusion."""


def main() -> int:
    """Read the arguments and run; return 1 if a guarantee was broken."""
    options = argparse.ArgumentParser(description="Run two sample applications on real orders.")
    options.add_argument("--orders", help="order lines; by default RMQ_DATA, ../shared/data, or the day in the package")
    options.add_argument("--url", default="embedded://", help="URL of Redis; by default a temporary one, not RMQ_URL")
    options.add_argument("--master", default="local[*]", help="Spark master")
    chosen = options.parse_args()
    whole = chosen.orders or whole_path()
    if whole is None:
        _say("the full data set was not found; set RMQ_DATA to its path. Using 4,940 order lines of one day")
    lines = whole or slice_path()
    _say(f"order lines: {lines}")
    with RmqClient(chosen.url) as client, tempfile.TemporaryDirectory(prefix="rmq-spark-demo-") as out:
        names = ("demo.spark-price-picture", "demo.spark-customer-tier")
        asking = prices.PriceSettings(lines, client.url, pictures=names[0], customers=names[1])
        asked = audience.AudienceSettings(lines, out, client.url, topic="demo.spark-audience", rival=RIVALS)
        prices.check(asking)  # before Spark starts, which takes seconds
        audience.check(asked)
        _say("starting Spark ...")
        with open_session("rmq demo", master=chosen.master, quiet=True) as spark:
            priced = prices.run(spark, asking, _say)
            selected = audience.run(spark, asked, _say)
    print(f"Price pictures: {', '.join(names)}\n")
    show_prices(priced)
    print(f"\nAudience selection: {asked.topic}\n")
    show_audience(selected, asked.rules)
    return int(not selected.serial or bool(selected.left))


def _say(step: str) -> None:
    print(step, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
