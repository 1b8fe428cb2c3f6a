"""`rmq spark prices`: sends price changes to a merge topic, and customers to a priority topic."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from rmq._model.display import shown
from rmq._model.times import typed_duration_ms
from rmq.cli.commands.spark.session import LOCAL, Master, needs_spark, spark_running
from rmq.cli.console import Session, new_table
from rmq.errors import InvalidValueError

if TYPE_CHECKING:
    from rmq.demo.spark.prices import PriceReport


def prices(
    session: Session,
    orders: Annotated[
        str | None, typer.Argument(help="Order lines, Parquet or CSV.  \\[default: the day in the package]")
    ] = None,
    time_range: Annotated[
        str, typer.Option(metavar="DURATION", help="Window in which an item's changes merge.")
    ] = "1h",
    merge: Annotated[
        str,
        typer.Option(metavar="WHERE", help="Fold messages in Spark: within a partition, over all rows (all), or none."),
    ] = "partition",
    pictures: Annotated[str, typer.Option(metavar="TOPIC", help="Name of the topic of items.")] = "price-picture",
    customers: Annotated[str, typer.Option(metavar="TOPIC", help="Name of the topic of customers.")] = "customer-tier",
    slots: Annotated[int, typer.Option(metavar="N", help="Number of slots of both topics, a power of two.")] = 8,
    gold: Annotated[float, typer.Option(metavar="PERCENT", help="Percentage of customers in the tier gold.")] = 10.0,
    silver: Annotated[
        float, typer.Option(metavar="PERCENT", help="Percentage of customers in the tier silver.")
    ] = 30.0,
    master: Master = LOCAL,
) -> None:
    """Send new prices of items to a merge topic, and customers by their turnover to a priority topic."""
    window_ms = typed_duration_ms(time_range, "--time-range")
    if not window_ms:
        raise InvalidValueError("--time-range is 0; it must be at least 1ms")
    with needs_spark():
        from rmq.demo.spark.order_lines import slice_path
        from rmq.demo.spark.prices import PriceSettings, check, run
    lines = slice_path() if orders is None else orders
    settings = PriceSettings(lines, "", window_ms, merge, pictures, customers, slots, gold / 100, silver / 100)
    with spark_running(session, "prices", master, lambda url: check(replace(settings, url=url))) as running:
        report = run(running.spark, replace(settings, url=running.url), running.say)
    if session.json:
        session.document(report.to_json())
    else:
        show_prices(session, report, time_range)


def show_prices(session: Session, report: PriceReport, window: str) -> None:
    """Print a report as tables: rows folded by Spark, and messages merged by Redis.

    Args:
        session: The command's session.
        report: Report of the job.
        window: The merge window as it was typed.
    """
    session.line(f"{report.lines:,} order lines, {report.without_price:,} of them without a price\n")
    table = new_table("topic", ">asked", ">folded", ">merged", ">new", ">saved", ">seconds")
    for sent in (report.pictures, report.contacts):
        figures = (sent.messages, sent.folded, sent.merged, sent.new)
        table.add_row(
            shown(sent.topic), *(f"{each:,}" for each in figures), f"{sent.saved:.1%}", f"{sent.elapsed_s:.1f}"
        )
    session.out.print(table)
    session.line("\nfolded in Spark before sending, merged with the backlog in Redis")
    changes = report.pictures.messages
    if changes:
        saved = f"{1 - report.windows / changes:.1%}"
        session.line(
            f"sent change by change, in windows of {window}: {report.windows:,} pictures of {changes:,}, {saved} saved"
        )
    session.line("")
    tiers = new_table("tier", ">priority", ">customers", ">turnover")
    for tier in report.tiers:
        tiers.add_row(tier.tier.lower(), f"{tier.priority:,}", f"{tier.customers:,}", f"{tier.turnover:,}")
    session.out.print(tiers)
