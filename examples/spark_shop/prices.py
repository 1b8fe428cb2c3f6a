"""Price pictures: finds items with new prices, and ranks customers by turnover.

Order lines are sent to two topics. An item whose price changes needs a new picture (RANGE_MERGE: the changes of a
window are one picture). Customers are contacted, larger ones first (PRIORITY by tier). The messages contain only the
item or the customer: handlers look up the current data.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from rmq import RmqClient, Topic, TopicType
from rmq.demo.jobs import Tier
from rmq.errors import InvalidValueError
from rmq.spark.folding import merged
from rmq.spark.jobs import Say, nothing, plain_errors
from rmq.spark.options import parse_options
from rmq.spark.sink.writer import BatchWriter, write_counted
from spark_shop.order_lines import check_file, check_topic, read_lines

MERGES = ("partition", "all", "none")

_PRICED = "unit_price > 0 AND stock_code IS NOT NULL"
_BOUGHT = "unit_price > 0 AND quantity <> 0 AND customer_id IS NOT NULL"
# exact decimals: sums of doubles depend on the order of the rows
_WORTH = "CAST(unit_price AS DECIMAL(18,4)) * quantity"


@dataclass(frozen=True)
class PriceSettings:
    """Settings of the job.

    Attributes:
        lines: Order lines, Parquet or CSV, at a path that Spark's processes can read.
        url: URL of Redis, reachable from driver and executors; not `embedded://`.
        time_range_ms: Merge window of an item's changes.
        merge: Where Spark merges equal contents before the send: `partition`, in each task; `all`, over all tasks,
            which costs a shuffle; `none`, not at all, so that Redis merges.
        pictures: Name of the topic of items.
        customers: Name of the topic of customers.
        slots: Number of slots of both topics.
        gold: Share of customers in the tier gold, 0 to 1: those with the largest turnover.
        silver: Share of customers in the tier silver, which come next.
    """

    lines: str
    url: str
    time_range_ms: int = 3_600_000
    merge: str = "partition"
    pictures: str = "price-picture"
    customers: str = "customer-tier"
    slots: int = 8
    gold: float = 0.1
    silver: float = 0.3

    def __post_init__(self) -> None:
        if self.merge not in MERGES:
            raise InvalidValueError(f"merge is {self.merge!r}; it must be one of {', '.join(MERGES)}")
        if self.time_range_ms < 1:
            raise InvalidValueError(f"time_range_ms is {self.time_range_ms}; it must be 1 or more")
        if not (self.gold >= 0 and self.silver >= 0 and self.gold + self.silver <= 1):
            raise InvalidValueError(
                f"gold is {self.gold:g} and silver is {self.silver:g}; each must be 0 to 1, and their sum at most 1"
            )
        if self.pictures == self.customers:
            raise InvalidValueError(f"pictures and customers are both {self.pictures!r}; they must be different topics")
        self.to_topics()

    def to_topics(self) -> tuple[Topic, Topic]:
        """Return the definitions of the topics of items and of customers."""
        pictures = Topic(self.pictures, TopicType.RANGE_MERGE, slots=self.slots)
        return pictures, Topic(self.customers, TopicType.PRIORITY, slots=self.slots)


@dataclass(frozen=True, slots=True)
class Sent:
    """Results of the messages of one topic.

    Attributes:
        topic: Name of the topic.
        messages: Number of messages from the order lines.
        folded: Number merged by Spark before the send.
        merged: Number merged with a message in the backlog.
        new: Number of new messages.
        elapsed_s: Duration of the send in seconds.
    """

    topic: str
    messages: int
    folded: int
    merged: int
    new: int
    elapsed_s: float

    @property
    def saved(self) -> float:
        """Share of the messages that merged into others; 0 without messages."""
        return 1 - self.new / self.messages if self.messages else 0.0


@dataclass(frozen=True, slots=True)
class TierReport:
    """One tier: number of customers, and their turnover in whole units of the prices' currency."""

    tier: str
    priority: int
    customers: int
    turnover: int


@dataclass(frozen=True, slots=True)
class PriceReport:
    """The results of one run.

    Attributes:
        lines: Number of order lines read.
        without_price: Number of lines without an item or a price above 0, which are ignored.
        windows: Number of messages that would remain if each change had been sent at its time, merged per item and
            window of the clock.
        pictures: Results of the topic of items.
        contacts: Results of the topic of customers.
        tiers: Figures of the tiers, largest first.
    """

    lines: int
    without_price: int
    windows: int
    pictures: Sent
    contacts: Sent
    tiers: tuple[TierReport, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return asdict(self)


def price_changes(lines: DataFrame, window_ms: int = 3_600_000) -> DataFrame:
    """Return the lines whose unit price differs from that of the item's previous line.

    Args:
        lines: Lines with the columns of `read_lines`, and `line`, which orders those of one minute.
        window_ms: Length of a window for `opens`.

    Returns:
        `content`, `changed_at`, `unit_price`, `before`, and `opens`, which is true for the item's first change in a
        window of the clock. The first line of an item is not a change; lines without a price are ignored.
    """
    per_item = Window.partitionBy("stock_code").orderBy("invoice_date", "line")
    before = lines.where(_PRICED).withColumn("before", F.lag("unit_price").over(per_item))
    changed = before.where("before <> unit_price")
    number = F.floor(F.unix_millis(F.col("invoice_date").cast("timestamp")) / window_ms)
    opens = F.coalesce(F.lag(number).over(per_item) < number, F.lit(True))
    content = F.concat(F.lit("item:"), "stock_code")
    return changed.select(
        content.alias("content"),
        F.col("invoice_date").alias("changed_at"),
        "unit_price",
        "before",
        opens.alias("opens"),
    )


def turnovers(lines: DataFrame) -> DataFrame:
    """Return `customer_id` and `turnover`: orders minus cancellations, without guests and corrections."""
    return lines.where(_BOUGHT).groupBy("customer_id").agg(F.sum(F.expr(_WORTH)).alias("turnover"))


def tier_of(turnover: str, above: tuple[Any, Any]) -> Column:
    """Return the tier of a turnover: gold above the first of two amounts, silver above the second."""
    gold, silver = (F.col(turnover) > F.lit(amount) for amount in above)
    return F.when(gold, Tier.GOLD.name).when(silver, Tier.SILVER.name).otherwise(Tier.BRONZE.name)


def check(settings: PriceSettings) -> None:
    """Check the settings of `run` without Spark.

    Raises:
        InvalidValueError: The order lines are a local file that is not Parquet or lacks a column.
        TopicMismatchError: One of the topics is registered with another definition.
    """
    check_file(settings.lines)
    with RmqClient(settings.url) as client:
        for topic in settings.to_topics():
            check_topic(client, topic)


def run(spark: SparkSession, settings: PriceSettings, say: Say = nothing) -> PriceReport:
    """Send the messages of the order lines, and return a report.

    Args:
        spark: A session.
        settings: Settings of the job.
        say: Called with a line at the start of each step.

    Raises:
        InvalidValueError: A setting or a column of the order lines is invalid; nothing was sent.
        TopicMismatchError: One of the topics is registered with another definition; nothing was sent.
        RmqError: A line cannot be read, and nothing was sent; or Spark or Redis failed. Messages sent before remain,
            and another run sends all again, which merge with the backlog.
    """
    lines = read_lines(spark, settings.lines, numbered=True)
    with plain_errors(), ExitStack() as kept:
        say("finding price changes")
        changes = price_changes(lines, settings.time_range_ms).select("content", "opens").persist()
        kept.callback(changes.unpersist)
        read = lines.agg(F.count(F.lit(1)).alias("lines"), F.count_if(F.expr(_PRICED)).alias("priced")).collect()[0]
        asked = changes.agg(F.count(F.lit(1)).alias("changes"), F.count_if("opens").alias("windows")).collect()[0]
        say("ranking customers by turnover")
        tiers = _tiers(turnovers(lines), settings).persist()
        kept.callback(tiers.unpersist)
        reports = _tier_reports(tiers)
        # send only after all lines were read and both topics checked
        to_pictures = _Sending(changes.select("content"), settings, TopicType.RANGE_MERGE)
        to_customers = _Sending(_contacts(tiers), settings, TopicType.PRIORITY)
        say("sending price changes")
        pictures = to_pictures.send(asked["changes"])
        say("customers: sending")
        contacts = to_customers.send(sum(tier.customers for tier in reports))
    return PriceReport(read["lines"], read["lines"] - read["priced"], asked["windows"], pictures, contacts, reports)


def _tiers(spent: DataFrame, settings: PriceSettings) -> DataFrame:
    """Return customers with their tier. Two quantiles are collected in the driver, without sorting all customers."""
    shares = [1 - settings.gold, max(0.0, 1 - settings.gold - settings.silver)]
    amounts = spent.agg(F.percentile_approx("turnover", shares, 10_000).alias("amounts")).collect()[0]["amounts"]
    # a share of 0 leaves the smallest amount, which is lowered to include all
    gold, silver = (amount - (share == 0) for amount, share in zip(amounts or (0, 0), shares, strict=True))
    return spent.withColumn("tier", tier_of("turnover", (gold, silver)))


def _contacts(tiers: DataFrame) -> DataFrame:
    priority = F.lit(Tier.BRONZE.value)
    for tier in (Tier.SILVER, Tier.GOLD):
        priority = F.when(F.col("tier") == tier.name, tier.value).otherwise(priority)
    content = F.concat(F.lit("customer:"), F.col("customer_id").cast("string"))
    return tiers.select(content.alias("content"), priority.alias("priority"))


def _tier_reports(tiers: DataFrame) -> tuple[TierReport, ...]:
    rows = (
        tiers.groupBy("tier").agg(F.count(F.lit(1)).alias("customers"), F.sum("turnover").alias("turnover")).collect()
    )
    figures = {row["tier"]: (row["customers"], round(row["turnover"])) for row in rows}
    return tuple(TierReport(tier.name, tier.value, *figures.get(tier.name, (0, 0))) for tier in reversed(Tier))


class _Sending:
    """Sends a data frame to one of the topics, which is registered and checked on creation."""

    def __init__(self, frame: DataFrame, settings: PriceSettings, kind: TopicType) -> None:
        self._topic = settings.pictures if kind is TopicType.RANGE_MERGE else settings.customers
        options = {"url": settings.url, "topic": self._topic, "type": kind.name, "slots": str(settings.slots)}
        if kind is TopicType.RANGE_MERGE:
            options["time_range"] = f"{settings.time_range_ms}ms"
            if settings.merge == "all":
                frame = merged(frame, kind)
        options["merge"] = "partition" if settings.merge == "partition" else "none"
        self._frame, self._writer = frame, BatchWriter(frame.schema, parse_options(options))

    def send(self, number: int) -> Sent:
        """Send the frame. `number` is the number of messages from the order lines."""
        began_s = time.monotonic()
        counts = write_counted(self._frame, self._writer)
        folded, elapsed_s = number - counts.new - counts.merged, time.monotonic() - began_s
        return Sent(self._topic, number, folded, counts.merged, counts.new, elapsed_s)
