"""The audience job in a real Spark, against the same rules in plain Python."""

from __future__ import annotations

import csv
import gzip
import json
import threading
from collections import Counter, defaultdict
from datetime import datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from spark_shop.audience import AudienceSettings, ZooKeeperAccess, current_segments, run
from spark_shop.customers import DEFAULT_RULES, FIGURES, Evaluator, check_rules, read_rules
from spark_shop.order_lines import COLUMNS, read_lines, slice_path
from spark_shop.report import show_audience
from spark_shop.serial import Disorder, Held, disorder

from rmq import RangeMergeMessage, RmqClient
from rmq.errors import InvalidValueError, RmqError
from tests.support.zookeeper import ZooKeeperEnsemble

pytestmark = pytest.mark.slow

numbers = count(1)


class Shop:
    """Order lines of a test's own, as Parquet files in a folder, and a topic of its own."""

    def __init__(self, spark: SparkSession, client: RmqClient, folder: Path) -> None:
        self.spark, self.client, self._folder = spark, client, folder
        self.lines, self.out = f"{folder}/lines", f"{folder}/out"
        self.topic = f"audience{next(numbers)}"

    def order(self, customer: int, pounds: int, *, invoice: str = "", country: str = "France") -> None:
        """Append an order of one line, or a cancellation where `invoice` begins with a C."""
        Path(self.lines).mkdir(exist_ok=True)
        number = next(numbers)
        row = {
            "invoice_no": invoice or str(number),
            "stock_code": "mug",
            "quantity": -1 if invoice.startswith("C") else 1,
            "invoice_date": datetime(2011, 1, 1, number // 60 % 24, number % 60),
            "unit_price": float(pounds),
            "customer_id": customer,
            "country": country,
        }
        pq.write_table(pa.Table.from_pylist([row]), f"{self.lines}/{number}.parquet")

    def change(self, *contents: str) -> None:
        """Send changes that are due at once."""
        producer = self.client.producer(self.settings().to_topic())
        producer.send_many(RangeMergeMessage(content, time_range_ms=1) for content in contents)

    def settings(self, **given: Any) -> AudienceSettings:
        own: dict[str, Any] = {"topic": self.topic, "slots": 2, "window_ms": 1}
        return AudienceSettings(**{"lines": self.lines, "out": self.out, "url": self.client.url, **own, **given})

    def segments(self) -> dict[str, list[str]]:
        return {row["customer"]: row["segments"] for row in current_segments(self.spark, self.out).collect()}

    def batches(self) -> dict[int, set[str]]:
        found: defaultdict[int, set[str]] = defaultdict(set)
        for row in self.spark.read.parquet(f"{self.out}/segments").collect():
            found[row["batch"]].add(row["customer"])
        return dict(found)

    def check_empty(self) -> None:
        stats = self.client.inspect(self.topic).stats()
        assert (stats.backlog, stats.in_flight, stats.waiting, stats.dead, stats.unaccounted) == (0, 0, 0, 0, 0)


@pytest.fixture
def shop(spark: SparkSession, spark_client: RmqClient, tmp_path: Path) -> Shop:
    return Shop(spark, spark_client, tmp_path)


def in_plain_python() -> tuple[dict[str, list[str]], Counter[str]]:
    """Return the segments of the customers of RMQ's slice of order lines, and the changes of each source."""
    with gzip.open(slice_path(), "rt", encoding="utf-8") as text:
        lines = [line for line in csv.DictReader(text) if line["customer_id"]]
    mine: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
    changed: Counter[str] = Counter()
    for line in lines:
        mine[line["customer_id"]].append(line)
        changed["orders"] += is_order(line)
        changed["cancellations"] += line["invoice_no"].startswith("C")
    changed["countries"] = len({(line["customer_id"], line["country"]) for line in lines})
    return {customer: segments_of(found) for customer, found in mine.items()}, changed


def is_order(line: dict[str, str]) -> bool:
    return line["invoice_no"].isdecimal() and int(line["quantity"]) > 0 and Decimal(line["unit_price"]) > 0


def segments_of(lines: list[dict[str, str]]) -> list[str]:
    orders = {line["invoice_no"] for line in lines if is_order(line)}
    cancelled = {line["invoice_no"] for line in lines if line["invoice_no"].startswith("C")}
    turnover = sum(Decimal(line["unit_price"]) * int(line["quantity"]) for line in lines if is_order(line))
    share = len(cancelled) / (len(orders) + len(cancelled)) if orders or cancelled else 0
    last = max(lines, key=lambda line: (line["invoice_date"], line["country"]))
    holds = {
        "vip": turnover >= 5_000,
        "regular": len(orders) >= 5,
        "new": len(orders) == 1,  # all of them today
        "lapsed": False,
        "returns-often": len(cancelled) >= 2 and share > 0.25,
        "abroad": last["country"] != "United Kingdom",
    }
    assert list(holds) == list(DEFAULT_RULES)
    return [name for name, held in holds.items() if held]


def test_segments_are_those_of_plain_python_with_a_rival_on_the_topic(shop: Shop) -> None:
    expected, changed = in_plain_python()
    report = run(shop.spark, shop.settings(lines=slice_path(), batch=50, rival=60))
    assert shop.segments() == expected
    assert report.members == {name: sum(name in found for found in expected.values()) for name in DEFAULT_RULES}
    assert {source: counts.rows for source, counts in report.sent.items()} == changed
    assert (report.total.new, report.customers) == (len(expected), len(expected))
    assert report.merged_share == 1 - len(expected) / changed.total()
    assert (report.disorder, report.serial) == (Disorder(), True)
    assert report.rival == 60
    # whom the rival had first, Spark had afterwards; those that it had in between, once more
    assert len(expected) <= report.evaluated <= len(expected) + 60
    assert (report.left, report.expired, report.passed_over) == (0, 0, 0)
    assert report.batches == len(shop.batches()) >= 3
    shop.check_empty()


def test_spark_and_a_worker_own_slots(shop: Shop, zookeeper: ZooKeeperEnsemble) -> None:
    expected, _ = in_plain_python()
    access = ZooKeeperAccess(zookeeper.hosts, "/audience")
    report = run(shop.spark, shop.settings(lines=slice_path(), slots=4, batch=200, rival=60, zookeeper=access))
    assert shop.segments() == expected
    assert (report.disorder, report.serial) == (Disorder(), True)
    assert report.rival == 60
    assert (report.left, report.expired, report.died) == (0, 0, 0)
    shop.check_empty()


def test_a_change_during_the_evaluation_is_evaluated_afterwards(shop: Shop) -> None:
    for customer in (1, 2, 3):
        shop.order(customer, 10)
    sent: list[str] = []

    def say(step: str) -> None:
        if step.startswith("batch 0: 3 customers"):  # all are claimed, none is evaluated
            shop.change("customer:1")
            sent.append(step)

    report = run(shop.spark, shop.settings(sources=("orders",)), say)
    assert len(sent) == 1
    assert shop.batches() == {0: {"1", "2", "3"}, 1: {"1"}}
    assert (report.evaluated, report.serial) == (4, True)
    shop.check_empty()


def test_the_latest_batch_wins_and_what_is_no_customer_is_counted(shop: Shop) -> None:
    shop.order(1, 10)
    shop.order(2, 10)
    run(shop.spark, shop.settings(sources=("orders",)))
    assert shop.segments() == {"1": ["new", "abroad"], "2": ["new", "abroad"]}
    shop.order(1, 5_000, country="United Kingdom")
    shop.change("customer:1", "customer:99", "item:5", "customer:x")
    report = run(shop.spark, shop.settings(sources=()))
    assert shop.segments() == {"1": ["vip"], "2": ["new", "abroad"], "99": []}
    assert (report.passed_over, report.evaluated, report.sent, report.merged_share) == (2, 2, {}, 0.0)
    shop.check_empty()


def test_after_an_error_and_a_restart_all_is_as_without(shop: Shop) -> None:
    for customer in range(1, 7):
        shop.order(customer, 1_000 * customer)
    failed: list[str] = []

    def say(step: str) -> None:
        if step.startswith("batch 1:") and not failed:
            failed.append(step)
            raise ValueError("the disk is full")

    with pytest.raises(RmqError, match="the disk is full"):
        run(shop.spark, shop.settings(batch=2, sources=("orders",)), say)
    assert len(shop.segments()) == 2
    before = shop.batches()
    report = run(shop.spark, shop.settings(batch=2, sources=()))
    assert report.batches == 2, "the failed one, and one more"
    assert {number: shop.batches()[number] for number in before} == before
    assert sorted(map(len, shop.batches().values())) == [2, 2, 2]
    vip = {customer for customer, found in shop.segments().items() if "vip" in found}
    assert (vip, len(shop.segments())) == ({"5", "6"}, 6)
    assert report.serial
    shop.check_empty()


def test_running_on_ends_when_told_and_the_next_run_goes_on(shop: Shop) -> None:
    for customer in range(1, 5):
        shop.order(customer, 10)
    stop = threading.Event()

    def say(step: str) -> None:
        if step.startswith("batch 0:"):
            stop.set()

    report = run(shop.spark, shop.settings(batch=2, sources=("orders",), until_empty=False), say, stop)
    assert (report.batches, report.evaluated, report.customers) == (1, 2, 2), "the batch at work is finished"
    assert report.left >= 2
    run(shop.spark, shop.settings(batch=2, sources=()))
    assert len(shop.segments()) == 4
    shop.check_empty()


def test_the_same_batch_writes_the_same(shop: Shop) -> None:
    for customer in (1, 2, 3):
        shop.order(customer, 7)
    shop.change("customer:1")  # registers the topic
    steps: list[str] = []
    evaluator = Evaluator(shop.lines, shop.out, DEFAULT_RULES, shop.client.inspect(shop.topic), steps.append)
    messages = shop.spark.createDataFrame([(f"customer:{n}".encode(),) for n in (3, 1, 2)], "content binary")

    def written() -> list[Any]:
        return sorted(shop.spark.read.parquet(f"{shop.out}/segments").collect(), key=lambda row: row["customer"])

    evaluator(messages, 4)
    once = written()
    evaluator(messages, 4)
    assert (len(once), written()) == (3, once)
    assert tuple(shop.spark.read.parquet(f"{shop.out}/segments/batch=4").columns) == (*FIGURES, "segments")
    evaluator.close()
    with pytest.raises(RmqError, match="stopped"):
        evaluator(messages, 5)  # Spark must not commit it
    assert not Path(f"{shop.out}/segments/batch=5").exists()


def test_a_folder_of_another_redis_is_refused_before_anything_is_sent(shop: Shop) -> None:
    shop.order(1, 10)
    Path(f"{shop.out}/segments/batch=0").mkdir(parents=True)
    pq.write_table(pa.table({"customer": ["1"]}), f"{shop.out}/segments/batch=0/1.parquet")
    with pytest.raises(InvalidValueError, match=r"has segments of an earlier run, but topic .* is not registered"):
        run(shop.spark, shop.settings())
    assert shop.topic not in {topic.name for topic in shop.client.topics()}


def test_disorder_is_found(shop: Shop) -> None:
    def write(batch: int, began_ms: int, ended_ms: int, *customers: str) -> None:
        rows: DataFrame = shop.spark.createDataFrame([(each,) for each in customers], "customer string")
        rows.write.parquet(f"{shop.out}/segments/batch={batch}")
        times = shop.spark.sql(f"SELECT {began_ms} began_ms, {ended_ms} ended_ms")
        times.write.json(f"{shop.out}/evaluations/batch={batch}")

    write(0, 100, 200, "1", "2", "3")
    write(1, 199, 300, "1", "4", "4")
    write(2, 300, 400, "1")
    found = disorder(shop.spark, shop.out, [0, 1, 2], [])
    assert found == Disorder(doubled=1, overlaps=1)
    held = [Held("customer:2", 150, 250), Held("customer:3", 200, 250), Held("customer:9", 1, 2)]
    found = disorder(shop.spark, shop.out, [0, 1, 2], held)
    assert found == Disorder(doubled=1, overlaps=2, outdated=3)
    assert disorder(shop.spark, shop.out, [0, 1, 2], held, drained=False).outdated == 0
    assert disorder(shop.spark, shop.out, [], held) == Disorder(outdated=3)


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("turnover >", "Syntax error"),
        ("turnvoer > 1", "turnvoer"),
        ("turnover", "not a boolean"),
        ("sum(orders) > 3", "invalid expressions"),
        ("rank() over (order by orders) > 2", "window functions"),
        ("turnover / orders > 100", "Division by zero"),
        ("true) or (true", "Syntax error"),
        ("", "empty"),
    ],
)
def test_a_wrong_condition_is_refused_before_anything_is_written(shop: Shop, condition: str, reason: str) -> None:
    shop.order(1, 10)
    with pytest.raises(InvalidValueError, match=f"(?i)rule 'big': .* is not a valid condition: .*{reason}"):
        run(shop.spark, shop.settings(rules={"fine": "orders > 1", "big": condition}))
    assert shop.topic not in {topic.name for topic in shop.client.topics()}
    assert not Path(shop.out).exists()


def test_wrong_settings_and_files_are_refused(shop: Shop, tmp_path: Path) -> None:
    for given, words in [
        ({"sources": ("orders", "returns")}, "source is 'returns'; it must be one of orders, cancellations, countries"),
        ({"batch": 0}, "batch is 0; it must be 1 or more"),
        ({"rival": -1}, "rival is -1"),
        ({"slots": 3}, r"slots of topic .* is 3"),
    ]:
        with pytest.raises(InvalidValueError, match=words):
            shop.settings(**given)
    with pytest.raises(InvalidValueError, match=r"order lines .*lines' cannot be read: .*does not exist"):
        run(shop.spark, shop.settings())
    shop.order(1, 10)
    (tmp_path / "file").touch()
    with pytest.raises(InvalidValueError, match=r"folder '.*file/out' cannot be created: (?!An error occurred)"):
        run(shop.spark, shop.settings(out=str(tmp_path / "file" / "out")))
    assert shop.topic not in {topic.name for topic in shop.client.topics()}
    (tmp_path / "text").write_text("no parquet at all")
    with pytest.raises(InvalidValueError, match=r"cannot be read: .*magic bytes"):
        read_lines(shop.spark, str(tmp_path / "text"))
    few = {"invoice_no": ["1"], "stock_code": [5]}
    pq.write_table(pa.table(few), tmp_path / "few")
    with pytest.raises(InvalidValueError, match="few' have no column quantity; they need invoice_no, stock_code"):
        read_lines(shop.spark, str(tmp_path / "few"))
    pq.write_table(pa.table({name: ["1"] for name in COLUMNS} | few), tmp_path / "other")
    with pytest.raises(InvalidValueError, match="column stock_code is bigint; it must be string"):
        read_lines(shop.spark, str(tmp_path / "other"))
    with pytest.raises(InvalidValueError, match="there are no segments in"):
        current_segments(shop.spark, shop.out)
    with pytest.raises(InvalidValueError, match="rule 'a b' has an invalid name"):
        check_rules(shop.spark, {"a b": "orders > 1"})
    with pytest.raises(InvalidValueError, match="there are 0 rules"):
        check_rules(shop.spark, {})
    assert not Path(shop.out).exists()


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("r.toml", "vip = ", "is not valid TOML"),
        ("r.json", "{", "is not valid JSON"),
        ("r.json", '{"vip": "orders > 1", "vip": "orders > 2"}', "rule 'vip' is given twice"),
        ("r.json", "[1]", "must be one table"),
        ("r.toml", "vip = 5", "rule 'vip' is 5; it must be a string with a condition"),
        ("r.yaml", "vip: orders > 1", r"must end in \.toml or \.json"),
    ],
)
def test_a_wrong_rules_file_is_refused(tmp_path: Path, name: str, text: str, reason: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidValueError, match=reason):
        read_rules(tmp_path / name)
    with pytest.raises(InvalidValueError, match="cannot be read"):
        read_rules(tmp_path / "absent.toml")


def test_rules_are_read_in_their_order(tmp_path: Path) -> None:
    rules = {"vip": "turnover >= 5000", "abroad": "country <> 'United Kingdom'"}
    (tmp_path / "rules.toml").write_text("".join(f'{name} = "{rule}"\n' for name, rule in rules.items()))
    (tmp_path / "rules.json").write_text(json.dumps(rules))
    for name in ("rules.toml", "rules.json"):
        assert list(read_rules(tmp_path / name).items()) == list(rules.items())


def test_the_report(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.order(1, 6_000)
    shop.order(1, 10, invoice="C7")
    shop.order(2, 10, country="United Kingdom")
    rules = {"big": "turnover > 5000", "returns": "cancelled_share = 0.5"}
    show_audience(run(shop.spark, shop.settings(rules=rules, rival=2)), rules)
    out = capsys.readouterr().out
    assert [line.split() for line in out.splitlines() if line.startswith(("all", "big", "returns"))] == [
        ["all", "5", "0", "3", "2"],
        ["big", "1", "50.0%", "turnover", ">", "5000"],
        ["returns", "1", "50.0%", "cancelled_share", "=", "0.5"],
    ]
    assert "BROKEN" not in out
    assert "kept   up to date: of 2 that the rival changed, not evaluated again: 0" in out
    again = run(shop.spark, shop.settings(rules=rules, sources=()))
    assert (again.evaluated, again.members, again.serial) == (0, {"big": 1, "returns": 1}, True)
