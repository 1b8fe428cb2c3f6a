"""Computes changed customers, customers' figures and segments from order lines.

Functions from data frames to data frames, without I/O.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

PREFIX = "customer:"
"""Prefix of the contents of changes; the customer's number follows."""

_IS_CANCELLATION = "invoice_no LIKE 'C%'"
_IS_ORDER = "invoice_no RLIKE '^[0-9]+$' AND quantity > 0 AND unit_price > 0"

SOURCES: Mapping[str, str] = {
    "orders": "one for each line of an order",
    "cancellations": "one for each line of a cancellation",
    "countries": "one for each customer of each country, as when the countries' rules have changed",
}
"""Sources of changes, with descriptions."""


def changes(lines: DataFrame, source: str) -> DataFrame:
    """Return the changes of one of `SOURCES`, with a column `content` for the sink."""
    known = lines.where("customer_id IS NOT NULL")
    if source == "countries":
        changed = known.select("customer_id", "country").distinct()
    else:
        changed = known.where(_IS_ORDER if source == "orders" else _IS_CANCELLATION)
    return changed.select(F.concat(F.lit(PREFIX), F.col("customer_id").cast("string")).alias("content"))


def customers_of(messages: DataFrame) -> DataFrame:
    """Return the customers of a batch of messages. Other contents are ignored."""
    content = F.col("content").cast("string")
    number = F.regexp_extract(content, f"^{PREFIX}([0-9]+)$", 1)
    return messages.select(number.alias("customer")).where("customer <> ''")


def figures(lines: DataFrame, customers: DataFrame) -> DataFrame:
    """Return a row of figures per customer, with the columns of `audience_rules.FIGURES`.

    Args:
        lines: All order lines. Days are counted up to the last of them.
        customers: Column `customer`, without duplicates.
    """
    mine = lines.withColumn("customer", F.col("customer_id").cast("string"))
    mine = mine.join(F.broadcast(customers), "customer", "left_semi")
    # exact decimals: sums of doubles depend on the order of the rows, so that a replay would differ
    worth = F.expr("CAST(unit_price AS DECIMAL(18,4)) * quantity")
    is_order = F.expr(_IS_ORDER)
    invoices = mine.groupBy("customer", "invoice_no").agg(
        F.bool_or(is_order).alias("is_order"),
        F.sum(F.when(is_order, worth)).alias("worth"),
        F.max(F.when(is_order, F.to_date("invoice_date"))).alias("ordered"),
        F.max(F.struct("invoice_date", "country")).alias("last"),
    )
    summed = invoices.groupBy("customer").agg(
        F.max("last")["country"].alias("country"),
        F.count_if("is_order").alias("orders"),
        F.sum("worth").alias("turnover"),
        F.count_if(F.expr(_IS_CANCELLATION)).alias("cancellations"),
        F.max("ordered").alias("last_order"),
    )
    today = lines.agg(F.max(F.to_date("invoice_date")).alias("today"))
    return (
        customers.join(summed, "customer", "left")
        .crossJoin(F.broadcast(today))
        .selectExpr(
            "customer",
            "country",
            "coalesce(orders, 0) orders",
            "CAST(coalesce(turnover, 0) AS DECIMAL(38,4)) turnover",
            "coalesce(cancellations, 0) cancellations",
            "coalesce(try_divide(cancellations, orders + cancellations), 0D) cancelled_share",
            "last_order",
            "datediff(today, last_order) days_since_last_order",
        )
    )


def with_segments(figures: DataFrame, rules: Mapping[str, str]) -> DataFrame:
    """Add a column `segments` to customers' figures: the names of matching rules, in the rules' order."""
    names = [F.when(F.expr(condition), F.lit(name)) for name, condition in rules.items()]
    return figures.withColumn("segments", F.array_compact(F.array(*names)))


def latest(evaluated: DataFrame) -> DataFrame:
    """Return the latest row of each customer."""
    newest = Window.partitionBy("customer").orderBy(F.col("batch").desc())
    return evaluated.withColumn("_age", F.row_number().over(newest)).where("_age = 1").drop("_age")
