"""The orders that the demo replays: a day of real order lines."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from importlib.resources import files

_FILE = "data/orders.csv.gz"


@dataclass(frozen=True, slots=True)
class OrderLine:
    """One line of an order.

    Attributes:
        invoice: Order number; a leading `C` marks a cancellation.
        item: Stock code.
        quantity: Units; negative in a cancellation.
        at: Minute of the order, without a zone.
        price: Unit price in GBP; 0 or less in a few correction rows.
        customer: Number of the buyer; empty for a guest.
        name: Name of the item; empty in a few rows.
    """

    invoice: str
    item: str
    quantity: int
    at: datetime
    price: Decimal
    customer: str
    name: str = ""

    @property
    def is_order(self) -> bool:
        """True for a line of an order; False for a cancellation or correction."""
        return self.invoice.isdecimal() and self.quantity > 0 and self.price > 0


def read_orders() -> list[OrderLine]:
    """Return the order lines included in RMQ, by time. For their source and licence, see `data/README.md`."""
    with files("rmq.demo").joinpath(_FILE).open("rb") as packed, gzip.open(packed, "rt", encoding="utf-8") as text:
        return [
            OrderLine(
                row["invoice_no"],
                row["stock_code"],
                int(row["quantity"]),
                datetime.fromisoformat(row["invoice_date"]),
                Decimal(row["unit_price"]),
                row["customer_id"],
                row["description"].strip(),
            )
            for row in csv.DictReader(text)
        ]


def price_changes(lines: Iterable[OrderLine]) -> Iterator[tuple[OrderLine, bool]]:
    """Yield each line, with True if its price differs from that of the item's previous line.

    The first line of an item is not a change; lines without a price are ignored.
    """
    prices: dict[str, Decimal] = {}
    for line in lines:
        changed = False
        if line.price > 0:
            changed = prices.get(line.item, line.price) != line.price
            prices[line.item] = line.price
        yield line, changed
