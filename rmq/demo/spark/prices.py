"""Price pictures: which items have new prices, and which customers come first.

Order lines become two topics. An item whose price changes asks for a new picture (RANGE_MERGE: the changes of a window
are one picture). A customer is written to, larger customers first (PRIORITY: the tier decides). The messages name the
item or the customer only: who handles one looks up what holds then.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from rmq._broker.registry import Registry
from rmq._model.topics import Topic, TopicType
from rmq.demo.jobs import Tier
from rmq.demo.spark.order_lines import check_file, read_lines
from rmq.errors import InvalidValueError
from rmq.spark.failures import plain_errors
from rmq.spark.folding import merged
from rmq.spark.jobs import Say, nothing
from rmq.spark.jobs.redrive import connect
from rmq.spark.options import parse_options
from rmq.spark.sink.writer import BatchWriter, write_counted

MERGES = ("partition", "all", "none")

_PRICED = "unit_price > 0 AND stock_code IS NOT NULL"
_BOUGHT = "unit_price > 0 AND quantity <> 0 AND customer_id IS NOT NULL"
# exact numbers: the sum of doubles depends on the order of the rows
_WORTH = "CAST(unit_price AS DECIMAL(18,4)) * quantity"


@dataclass(frozen=True)
class PriceSettings:
    """What the job is to do.

    Attributes:
        lines: Order lines: Parquet or CSV, as Spark's processes reach it.
        url: Where Redis is, as driver and executors reach it; no `embedded://`.
        time_range_ms: Window in which an item's changes merge.
        merge: Where Spark folds equal contents before they are sent: `partition`: in each task; `all`: over all of
            them, which costs a shuffle; `none`: nowhere, so that Redis does it all.
        pictures: Name of the topic of items.
        customers: Name of the topic of customers.
        slots: Number of slots of both.
        gold: Share of the customers that are gold, 0 to 1: those with the largest turnover.
        silver: Share of those that come next.
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
                f"gold is {self.gold:g} and silver {self.silver:g}; they are shares of the customers, 1 at most in all"
            )
        if self.pictures == self.customers:
            raise InvalidValueError(f"both topics are named {self.pictures!r}; items and customers need one each")
        self.to_topics()

    def to_topics(self) -> tuple[Topic, Topic]:
        """Return the definitions of both topics: items, customers."""
        pictures = Topic(self.pictures, TopicType.RANGE_MERGE, slots=self.slots)
        return pictures, Topic(self.customers, TopicType.PRIORITY, slots=self.slots)


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of the messages of one topic.

    Attributes:
        topic: Its name.
        messages: What the order lines asked for.
        folded: Those that Spark folded into others before it sent.
        merged: Those that merged with one in the backlog.
        new: Those that became an entry of their own.
        elapsed_s: How long the sending took.
    """

    topic: str
    messages: int
    folded: int
    merged: int
    new: int
    elapsed_s: float

    @property
    def saved(self) -> float:
        """Return the folding rate: which share of the messages asks for no work of its own; 0 without any."""
        return 1 - self.new / self.messages if self.messages else 0.0


@dataclass(frozen=True, slots=True)
class TierReport:
    """One tier: how many customers it has, and their turnover in whole units of the prices' currency."""

    tier: str
    priority: int
    customers: int
    turnover: int


@dataclass(frozen=True, slots=True)
class PriceReport:
    """Figures of one run.

    Attributes:
        lines: Order lines read.
        without_price: Those of them that have no item, or no price above 0: left out of the comparison.
        windows: How many messages would be left of the changes had each been sent when it came: those of an item in the
            same window, by the clock, are one.
        pictures: The topic of items.
        contacts: The topic of customers.
        tiers: Largest first.
    """

    lines: int
    without_price: int
    windows: int
    pictures: Sent
    contacts: Sent
    tiers: tuple[TierReport, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def price_changes(lines: DataFrame, window_ms: int = 3_600_000) -> DataFrame:
    """Return the lines whose unit price differs from that of the item's line before, a row each.

    Args:
        lines: With the columns of `read_lines`, and `line`, which orders those of one minute.
        window_ms: Length of a window for `opens`.

    Returns:
        `content`, `changed_at`, `unit_price`, `before`, and `opens`: whether it is the item's first change in this
        window of the clock. A first line of an item has nothing to differ from; one without a price is no price.
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
    """Return `customer_id` and `turnover`: orders less cancellations, without guests and corrections of the books."""
    return lines.where(_BOUGHT).groupBy("customer_id").agg(F.sum(F.expr(_WORTH)).alias("turnover"))


def tier_of(turnover: str, above: tuple[Any, Any]) -> Column:
    """Return the name of the tier of a turnover: above the first of two amounts it is gold, above the second silver."""
    gold, silver = (F.col(turnover) > F.lit(amount) for amount in above)
    return F.when(gold, Tier.GOLD.name).when(silver, Tier.SILVER.name).otherwise(Tier.BRONZE.name)


def check(settings: PriceSettings) -> None:
    """Look, without Spark, at what `run` would refuse.

    Raises:
        InvalidValueError: The order lines are a file of this machine, and it is no Parquet or lacks a column.
        TopicMismatchError: One of the topics is there already, and is another.
    """
    check_file(settings.lines)
    with closing(connect(settings.url)) as connections:
        for topic in settings.to_topics():
            Registry(connections).check(topic)


def run(spark: SparkSession, settings: PriceSettings, say: Say = nothing) -> PriceReport:
    """Send what order lines ask for, and say what came of it.

    Args:
        spark: A session.
        settings: What to do.
        say: Gets a line when a step begins.

    Raises:
        InvalidValueError: A setting or the columns of the order lines are wrong; nothing was sent.
        TopicMismatchError: One of the topics is there already, and is another; nothing was sent.
        RmqError: A line can't be read: nothing was sent. Or Spark or Redis failed: what was sent stays sent; another
            run sends all of it again, which merges with the backlog.
    """
    lines = read_lines(spark, settings.lines, numbered=True)
    with plain_errors(), ExitStack() as kept:
        say("price changes: comparing")
        changes = price_changes(lines, settings.time_range_ms).select("content", "opens").persist()
        kept.callback(changes.unpersist)
        read = lines.agg(F.count(F.lit(1)).alias("lines"), F.count_if(F.expr(_PRICED)).alias("priced")).collect()[0]
        asked = changes.agg(F.count(F.lit(1)).alias("changes"), F.count_if("opens").alias("windows")).collect()[0]
        say("customers: tiers by turnover")
        tiers = _tiers(turnovers(lines), settings).persist()
        kept.callback(tiers.unpersist)
        reports = _tier_reports(tiers)
        # nothing is sent before all lines are read and both topics fit
        to_pictures = _Sending(changes.select("content"), settings, TopicType.RANGE_MERGE)
        to_customers = _Sending(_contacts(tiers), settings, TopicType.PRIORITY)
        say("price changes: sending")
        pictures = to_pictures.send(asked["changes"])
        say("customers: sending")
        contacts = to_customers.send(sum(tier.customers for tier in reports))
    return PriceReport(read["lines"], read["lines"] - read["priced"], asked["windows"], pictures, contacts, reports)


def _tiers(spent: DataFrame, settings: PriceSettings) -> DataFrame:
    """Return customers with their tier; two quantiles come to the driver, and no sort of all customers is needed."""
    shares = [1 - settings.gold, max(0.0, 1 - settings.gold - settings.silver)]
    amounts = spent.agg(F.percentile_approx("turnover", shares, 10_000).alias("amounts")).collect()[0]["amounts"]
    # the least of all is above nothing that there is
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
    """Sends a frame to one of the topics, which is registered and looked at when this is made."""

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
        """Send it; `number` is what the order lines asked for."""
        began_s = time.monotonic()
        counts = write_counted(self._frame, self._writer)
        folded, elapsed_s = number - counts.new - counts.merged, time.monotonic() - began_s
        return Sent(self._topic, number, folded, counts.merged, counts.new, elapsed_s)
