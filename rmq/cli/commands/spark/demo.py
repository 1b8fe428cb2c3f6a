"""`rmq spark demo`: runs the jobs `prices` and `audience` on a year of a shop's orders."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import Annotated

import typer

from rmq._model.display import shown
from rmq.cli.commands.spark.audience import show_audience
from rmq.cli.commands.spark.prices import show_prices
from rmq.cli.commands.spark.session import LOCAL, Master, needs_spark, spark_running
from rmq.cli.console import FAILED, Session

RIVALS = 20
"""Number of customers that a consumer outside Spark handles while Spark drains the topic, to test exclusion."""


def demo(
    session: Session,
    orders: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Order lines.  \\[default: RMQ_DATA, else ../shared/data, else the day in the package]",
        ),
    ] = None,
    master: Master = LOCAL,
) -> None:
    """Run the jobs `prices` and `audience` on real orders, and check their guarantees.

    Uses a temporary Redis, or the Redis of --url, with topics named demo.spark-...
    """
    # not RMQ_URL: it may name a live queue
    if session.options.url is None:
        session = Session(replace(session.options, url="embedded://"))
    with needs_spark():
        from rmq.demo.spark import audience, prices
        from rmq.demo.spark.order_lines import slice_path, whole_path
    whole = orders or whole_path()
    lines = whole or slice_path()
    if whole is None:
        session.warn("the full data set was not found; set RMQ_DATA to its path. Using 4,940 order lines of one day")
    session.note(f"order lines: {lines}")
    asking = prices.PriceSettings(lines, "", pictures="demo.spark-price-picture", customers="demo.spark-customer-tier")
    asked = audience.AudienceSettings(lines, "", "", topic="demo.spark-audience", rival=RIVALS)

    def check(url: str) -> None:
        prices.check(replace(asking, url=url))
        audience.check(replace(asked, url=url))

    with (
        tempfile.TemporaryDirectory(prefix="rmq-spark-demo-") as out,
        spark_running(session, "demo", master, check) as running,
    ):
        priced = prices.run(running.spark, replace(asking, url=running.url), running.say)
        selected = audience.run(running.spark, replace(asked, url=running.url, out=out), running.say)
    if session.json:
        session.document({"orders": lines, "prices": priced.to_json(), "audience": selected.to_json()})
    else:
        session.line(("Price pictures", "bold"), f": {shown(priced.pictures.topic)}, {shown(priced.contacts.topic)}\n")
        show_prices(session, priced, "1h")
        session.line(("\nAudience selection", "bold"), f": {shown(asked.topic)}\n")
        show_audience(session, selected, asked.rules)
    if not selected.serial or selected.left:
        raise typer.Exit(FAILED)
