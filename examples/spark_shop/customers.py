"""Evaluates customers: their changes and figures in order lines, rules of segments, and the query's batches."""

from __future__ import annotations

import json
import re
import threading
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from rmq import Inspection
from rmq.errors import InvalidValueError, RmqError
from rmq.spark.jobs import SPARK_ERRORS, Say, one_line
from spark_shop.order_lines import read_lines

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


FIGURES = (
    "customer", "country", "orders", "turnover", "cancellations", "cancelled_share", "last_order",
    "days_since_last_order",
)  # fmt: skip
"""Columns that a condition may use; null if a customer has no value. `customers.figures` computes them."""

DEFAULT_RULES: Mapping[str, str] = {
    "vip": "turnover >= 5000",
    "regular": "orders >= 5",
    "new": "orders = 1 and days_since_last_order <= 30",
    "lapsed": "days_since_last_order > 180",
    "returns-often": "cancellations >= 2 and cancelled_share > 0.25",
    "abroad": "country <> 'United Kingdom'",
}

MAX_RULES = 1_000

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_TRIALS = """
    SELECT * FROM VALUES
        ('12345', 'France', 3L, CAST(99.5 AS DECIMAL(38,4)), 1L, 0.25D, DATE '2011-12-08', 1),
        ('12346', NULL, 0L, CAST(0 AS DECIMAL(38,4)), 0L, 0D, NULL, NULL)
    AS ({})
"""
"""A customer with all figures, and one with none, for which `turnover / orders` fails. Spark needs no task for them."""


def read_rules(path: str | Path) -> dict[str, str]:
    """Return the rules in a file, in its order.

    Args:
        path: A file `.toml` or `.json`: one table of name -> condition.

    Raises:
        InvalidValueError: The file does not exist or is not TOML or JSON, a rule is given twice, or a condition is not
            a string.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValueError(f"rules file {str(path)!r} cannot be read: {error}") from None
    try:
        if path.suffix == ".toml":
            table: object = tomllib.loads(text)
        elif path.suffix == ".json":
            table = json.loads(text, object_pairs_hook=_once)
        else:
            raise InvalidValueError(f"rules file {str(path)!r} must end in .toml or .json")
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        raise InvalidValueError(f"rules file {str(path)!r} is not valid {path.suffix[1:].upper()}: {error}") from None
    if not isinstance(table, dict):
        raise InvalidValueError(f"rules file {str(path)!r} must be one table of name -> condition")
    rules = cast("dict[str, object]", table)
    for name, condition in rules.items():
        if not isinstance(condition, str):
            raise InvalidValueError(f"rule {name!r} is {condition!r:.100}; it must be a string with a condition")
    return cast("dict[str, str]", rules)


def check_names(rules: Mapping[str, str]) -> None:
    """Check number and names of the rules, without Spark.

    Raises:
        InvalidValueError: There are no rules or too many, or a name is invalid.
    """
    if not 0 < len(rules) <= MAX_RULES:
        raise InvalidValueError(f"there are {len(rules)} rules; the number must be from 1 to {MAX_RULES}")
    for name in rules:
        if not _NAME.fullmatch(name):
            raise InvalidValueError(f"rule {name!r} has an invalid name; it must be 1 to 64 letters, digits and . _ -")


def check_rules(spark: SparkSession, rules: Mapping[str, str]) -> None:
    """Test all rules on sample customers.

    Raises:
        InvalidValueError: There are no rules or too many, a name is invalid, or Spark cannot evaluate a condition.
    """
    check_names(rules)
    trials = spark.sql(_TRIALS.format(", ".join(FIGURES)))
    for name, condition in rules.items():
        try:
            # WHERE refuses anything but a condition on one customer, such as aggregates, windows and non-boolean values
            trials.where(condition).collect()
        except SPARK_ERRORS as error:
            reason = one_line(error)
            raise InvalidValueError(
                f"rule {name!r}: {condition!r:.200} is not a valid condition: {reason:.300}"
            ) from None


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidValueError(f"rule {twice!r} is given twice")
    return table


class Evaluator:
    """Writes the segments of a batch's customers, and the time span of the evaluation.

    Args:
        lines: Path of the order lines, which are read again for each batch.
        out: Folder for `segments` and `evaluations`.
        rules: Segment -> condition.
        inspection: Inspection of the topic.
        say: Called with a line for each batch, when its customers are claimed.

    Attributes:
        begun: Set when the first customers are claimed.
        batches: Numbers of the batches done.
        evaluated: Number of customers in them, counted once per batch.
        passed_over: Number of messages whose content is not a customer.
    """

    def __init__(self, lines: str, out: str, rules: Mapping[str, str], inspection: Inspection, say: Say) -> None:
        self._lines, self._out, self._rules = lines, out, rules
        self._inspection, self._say = inspection, say
        self.begun = threading.Event()
        self._at_work, self._closed = threading.Lock(), False
        self.batches: list[int] = []
        self.evaluated = self.passed_over = 0

    def __call__(self, messages: DataFrame, number: int) -> None:
        """Evaluate a batch. Guarantee: the same batch and order lines give the same result."""
        with self._at_work:
            if self._closed:
                raise RmqError("the run was stopped")  # raise, since Spark would commit the batch after a return
            batch = messages.select("content").persist()
            try:
                claimed = batch.count()  # claims all of them
                self.begun.set()
                self._evaluate(batch, claimed, number)
            finally:
                batch.unpersist()

    def close(self) -> None:
        """Wait for the present batch, and refuse later ones before they claim messages."""
        with self._at_work:
            self._closed = True

    def _evaluate(self, batch: DataFrame, claimed: int, number: int) -> None:
        stats = self._inspection.stats()
        began_ms, behind = stats.now_ms, stats.backlog
        self._say(f"batch {number}: {claimed:,} customers; {self.evaluated:,} evaluated, {behind:,} behind")
        spark = batch.sparkSession
        customers = customers_of(batch)
        segments = with_segments(figures(read_lines(spark, self._lines), customers), self._rules)
        segments.write.mode("overwrite").parquet(f"{self._out}/segments/batch={number}")
        ended_ms = self._inspection.stats([0]).now_ms
        times = spark.sql(f"SELECT {began_ms}L began_ms, {ended_ms}L ended_ms, {claimed} messages")
        times.write.mode("overwrite").json(f"{self._out}/evaluations/batch={number}")
        evaluated = customers.count()
        self.batches.append(number)
        self.evaluated += evaluated
        self.passed_over += claimed - evaluated
