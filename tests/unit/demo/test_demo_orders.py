"""The demo's orders: what is read, and the price changes found in it, against a computation of its own."""

from __future__ import annotations

import csv
import gzip
from datetime import datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import rmq.demo
from rmq.demo.orders import OrderLine, price_changes, read_orders

DATA = Path(rmq.demo.__file__).parent / "data"
DAY = datetime(2011, 12, 8)

order_lines = st.builds(
    OrderLine,
    st.sampled_from(["1", "2", "C3"]),
    st.sampled_from(["a", "b", "c"]),
    st.integers(-3, 3),
    st.just(DAY),
    st.sampled_from([Decimal(0), Decimal("1.25"), Decimal("2.10")]),
    st.sampled_from(["", "7"]),
)


def naive_changes(rows: list[tuple[str, Decimal]]) -> int:
    """Item by item: neighbours with different prices among the rows that have a price."""
    total = 0
    for item in {item for item, _ in rows}:
        prices = [price for other, price in rows if other == item and price > 0]
        total += sum(earlier != later for earlier, later in pairwise(prices))
    return total


def test_the_slice_is_small_attributed_and_complete() -> None:
    assert (DATA / "orders.csv.gz").stat().st_size < 500_000
    notice = (DATA / "README.md").read_text("utf-8")
    for words in ("Daqing Chen", "2015", "10.24432/C5BW33", "CC BY 4.0"):
        assert words in notice
    lines = read_orders()
    assert len(lines) == 4_940
    assert [line.at for line in lines] == sorted(line.at for line in lines)
    assert {line.at.date() for line in lines} == {DAY.date()}


def test_price_changes_of_the_slice_agree_with_a_computation_of_their_own() -> None:
    with gzip.open(DATA / "orders.csv.gz", "rt", encoding="utf-8") as text:
        rows = [(row["stock_code"], Decimal(row["unit_price"])) for row in csv.DictReader(text)]
    found = [changed for _, changed in price_changes(read_orders())]
    assert len(found) == len(rows)
    assert sum(found) == naive_changes(rows) == 1_404


@given(st.lists(order_lines, max_size=30))
def test_price_changes_of_any_lines(lines: list[OrderLine]) -> None:
    found = list(price_changes(lines))
    assert [line for line, _ in found] == lines
    assert sum(changed for _, changed in found) == naive_changes([(line.item, line.price) for line in lines])


def test_only_lines_that_sell_something_are_orders() -> None:
    good = OrderLine("581475", "22596", 36, DAY, Decimal("0.39"), "")
    assert good.is_order
    assert not OrderLine("C581475", "22596", -36, DAY, Decimal("0.39"), "").is_order
    assert not OrderLine("581475", "22596", 36, DAY, Decimal(0), "").is_order
